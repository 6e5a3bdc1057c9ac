"""Around an update: the plan applies, and every fault ends in eviction, never in a crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import (
    SetInternalStateReq,
    UpdateWeightFromDiskReqInput,
    UpdateWeightFromDiskReqOutput,
)

from sglang_xver.config import XverConfig
from sglang_xver.engine import scheduler_hooks, updates
from sglang_xver.engine.journal import Journal, ServerFacts
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX, UPDATE_ID_FIELD, UpdateController
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan
from sglang_xver.report import parse_message
from tests.unit.engine.tree_harness import Harness

PREFIX = tuple(range(500, 600))
KEEP = Plan(
    update_id="u1",
    target_key="B",
    model_path="/b",
    rules={"initial": EpochRule(keep_max_tokens=UNLIMITED, reason="OK", decision_id="dec_1")},
)


BUCKET = SimpleNamespace(flush_cache=True, torch_empty_cache=False)


class World:
    """A scheduler around the harness's cache, reduced to what the hooks touch."""

    def __init__(self, mode: str = "on", page_size: int = 1) -> None:
        self.harness = Harness(page_size)
        cache = self.harness.cache
        self.journal = Journal(cache, ServerFacts(mode, None, {}))
        self.controller = UpdateController(cache, XverConfig(mode=mode), self.journal)
        self.harness.cache.xver_updates = self.controller
        self.flushes = 0
        self.scheduler = SimpleNamespace(
            tree_cache=self.harness.cache,
            waiting_queue=[],
            chunked_req=None,
            _engine_paused=False,
            collect_inflight_reqs=lambda: {_Hashable(r.req) for r in self.harness.running},
            is_fully_idle=lambda ignore_waiting=False: not self.harness.running,
            flush_cache=self._flush,
        )
        self.manager = SimpleNamespace(scheduler=self.scheduler, _session=object())

    def begin_session(self) -> Any:
        def original(manager: Any, request: Any) -> str:
            manager._session = object()
            return "begun"

        return scheduler_hooks.around_begin_session(original, self.manager, None)

    def bucket(self, manager: Any, request: Any) -> Any:
        """SGLang's part of one bucket."""
        success, _ = scheduler_hooks.around_flush(None, manager, request, True, "ok")
        return SimpleNamespace(success=success, message="bucket")

    def end_session(self) -> Any:
        def original(manager: Any, request: Any) -> Any:
            manager._session = None
            return SimpleNamespace(message="ended")

        return scheduler_hooks.around_end_session(original, self.manager, None)

    def _flush(self, empty_cache: bool = True) -> bool:
        del empty_cache
        if self.harness.running:
            return False
        self.flushes += 1
        self.harness.cache.reset()
        self.harness.allocator.clear()
        return True

    def push(self, key: str) -> bool:
        state = SimpleNamespace(scheduler=self.scheduler)
        request = SetInternalStateReq(server_args={key: 1})
        answer = scheduler_hooks.around_set_internal_state(_unreachable, state, request)
        return bool(answer.updated)

    def update(
        self,
        *,
        path: str = "/b",
        update_id: str | None = "u1",
        flush: bool = True,
        loads: bool = True,
        success: bool = True,
        error: Exception | None = None,
    ) -> tuple[bool, dict[str, str]]:
        """Run an update through the hooks as SGLang's handler does."""
        manifest = None if update_id is None else {UPDATE_ID_FIELD: update_id}
        request = UpdateWeightFromDiskReqInput(
            model_path=path, flush_cache=flush, manifest=manifest
        )

        def stock_flush(manager: Any, req: Any, ok: bool, message: str) -> tuple[bool, str]:
            del manager
            if req.flush_cache and not self._flush():
                return False, "not flushed"
            return ok, message

        def handler(manager: Any, req: Any) -> UpdateWeightFromDiskReqOutput:
            if error is not None:
                raise error
            ok, message = success, "Succeeded"
            if loads:
                ok, message = scheduler_hooks.around_flush(stock_flush, manager, req, ok, message)
            return UpdateWeightFromDiskReqOutput(success=ok, message=message)

        output = scheduler_hooks.around_update(handler, self.manager, request)
        return output.success, parse_message(output.message)


