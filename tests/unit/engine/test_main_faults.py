"""A fault in the main process, or in the service it asks, ends in eviction and in an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_xver.ask import CompatAsker
from sglang_xver.config import XverConfig
from sglang_xver.engine import gate as gate_module
from sglang_xver.engine import main_hooks
from tests.support.faulty_service import HANGS, WRONG_WAYS, FaultyService
from tests.unit.core.answers import answer, rule
from tests.unit.core.test_identity import write
from tests.unit.engine.test_gate import Manager

LAYOUT = {
    "digest": "layout:1",
    "kv_dtype": "bfloat16",
    "pool_layout": "mha",
    "bytes_per_token": 64,
    "num_layers": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
}
CONDEMN = "xver_condemn:"


@pytest.fixture(scope="module")
def service() -> Iterator[FaultyService]:
    with FaultyService() as service:
        yield service


@pytest.fixture
def served(tmp_path: Path) -> Path:
    return write(tmp_path / "served")


@pytest.fixture
def update(tmp_path: Path) -> Path:
    return write(tmp_path / "update", bump=1.0)


class AskingManager(Manager):
    """A manager whose gate asks a service over a socket."""

    def __init__(self, served: Path, service: FaultyService, timeout_ms: int) -> None:
        super().__init__(served, None)
        config = XverConfig(
            task_families=("niah",),
            service=service.address,
            timeout_ms=timeout_ms,
            last_good_max_age_s=0,
        )
        self.xver_gate._asker = CompatAsker(config)

    async def get_internal_state(self) -> list[dict[str, Any]]:
        status = await super().get_internal_state()
        status[0]["xver"]["layout"] = LAYOUT
        return status


class TestService:
    @pytest.mark.parametrize("mode", WRONG_WAYS)
    def test_every_wrong_answer_evicts(
        self, served: Path, update: Path, service: FaultyService, mode: str
    ) -> None:
        service.mode = mode
        calls = service.calls
        manager = AskingManager(served, service, timeout_ms=200 if mode == HANGS else 5000)
        success, _, _ = asyncio.run(manager.update(str(update)))
        assert success
        assert service.calls > calls
        assert manager.plan.keep_max_tokens("initial") == 0
        assert manager.plan.rules["initial"].reason
        assert manager.log[-1] == "loaded"

    def test_right_answer_keeps(self, served: Path, update: Path, service: FaultyService) -> None:
        service.mode = "keep"
        manager = AskingManager(served, service, timeout_ms=5000)
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.plan.keep_max_tokens("initial") == 4096


def raising(*_: Any, **__: Any) -> Any:
    raise RuntimeError("injected")


class TestBeforeTheUpdate:
    """Without a plan for this very update the schedulers evict; the update goes through."""

    @pytest.mark.parametrize(
        "name",
        [
            "inspect_checkpoint",
            "require_same_tensors",
            "resolve_model_folder",
            "make_plan",
            "_status",
        ],
    )
    def test_function_raises(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        monkeypatch.setattr(gate_module, name, raising)
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.dispatched[0].manifest is None

    @pytest.mark.parametrize("name", ["_remember", "_plan_request", "_label_conflict"])
    def test_method_raises(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        monkeypatch.setattr(manager.xver_gate, name, raising)
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.dispatched[0].manifest is None

    def test_schedulers_refuse_the_plan(self, served: Path, update: Path) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        manager.accepts = False
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.dispatched[0].manifest is None

    def test_status_without_our_block(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def stock(manager: Any) -> list[dict[str, Any]]:
            return [{}]

        monkeypatch.setattr(Manager, "get_internal_state", stock)
        manager = Manager(served, answer(rule(0, 512)))
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.dispatched[0].manifest is None

    def test_next_update_is_decided_again(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        with monkeypatch.context() as patch:
            patch.setattr(gate_module, "make_plan", raising)
            asyncio.run(manager.update(str(update)))
        assert asyncio.run(manager.update(str(update)))[0]
        assert manager.dispatched[1].manifest is not None


class TestAfterTheUpdate:
    """New weights are served by now: what can't be concluded is evicted, and the reply says so."""

    def test_conclusion_raises(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        monkeypatch.setattr(manager.xver_gate, "conclude", raising)
        success, message, _ = asyncio.run(manager.update(str(update)))
        assert success
        assert manager.log[-1].startswith(CONDEMN)
        assert "everything was evicted" in message

    def test_unchanged_check_raises(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        monkeypatch.setattr(gate_module.Checkpoint, "is_unchanged", raising)
        success, message, _ = asyncio.run(manager.update(str(update)))
        assert success
        assert manager.log[-1].startswith(CONDEMN)
        assert "everything was evicted" in message

    def test_checkpoint_vanishes_while_it_is_loaded(self, served: Path, update: Path) -> None:
        manager = Manager(served, answer(rule(0, 512)))

        def remove() -> None:
            for file in update.iterdir():
                file.unlink()
            update.rmdir()

        manager.during_load = remove
        success, message, _ = asyncio.run(manager.update(str(update)))
        assert success
        assert manager.log[-1] == CONDEMN + "CHECKPOINT_CHANGED"
        assert "everything was evicted" in message

    def test_eviction_itself_fails(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reply is all that is left, so it must tell."""
        manager = Manager(served, answer(rule(0, 512)))
        monkeypatch.setattr(gate_module.Checkpoint, "is_unchanged", raising)

        def sabotage() -> None:
            monkeypatch.setattr(main_hooks, "push_control", raising)

        manager.during_load = sabotage
        success, message, _ = asyncio.run(manager.update(str(update)))
        assert success
        assert "EVICTION FAILED, call /flush_cache" in message

    def test_update_raises_and_its_error_is_what_the_caller_sees(
        self, served: Path, update: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = Manager(served, answer(rule(0, 512)))
        manager.result = RuntimeError("torn")

        def sabotage() -> None:
            monkeypatch.setattr(main_hooks, "push_control", raising)

        manager.during_load = sabotage
        with pytest.raises(RuntimeError, match="torn"):
            asyncio.run(manager.update(str(update)))
