"""Changes a server's weights the ways that trainers do: buckets of tensors, broadcasts, sessions.

Tensors travel through shared-memory files, because a trainer's process and the server have no
common parent that could pass file descriptors.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from safetensors.torch import load_file
from sglang.srt.utils import MultiprocessingSerializer, init_custom_process_group

from examples.testbed.process import free_port
from sglang_xver.report import parse_message

GROUP = "trainer"

NamedTensors = Sequence[tuple[str, torch.Tensor]]


class Reply(NamedTuple):
    """Answer to one call; ``xver`` holds the fields of its ``[xver ...]`` part."""

    status: int
    success: bool
    message: str
    xver: dict[str, str]


def read_weights(checkpoint: Path) -> list[tuple[str, torch.Tensor]]:
    """Return all tensors of a tiny checkpoint in a fixed order."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(checkpoint.glob("*.safetensors")):
        tensors.update(load_file(shard))
    return sorted(tensors.items())


def buckets(weights: NamedTensors, count: int) -> list[NamedTensors]:
    """Split ``weights`` into ``count`` buckets of about equal numbers of tensors."""
    return [weights[start::count] for start in range(count)]


class WeightClient:
    """The calls of one server that touch weights."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def post(self, route: str, body: dict[str, Any] | None = None) -> Reply:
        answer = self._http.post(route, json=body or {})
        content = answer.json() if answer.content else None
        fields: dict[str, Any] = content if isinstance(content, dict) else {}
        message = str(fields.get("message", ""))
        success = bool(fields.get("success", answer.is_success))
        return Reply(answer.status_code, success, message, parse_message(message))

    def begin(self) -> Reply:
        return self.post("/begin_weight_update")

    def end(self) -> Reply:
        return self.post("/end_weight_update")

    def tensors(self, named: NamedTensors, **extra: Any) -> Reply:
        """Send one bucket; it stands for itself alone unless a session is open."""
        payload = _serialise(named)
        return self.post(
            "/update_weights_from_tensor", {"serialized_named_tensors": [payload], **extra}
        )

    def session(self, named_buckets: Sequence[NamedTensors], **extra: Any) -> list[Reply]:
        """Send all buckets inside one session; return the replies, that of the end last."""
        replies = [self.begin()]
        replies += [self.tensors(bucket, **extra) for bucket in named_buckets]
        return [*replies[1:], self.end()]

    @contextmanager
    def trainer_group(self) -> Iterator[Broadcaster]:
        """Join this process and the server in a process group of two."""
        from concurrent.futures import ThreadPoolExecutor

        port = free_port()
        body = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": 2,
            "group_name": GROUP,
            "backend": "gloo",
        }
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(self.post, "/init_weights_update_group", body)
            group = init_custom_process_group(
                backend="gloo",
                init_method=f"tcp://127.0.0.1:{port}",
                world_size=2,
                rank=0,
                group_name=GROUP,
                timeout=timedelta(seconds=60),
            )
            assert joined.result(60).success
            try:
                yield Broadcaster(self, group, pool)
            finally:
                self.post("/destroy_weights_update_group", {"group_name": GROUP})
                torch.distributed.destroy_process_group(group)


class Broadcaster:
    """Rank 0 of a trainer's group."""

    def __init__(self, client: WeightClient, group: Any, pool: Any) -> None:
        self._client = client
        self._group = group
        self._pool = pool

    def send(self, named: NamedTensors, **extra: Any) -> Reply:
        """Announce one bucket over HTTP and broadcast it."""
        body = {
            "names": [name for name, _ in named],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
            "group_name": GROUP,
            **extra,
        }
        answer = self._pool.submit(self._client.post, "/update_weights_from_distributed", body)
        for _, tensor in named:
            torch.distributed.broadcast(tensor.contiguous(), src=0, group=self._group)
        reply: Reply = answer.result(60)
        return reply


def _serialise(named: NamedTensors) -> str:
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        return base64.b64encode(MultiprocessingSerializer.serialize(list(named))).decode()
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)