class _Hashable:
    """Requests go into sets by identity; the harness's namespaces compare by value."""

    def __init__(self, req: Any) -> None:
        object.__setattr__(self, "_req", req)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._req, name, value)


def _unreachable(*_: Any) -> Any:
    raise AssertionError("SGLang's own handler must not see our messages")


@pytest.fixture
def world() -> World:
    world = World()
    world.harness.run(PREFIX)
    return world


def cached(world: World) -> int:
    return len(world.harness.reads(PREFIX))


class TestPlan:
    def test_keeps(self, world: World) -> None:
        assert world.push(KEEP.to_wire())
        success, report = world.update()
        assert success
        assert (report["action"], report["decision_id"]) == ("KEEP", "dec_1")
        assert report["kept_tokens"] == str(len(PREFIX))
        assert cached(world) == len(PREFIX)
        assert world.flushes == 0

    def test_serves_one_update_only(self, world: World) -> None:
        world.push(KEEP.to_wire())
        world.update()
        _, report = world.update()
        assert (report["action"], report["reason"]) == ("EVICT", "NO_PLAN")
        assert cached(world) == 0

    @pytest.mark.parametrize(
        "other", [{"path": "/other"}, {"update_id": "u2"}, {"update_id": None}]
    )
    def test_made_for_another_update_is_void(self, world: World, other: dict[str, Any]) -> None:
        world.push(KEEP.to_wire())
        _, report = world.update(**other)
        assert (report["action"], report["reason"]) == ("EVICT", "NO_PLAN")
        assert cached(world) == 0

    def test_malformed_is_refused_and_replaces_the_earlier_one(self, world: World) -> None:
        world.push(KEEP.to_wire())
        assert not world.push("xver_plan:{")
        assert world.update()[1]["reason"] == "NO_PLAN"
        assert world.journal.failures["MALFORMED_PLAN"] == 1

    def test_no_plan_evicts_even_without_a_flush(self, world: World) -> None:
        _, report = world.update(flush=False)
        assert report["evicted_tokens"] == str(len(PREFIX))
        assert (cached(world), world.flushes) == (0, 0)

    def test_idle_eviction_uses_sglangs_flush(self, world: World) -> None:
        world.update()
        assert world.flushes == 1


class TestRunningRequests:
    def test_refused_flush_blocks_and_says_so(self, world: World) -> None:
        running = world.harness.start((*PREFIX, 1, 2))
        success, report = world.update()
        assert success
        assert report["blocked_tokens"] == str(len(PREFIX))
        assert report["straddling_requests"] == "1"
        assert running.req.skip_radix_cache_insert
        assert cached(world) == 0
        world.harness.finish(running)
        world.harness.check_slots()
        assert world.journal.status()["blocked_tokens"] == 0

    def test_same_bytes_bar_nobody(self, world: World) -> None:
        running = world.harness.start((*PREFIX, 1, 2))
        same = KEEP.model_copy(update={"target_key": "initial"})
        world.push(same.to_wire())
        assert world.update()[1]["action"] == "SAME"
        assert not running.req.skip_radix_cache_insert


