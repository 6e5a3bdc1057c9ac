"""The main process: identify, check, decide, push, and only then dispatch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import SetInternalStateReq, UpdateWeightFromDiskReqInput

from sglang_xver.config import XverConfig
from sglang_xver.decision import SourceEpoch, age_after_update
from sglang_xver.engine import main_hooks
from sglang_xver.engine.gate import UpdateGate
from sglang_xver.engine.updates import UPDATE_ID_FIELD
from sglang_xver.errors import ServiceUnavailableError
from sglang_xver.identity import inspect_checkpoint
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import Plan, plan_from_wire
from tests.unit.core.answers import answer, rule
from tests.unit.core.test_identity import write

LAYOUT = {"digest": "layout:1"}


class Manager:
    """TokenizerManager, reduced to what the hooks touch; ``log`` has the order of events."""

    def __init__(self, served: Path | None, answers: Any) -> None:
        self.log: list[str] = []
        self.dispatched: list[Any] = []
        self.accepts = True
        self.result: Any = (True, "Succeeded", 0)
        self.during_load: Any = None
        initial = None if served is None else inspect_checkpoint(served, 2**40)
        self.loaded_stamp = "" if initial is None else initial.stamp_digest
        self.load_format = "auto"
        self.xver_gate = UpdateGate(
            XverConfig(task_families=("niah",)), initial, initial_label="default"
        )
        self.asked: list[SourceEpoch] = []
        self.epochs = ["initial"]
        self.ages: dict[str, int] = {}
        self.hold: asyncio.Event | None = None

        def ask(source: SourceEpoch, context: Any) -> Any:
            del context
            self.asked.append(source)
            if isinstance(answers, Exception):
                raise answers
            return answers

        self.xver_gate._asker = SimpleNamespace(ask=ask)  # type: ignore[assignment]

    def config_value(self, name: str) -> str:
        assert name == "load_format"
        return self.load_format

    async def get_internal_state(self) -> list[dict[str, Any]]:
        self.log.append("status")
        block = {
            "current_epoch": self.epochs[-1],
            "epochs_present": list(self.epochs),
            "ages_updates": self.ages,
            "layout": LAYOUT,
            "engine": {"name": "sglang", "version": "0.5.23"},
            "initial_stamp": self.loaded_stamp,
        }
        return [{"xver": block}]

    async def set_internal_state(self, obj: Any) -> list[bool]:
        async def original(manager: Any, request: Any) -> list[bool]:
            del manager
            self.log.append(next(iter(request.server_args)))
            return [self.accepts]

        result: list[bool] = await main_hooks.around_set_internal_state(original, self, obj)
        return result

    async def update(self, path: str, **extra: Any) -> tuple[bool, str, int]:
        request = UpdateWeightFromDiskReqInput(model_path=path, **extra)

        async def original(manager: Any, obj: Any, http: Any) -> tuple[bool, str, int]:
            del manager, http
            self.log.append("dispatch")
            self.dispatched.append(obj)
            if self.during_load is not None:
                self.during_load()
            if self.hold is not None:
                await self.hold.wait()
            if isinstance(self.result, Exception):
                raise self.result
            self.log.append("loaded")
            return self.result

        result: tuple[bool, str, int] = await main_hooks.around_update_from_disk(
            original, self, request
        )
        return result

    @property
    def plan(self) -> Plan:
        return next(plan_from_wire(key) for key in self.log if key.startswith("xver_plan:"))


@pytest.fixture
def served(tmp_path: Path) -> Path:
    return write(tmp_path / "served")


@pytest.fixture
def update(tmp_path: Path) -> Path:
    return write(tmp_path / "update", bump=1.0)


def manager_with_keep(served: Path) -> Manager:
    return Manager(served, answer(rule(0, 512)))


def test_plan_goes_first_and_is_bound_to_the_update(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)
    assert asyncio.run(manager.update(str(update)))[0]
    assert [event[:9] for event in manager.log] == ["status", "xver_plan", "dispatch", "loaded"]
    assert manager.plan.keep_max_tokens("initial") == 512
    assert manager.plan.model_path == str(update)
    assert manager.dispatched[0].manifest == {UPDATE_ID_FIELD: manager.plan.update_id}


def test_the_clients_manifest_is_kept(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)
    asyncio.run(manager.update(str(update), manifest={"theirs": 1}))
    assert manager.dispatched[0].manifest["theirs"] == 1


def test_same_bytes_under_another_path_are_the_initial_epoch(served: Path, tmp_path: Path) -> None:
    manager = manager_with_keep(served)
    asyncio.run(manager.update(str(write(tmp_path / "copy")), weight_version="renamed"))
    assert manager.plan.target_key == "initial"
    assert manager.plan.keep_max_tokens("initial") == UNLIMITED
    assert manager.asked == []


@pytest.mark.parametrize("path", ["/nonexistent/checkpoint", "org/never-downloaded"])
def test_missing_checkpoint_is_refused_before_dispatch(served: Path, path: str) -> None:
    manager = manager_with_keep(served)
    success, message, _ = asyncio.run(manager.update(path))
    assert not success
    assert path in message
    assert "Weights were not touched" in message
    assert manager.log == []


def test_other_shapes_are_refused_before_dispatch(served: Path, tmp_path: Path) -> None:
    manager = manager_with_keep(served)
    success, message, _ = asyncio.run(manager.update(str(write(tmp_path / "small", rows=8))))
    assert not success
    assert "w has shape" in message
    assert manager.dispatched == []


def test_other_rope_is_evicted(served: Path, tmp_path: Path) -> None:
    manager = manager_with_keep(served)
    asyncio.run(manager.update(str(write(tmp_path / "rope", bump=1.0, rope_theta=5.0))))
    assert manager.plan.rules["initial"].reason == "GEOMETRY_MISMATCH"
    assert manager.asked == []


def test_unknown_served_version_evicts(update: Path) -> None:
    manager = Manager(None, answer(rule(0, 512)))
    asyncio.run(manager.update(str(update)))
    assert manager.plan.rules["initial"].reason == "UNKNOWN_VERSION"


@pytest.mark.parametrize("error", [ServiceUnavailableError("down"), RuntimeError("bug")])
def test_failing_question_never_stops_the_update(
    served: Path, update: Path, error: Exception
) -> None:
    manager = Manager(served, error)
    assert asyncio.run(manager.update(str(update)))[0]
    plans = [key for key in manager.log if key.startswith("xver_plan:")]
    assert all(plan_from_wire(key).keep_max_tokens("initial") == 0 for key in plans)
    assert manager.log[-2:] == ["dispatch", "loaded"]


def test_refused_plan_leaves_the_update_without_one(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)
    manager.accepts = False
    assert asyncio.run(manager.update(str(update)))[0]
    assert manager.dispatched[0].manifest is None


def test_format_without_a_fingerprint_has_no_plan(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)
    asyncio.run(manager.update(str(update), load_format="dummy"))
    assert manager.log == ["dispatch", "loaded"]


def test_checkpoint_overwritten_while_loading_is_condemned(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)

    def overwrite() -> None:
        write(update, bump=7.0)
        os.utime(update / "model.safetensors", ns=(1, 1))

    manager.during_load = overwrite
    _, message, _ = asyncio.run(manager.update(str(update)))
    assert manager.log[-1] == "xver_condemn:CHECKPOINT_CHANGED"
    assert "changed while it was loaded" in message
    assert "everything was evicted" in message


def test_served_checkpoint_overwritten_during_the_start_is_unknown(
    served: Path, update: Path
) -> None:
    manager = manager_with_keep(served)
    manager.loaded_stamp = "another"
    asyncio.run(manager.update(str(update)))
    assert manager.plan.rules["initial"].reason == "UNKNOWN_VERSION"


def test_format_of_the_server_counts_where_the_update_names_none(
    served: Path, update: Path
) -> None:
    manager = manager_with_keep(served)
    manager.load_format = "pt"
    asyncio.run(manager.update(str(update)))
    assert manager.log == ["dispatch", "loaded"]


def test_shapes_are_checked_against_the_first_known_version(update: Path, tmp_path: Path) -> None:
    manager = Manager(None, answer(rule(0, 512)))
    asyncio.run(manager.update(str(update)))
    success, message, _ = asyncio.run(manager.update(str(write(tmp_path / "small", rows=8))))
    assert not success
    assert "w has shape" in message


def test_old_versions_are_forgotten(served: Path, tmp_path: Path) -> None:
    manager = manager_with_keep(served)
    for number in range(5):
        path = write(tmp_path / str(number), bump=1.0 + number)
        asyncio.run(manager.update(str(path), weight_version=str(number)))
    assert len(manager.xver_gate._checkpoints) == 2


async def until(is_true: Callable[[], bool]) -> None:
    """Wait until ``is_true``; bounded."""
    for _ in range(2000):
        if is_true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited 20 s in vain")


def test_update_that_waits_does_not_hold_up_the_next(
    served: Path, update: Path, tmp_path: Path
) -> None:
    """SGLang answers an update at once while paused, even if another waits for requests."""
    manager = manager_with_keep(served)
    other = write(tmp_path / "other", bump=2.0)

    async def both() -> None:
        manager.hold = asyncio.Event()
        waiting = asyncio.create_task(manager.update(str(update)))
        await until(lambda: bool(manager.dispatched))
        hold, manager.hold = manager.hold, None
        assert (await asyncio.wait_for(manager.update(str(other)), 10))[0]
        hold.set()
        assert (await waiting)[0]

    asyncio.run(both())
    assert len(manager.dispatched) == 2


def test_cancelled_update_is_seen_through(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)

    async def cancel() -> None:
        manager.hold = asyncio.Event()
        waiting = asyncio.create_task(manager.update(str(update)))
        await until(lambda: bool(manager.dispatched))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        manager.hold.set()
        # What changes while nobody waits for the reply any more is noticed all the same.
        (update / "model.safetensors").touch()
        await until(lambda: not main_hooks._updates)

    asyncio.run(asyncio.wait_for(cancel(), 20))
    assert manager.log[-2:] == ["loaded", "xver_condemn:CHECKPOINT_CHANGED"]


def test_raising_update_condemns(served: Path, update: Path) -> None:
    manager = manager_with_keep(served)
    manager.result = RuntimeError("lost")
    with pytest.raises(RuntimeError, match="lost"):
        asyncio.run(manager.update(str(update)))
    assert manager.log[-1] == "xver_condemn:UPDATE_RAISED"


def test_age_is_bounded_over_updates(served: Path, tmp_path: Path) -> None:
    manager = manager_with_keep(served)
    reasons = []
    for number in range(10):
        path = write(tmp_path / str(number), bump=1.0 + number)
        manager.log.clear()
        asyncio.run(manager.update(str(path)))
        reasons.append(manager.plan.rules["initial"].reason)
        manager.epochs = ["initial", manager.plan.target_key]
        manager.ages = age_after_update(manager.ages, manager.epochs, manager.epochs[-1])
    assert reasons == ["ALL_CRITERIA_PASS"] * 8 + ["MAX_AGE"] * 2


class TestLabels:
    def test_label_that_named_other_bytes_evicts(
        self, served: Path, update: Path, tmp_path: Path
    ) -> None:
        manager = manager_with_keep(served)
        asyncio.run(manager.update(str(update), weight_version="v1"))
        manager.log.clear()
        asyncio.run(manager.update(str(write(tmp_path / "c", bump=3.0)), weight_version="v1"))
        assert manager.plan.rules["initial"].reason == "LABEL_REUSED"
        assert "'v1'" in manager.plan.rules["initial"].detail

    def test_initial_label_counts(self, served: Path, update: Path) -> None:
        manager = manager_with_keep(served)
        asyncio.run(manager.update(str(update), weight_version="default"))
        assert manager.plan.rules["initial"].reason == "LABEL_REUSED"

    def test_same_label_for_the_same_bytes_is_fine(self, served: Path, update: Path) -> None:
        manager = manager_with_keep(served)
        for _ in range(2):
            manager.log.clear()
            asyncio.run(manager.update(str(update), weight_version="v1"))
            assert manager.plan.rules["initial"].reason == "ALL_CRITERIA_PASS"

    def test_updates_without_a_label_are_fine(self, served: Path, update: Path) -> None:
        manager = manager_with_keep(served)
        asyncio.run(manager.update(str(update)))
        assert manager.plan.rules["initial"].reason == "ALL_CRITERIA_PASS"


def test_nobody_else_may_send_plans(served: Path) -> None:
    manager = manager_with_keep(served)
    forged = SetInternalStateReq(server_args={"xver_plan:{}": 1})
    assert asyncio.run(manager.set_internal_state(forged)) == [False]
    assert manager.log == []
    asyncio.run(manager.set_internal_state(SetInternalStateReq(server_args={"other": 1})))
    assert manager.log == ["other"]
