"""SGLang's own handler of weight updates around the harness's cache, with scripted weights.

The handler is the real class with the plugin's hooks applied to it; what it calls in a worker is
replaced by ``Weights``, which fails on demand before or after it has written something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest
import torch
from sglang.srt.managers import io_struct
from sglang.srt.managers.scheduler_components import weight_updater
from sglang.srt.managers.scheduler_components.internal_state import (
    SchedulerInternalStateController,
)
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

from sglang_xver.config import XverConfig
from sglang_xver.engine.journal import Journal, ServerFacts
from sglang_xver.engine.updates import UPDATE_ID_FIELD, UpdateController
from sglang_xver.plan import EpochRule, Plan
from tests.unit.engine.tree_harness import Harness

Outcome = Literal["loads", "refuses", "tears", "raises"]

PREFIX = tuple(range(500, 600))
PATH = "/b"
PLAN = Plan(
    update_id="u1",
    target_key="B",
    model_path=PATH,
    rules={"initial": EpochRule(keep_max_tokens=-1, reason="OK", decision_id="dec_1")},
)


class Weights:
    """One model runner: what it holds is a version number that every load raises."""

    def __init__(self) -> None:
        self.outcome: Outcome = "loads"
        self.version = 0
        self.weight_updater = self
        self.model = torch.nn.BatchNorm1d(1)
        self.weight_exporter = None

    def _load(self, *_: Any, **__: Any) -> tuple[bool, str]:
        if self.outcome == "refuses":
            return False, "refused before anything was written"
        self.version += 1
        if self.outcome == "tears":
            return False, "partially updated"
        if self.outcome == "raises":
            raise RuntimeError("torn")
        return True, "Success"

    update_weights_from_disk = _load
    update_weights_from_tensor = _load
    update_weights_from_ipc = _load
    load_weights_from_distributed = _load

    def receive_weights_from_distributed(self, **_: Any) -> list[Any]:
        return []

    def begin_weight_update(self) -> None:
        pass

    def end_weight_update(self, *, run_post_load: bool) -> None:
        """A session without a load ends with weights that somebody else has written."""
        self.version += run_post_load

    def check_weights(self, *, action: str, **_: Any) -> None:
        self.version += action == "reset_tensors"


class ManagerWorld:
    """A scheduler reduced to what weight updates touch, around a cache of the real classes."""

    def __init__(self, *, mode: str = "on", page_size: int = 1, draft: bool = False) -> None:
        self.harness = Harness(page_size)
        cache = self.harness.cache
        self.journal = Journal(cache, ServerFacts(mode, None, {}))
        self.controller = UpdateController(cache, XverConfig(mode=mode), self.journal)
        cache.xver_updates = self.controller
        self.flushes = 0
        self.target = Weights()
        self.draft = Weights() if draft else None
        self.scheduler = SimpleNamespace(
            tree_cache=cache,
            waiting_queue=[],
            chunked_req=None,
            _engine_paused=False,
            disaggregation_mode=None,
            collect_inflight_reqs=lambda: {_ById(r.req) for r in self.harness.running},
            is_fully_idle=self._is_idle,
            flush_cache=self._flush,
            record_weight_version_change=lambda new_version: None,
        )
        self.manager = SchedulerWeightUpdaterManager(
            tp_worker=_worker("target", self.target),
            draft_worker=None if self.draft is None else _worker("draft", self.draft),
            memory_saver_adapter=SimpleNamespace(pause=_nothing, resume=_nothing),
            flush_cache=self._flush,
            is_fully_idle=self._is_idle,
            scheduler=self.scheduler,
        )
        self.state = SchedulerInternalStateController(self.scheduler, record_step_time=False)

    def _is_idle(self, ignore_waiting: bool = False) -> bool:
        return not self.harness.running

    def _flush(self, empty_cache: bool = True) -> bool:
        if self.harness.running:
            return False
        self.flushes += 1
        self.harness.cache.reset()
        self.harness.allocator.clear()
        return True

    # ---- the control stream and the calls, as they reach a scheduler ----

    def push(self, key: str) -> bool:
        request = io_struct.SetInternalStateReq(server_args={key: 1})
        return bool(self.state.set_internal_state(request).updated)

    def disk(self, *, update_id: str | None = "u1", path: str = PATH, flush: bool = True) -> Any:
        manifest = None if update_id is None else {UPDATE_ID_FIELD: update_id}
        return self.manager.update_weights_from_disk(
            io_struct.UpdateWeightFromDiskReqInput(
                model_path=path, flush_cache=flush, manifest=manifest
            )
        )

    def ipc(self) -> Any:
        return self.manager.update_weights_from_ipc(
            io_struct.UpdateWeightsFromIPCReqInput(zmq_handles={})
        )

    def begin(self) -> Any:
        return self.manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput())

    def end(self) -> Any:
        return self.manager.end_weight_update(io_struct.EndWeightUpdateReqInput())

    def tensors(self, flush: bool = True) -> Any:
        return self.manager.update_weights_from_tensor(
            io_struct.UpdateWeightsFromTensorReqInput(
                serialized_named_tensors=[b""], flush_cache=flush
            )
        )

    def distributed(self, flush: bool = True) -> Any:
        return self.manager.update_weights_from_distributed(
            io_struct.UpdateWeightsFromDistributedReqInput(
                names=[], dtypes=[], shapes=[], flush_cache=flush
            )
        )

    def release(self, *tags: str) -> Any:
        request = io_struct.ReleaseMemoryOccupationReqInput(tags=list(tags))
        # It waits for a GPU, whatever the server runs on.
        with mock.patch.object(torch, "get_device_module", return_value=torch.cpu):
            return self.manager.release_memory_occupation(request)

    def resume(self, *tags: str) -> Any:
        request = io_struct.ResumeMemoryOccupationReqInput(tags=list(tags))
        return self.manager.resume_memory_occupation(request)

    def check(self, action: str) -> Any:
        return self.manager.check_weights(io_struct.CheckWeightsReqInput(action=action))

    # ---- what requests see ----

    def cached_tokens(self, tokens: tuple[int, ...] = PREFIX) -> int:
        return len(self.harness.reads(tokens))

    def assert_serves(self) -> None:
        """Requests run, are cached, and no slot is leaked or freed twice."""
        fresh = tuple(range(2000, 2050))
        self.harness.run(fresh)
        assert self.cached_tokens(fresh) == len(fresh)
        self.harness.check_slots()


class _ById:
    """Requests go into sets by identity; the harness's namespaces compare by value."""

    def __init__(self, req: Any) -> None:
        object.__setattr__(self, "_req", req)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._req, name, value)


def _nothing(*_: Any) -> None:
    pass


def _worker(role: str, weights: Weights) -> Any:
    return SimpleNamespace(
        model_runner=weights,
        weight_update_runners=lambda: [(role, weights)],
        deserialize_own_rank=lambda payload: payload,
    )


@contextmanager
def single_rank(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give SGLang's handler a process group of one rank."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    parallel = SimpleNamespace(tp_group=SimpleNamespace(cpu_group=torch.distributed.group.WORLD))
    patch.setattr(weight_updater, "get_parallel", lambda: parallel)
    patch.setattr(weight_updater, "get_model", lambda: SimpleNamespace(weight_cache_mode="off"))
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