class TestFaults:
    def test_failed_update_evicts(self, world: World) -> None:
        world.push(KEEP.to_wire())
        success, report = world.update(loads=False, success=False)
        assert not success
        assert report["reason"] == "UPDATE_FAILED"
        assert cached(world) == 0

    def test_draft_that_failed_after_the_target_loaded_evicts(self, world: World) -> None:
        world.push(KEEP.to_wire())
        success, report = world.update(success=False)
        assert not success
        assert report["reason"] == "UPDATE_FAILED"
        assert cached(world) == 0

    def test_raising_update_evicts_and_passes_the_error_on(self, world: World) -> None:
        world.push(KEEP.to_wire())
        with pytest.raises(RuntimeError, match="torn"):
            world.update(error=RuntimeError("torn"))
        assert cached(world) == 0

    @pytest.mark.parametrize(
        "name", ["apply_plan", "_split_node", "_remove_leaf", "_condemn", "take_census"]
    )
    def test_raising_step_ends_in_eviction(
        self, world: World, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        owners = {"_split_node": world.harness.core, "take_census": updates}
        owner = owners.get(name, world.harness.cache)

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("injected")

        monkeypatch.setattr(owner, name, fail)
        cut = KEEP.model_copy(
            update={"rules": {"initial": EpochRule(keep_max_tokens=50, reason="OK")}}
        )
        world.push(cut.to_wire())
        success, report = world.update()
        assert success
        assert report["action"] == "EVICT"
        assert report["reason"] == "APPLY_RAISED"
        assert cached(world) == 0
        assert world.journal.failures["APPLY_RAISED"] == 1

    def test_failure_after_slots_were_released_never_frees_them_twice(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        core = world.harness.core
        original = core._release_all_component_layers

        def release_then_fail(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            raise RuntimeError("injected")

        monkeypatch.setattr(core, "_release_all_component_layers", release_then_fail)
        world.update()
        monkeypatch.setattr(core, "_release_all_component_layers", original)
        world.harness.cache.condemn_all()
        assert cached(world) == 0
        free = world.harness.allocator.available_size()
        assert free <= world.harness.size
        slots = world.harness.allocator.alloc(free).tolist()
        assert len(set(slots)) == len(slots)

    def test_condemn_message(self, world: World) -> None:
        assert world.push(CONDEMN_KEY_PREFIX + "CHECKPOINT_CHANGED")
        assert cached(world) == 0
        assert world.journal.last_report is not None
        assert world.journal.last_report.reason == "CHECKPOINT_CHANGED"


class TestOtherPaths:
    def test_session_is_decided_at_its_begin_and_finalised_at_its_end(self, world: World) -> None:
        world.manager._session = None
        world.begin_session()
        assert cached(world) == 0
        for _ in range(3):
            assert (
                scheduler_hooks.around_bucket(world.bucket, world.manager, BUCKET).message
                == "bucket"
            )
            world.harness.run(PREFIX)
            assert cached(world) == 0
        output = world.end_session()
        assert parse_message(output.message)["reason"] == "WEIGHTS_WRITTEN_IN_SESSION"
        assert world.journal.reports == {
            "EVICT:WEIGHT_SESSION_OPENED": 1,
            "EMPTY:WEIGHTS_WRITTEN_IN_SESSION": 1,
        }
        assert cached(world) == 0
        world.harness.run(PREFIX)
        assert cached(world) == len(PREFIX)
        world.harness.check_slots()

    def test_session_that_is_open_stays_suspended_over_a_flush(self, world: World) -> None:
        world.manager._session = None
        world.begin_session()
        world.harness.cache.reset()
        world.harness.allocator.clear()
        world.harness.run(PREFIX)
        assert cached(world) == 0
        assert world.journal.status()["is_suspended"]

    @pytest.mark.parametrize("raises", [False, True])
    def test_session_that_never_opened_suspends_nothing(self, world: World, raises: bool) -> None:
        world.manager._session = None

        def refuse(*_: Any) -> str:
            if raises:
                raise RuntimeError("no session")
            return "refused"

        if raises:
            with pytest.raises(RuntimeError, match="no session"):
                scheduler_hooks.around_begin_session(refuse, world.manager, None)
        else:
            scheduler_hooks.around_begin_session(refuse, world.manager, None)
        world.harness.run(PREFIX)
        assert cached(world) == len(PREFIX)

    def test_end_without_a_session_changes_nothing(self, world: World) -> None:
        world.manager._session = None
        scheduler_hooks.around_end_session(lambda *_: "out", world.manager, None)
        assert cached(world) == len(PREFIX)

    @pytest.mark.parametrize(
        "tags, expected", [(None, 0), (["weights"], 0), (["kv_cache"], len(PREFIX))]
    )
    def test_resumed_weights_are_unknown(
        self, world: World, tags: list[str] | None, expected: int
    ) -> None:
        request = SimpleNamespace(tags=tags)
        scheduler_hooks.around_resume_memory(lambda *_: "out", world.manager, request)
        assert cached(world) == expected

    @pytest.mark.parametrize("action, expected", [("reset_tensors", 0), ("checksum", len(PREFIX))])
    def test_reset_weights_are_unknown(self, world: World, action: str, expected: int) -> None:
        request = SimpleNamespace(action=action)
        scheduler_hooks.around_check_weights(lambda *_: "out", world.manager, request)
        assert cached(world) == expected

    def test_bucket_without_a_session_changes_nothing(self, world: World) -> None:
        world.manager._session = None
        scheduler_hooks.around_bucket(lambda *_: "refused", world.manager, None)
        assert cached(world) == len(PREFIX)


class TestReport:
    """The action says what became of the tokens, not what the rule hoped for."""

    def rules(self, **limits: int) -> Plan:
        rules = {
            key: EpochRule(keep_max_tokens=limit, reason=f"R{limit}", decision_id=f"dec_{key}")
            for key, limit in limits.items()
        }
        return KEEP.model_copy(update={"rules": rules})

    def test_empty_tree(self) -> None:
        world = World()
        world.push(KEEP.to_wire())
        assert world.update()[1]["action"] == "EMPTY"

    def test_limit_below_a_page(self) -> None:
        world = World(page_size=16)
        world.harness.run(PREFIX)
        world.push(self.rules(initial=15).to_wire())
        _, report = world.update()
        assert (report["action"], report["reason"]) == ("EVICT", "LIMIT_BELOW_ONE_PAGE")

    def test_only_an_older_epoch_was_there_and_went(self, world: World) -> None:
        world.push(KEEP.to_wire())
        world.update()
        plan = self.rules(B=-1, initial=0).model_copy(update={"update_id": "u2", "target_key": "C"})
        world.push(plan.to_wire())
        _, report = world.update(update_id="u2")
        assert (report["action"], report["reason"]) == ("EVICT", "R0")
        assert report["decision_id"] == "dec_initial"

    def test_an_older_epoch_stays_where_the_current_goes(self, world: World) -> None:
        world.push(KEEP.to_wire())
        world.update()
        world.harness.run(tuple(range(900, 950)))
        plan = self.rules(B=0, initial=-1).model_copy(
            update={"update_id": "u2", "target_key": "initial"}
        )
        world.push(plan.to_wire())
        _, report = world.update(update_id="u2")
        assert (report["action"], report["decision_id"]) == ("KEEP", "dec_initial")
        assert (report["kept_tokens"], report["evicted_tokens"]) == (str(len(PREFIX)), "50")
        last = world.journal.last_report
        assert last is not None
        assert last.reasons == {"B": "R0", "initial": "R-1"}


class TestModes:
    def test_off_is_sglang_alone(self) -> None:
        world = World("off")
        world.harness.run(PREFIX)
        world.push(KEEP.to_wire())
        success, report = world.update(flush=False)
        assert (success, report) == (True, {})
        assert cached(world) == len(PREFIX)

    def test_observe_reports_and_lets_sglang_flush(self) -> None:
        world = World("observe")
        world.harness.run(PREFIX)
        world.push(KEEP.to_wire())
        success, report = world.update()
        assert success
        assert (report["action"], report["reason"]) == ("OBSERVE", "OK")
        assert (cached(world), world.flushes) == (0, 1)
        assert world.harness.epoch == "B"

    def test_observe_follows_the_weights(self) -> None:
        """Whatever became of the flush, the next decision must be about what is served."""
        world = World("observe")
        world.harness.run(PREFIX)
        world.push(KEEP.to_wire())
        running = world.harness.start((*PREFIX, 1, 2))
        success, _ = world.update()
        assert not success
        assert world.harness.epoch == "B"
        world.harness.finish(running)
        world.update(update_id=None)
        assert world.harness.epoch.startswith("unknown")
        before = world.harness.epoch
        world.end_session()
        assert world.harness.epoch != before
        assert world.journal.reports["OBSERVE:WEIGHTS_WRITTEN_IN_SESSION"] == 1
