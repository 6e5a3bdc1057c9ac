"""Talks to a real server the way a user does: plain HTTP."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sglang_xver.report import parse_message


@dataclass(frozen=True)
class Generated:
    """Answer to one request; ``top1`` holds (token, log-probability) of every output position."""

    tokens: list[int]
    cached_tokens: int
    top1: list[tuple[int, float]]


@dataclass(frozen=True)
class Updated:
    """Reply to a weight update; ``xver`` holds the fields of its ``[xver ...]`` part."""

    status: int
    success: bool
    message: str
    xver: dict[str, str]


def prompt(seed: int, length: int) -> list[int]:
    """Return a reproducible prompt of token ids inside the tiny models' vocabulary."""
    rng = random.Random(seed)
    return [rng.randrange(10, 200) for _ in range(length)]


class Driver:
    """HTTP client of one server."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120.0)

    def payload(self, tokens: list[int], new_tokens: int, **extra: Any) -> dict[str, Any]:
        return {
            "input_ids": tokens,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": new_tokens,
                "ignore_eos": True,
            },
            **extra,
        }

    def generate(self, tokens: list[int], new_tokens: int = 4, **extra: Any) -> Generated:
        body = self.payload(tokens, new_tokens, return_logprob=True, **extra)
        answer = self.http.post("/generate", json=body).raise_for_status().json()
        meta = answer["meta_info"]
        top1 = [(int(entry[1]), float(entry[0])) for entry in meta["output_token_logprobs"]]
        return Generated(answer["output_ids"], int(meta["cached_tokens"]), top1)

    def update(self, checkpoint: Path | str, **extra: Any) -> Updated:
        reply = self.http.post(
            "/update_weights_from_disk", json={"model_path": str(checkpoint), **extra}
        )
        body = reply.json()
        return Updated(
            reply.status_code, body["success"], body["message"], parse_message(body["message"])
        )

    def status(self) -> dict[str, Any]:
        info = self.http.get("/server_info").raise_for_status().json()
        block: dict[str, Any] = info["internal_states"][0]["xver"]
        return block

    def relabel(self, version: str) -> None:
        """Change the label of the served weights and nothing else."""
        body = {"new_version": version, "abort_all_requests": False}
        self.http.post("/update_weight_version", json=body).raise_for_status()

    def flush(self) -> None:
        self.http.post("/flush_cache").raise_for_status()

    def try_flush(self) -> bool:
        """Ask for a flush; False when SGLang refuses it because requests are running."""
        return self.http.post("/flush_cache").status_code == httpx.codes.OK

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the answer to ``body`` as it grows; closing the iterator hangs up."""
        with self.http.stream("POST", "/generate", json={**body, "stream": True}) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    yield chunk

    def abort(self, request_id: str) -> None:
        self.http.post("/abort_request", json={"rid": request_id}).raise_for_status()

    def reset_to(self, checkpoint: Path) -> None:
        """Serve ``checkpoint`` with an empty cache."""
        assert self.update(checkpoint).success
        self.flush()

    def pause(self, mode: str) -> None:
        self.http.post("/pause_generation", json={"mode": mode}).raise_for_status()

    def resume(self) -> None:
        self.http.post("/continue_generation", json={}).raise_for_status()

    def load(self, field: str) -> int:
        """Return one number of ``/v1/loads``, such as ``num_used_tokens``."""
        loads = self.http.get("/v1/loads").raise_for_status().json()["loads"]
        return sum(int(load[field]) for load in loads)

    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return self.load("num_running_reqs") + self.load("num_waiting_reqs") == 0

    def wait_until(self, is_true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Poll ``is_true``; raises AssertionError that says ``what`` never happened."""
        deadline = time.monotonic() + timeout_s
        while not is_true():
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
            time.sleep(0.02)

    def wait_for(self, field: str, value: Any, timeout_s: float = 30.0) -> None:
        """Wait until the status shows ``value``; bounded."""
        deadline = time.monotonic() + timeout_s
        while self.status()[field] != value:
            assert time.monotonic() < deadline, f"{field} is {self.status()[field]}, not {value}"
            time.sleep(0.2)
