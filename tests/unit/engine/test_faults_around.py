"""A fault beside an update, in a report, a request or a message, costs a cached prefix at most."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_xver.engine import journal, scheduler_hooks, updates
from sglang_xver.report import UpdateReport
from tests.unit.engine.fault_steps import (
    CUT,
    CUT_TOKENS,
    HELD,
    Step,
    Times,
    When,
    assert_next_update_works,
    assert_no_slot_is_in_two_places,
    cache_of,
    core_of,
    fault,
    step_name,
)
from tests.unit.engine.manager_world import PLAN, PREFIX, ManagerWorld, single_rank

TELLING_STEPS = (
    Step(lambda world: world.journal, "record"),
    Step(lambda world: UpdateReport, "to_dict"),
    Step(lambda world: UpdateReport, "to_message"),
)


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, single_rank(patch):
        yield


@pytest.fixture
def world() -> ManagerWorld:
    world = ManagerWorld()
    world.harness.run(PREFIX)
    return world


class TestTelling:
    """What only tells never decides, and never ends the scheduler."""

    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("plan", [CUT, None], ids=["plan", "no_plan"])
    @pytest.mark.parametrize("step", TELLING_STEPS, ids=step_name)
    def test_update(self, world: ManagerWorld, step: Step, plan: Any, times: Times) -> None:
        if plan is not None:
            world.push(plan.to_wire())
        with fault(world, step, "before", times) as hits:
            assert world.disk().success
        assert hits
        assert world.cached_tokens() in (0, CUT_TOKENS if plan is not None else 0)
        assert sum(world.journal.failures.values()) >= 1
        world.harness.cache.condemn_all()
        assert_next_update_works(world)
        world.harness.check_slots()

    @pytest.mark.parametrize("name", ["take_census", "asdict"])
    def test_server_info(
        self, world: ManagerWorld, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """The state of the server is asked for by monitors; a fault must not end it."""

        def fail(*_: Any) -> None:
            raise RuntimeError("injected")

        monkeypatch.setattr(journal, name, fail)
        result = SimpleNamespace(internal_state={"other": 1})
        scheduler_hooks.after_get_internal_state(result, world.state, None)
        assert result.internal_state["other"] == 1
        assert world.journal.failures["STATUS_RAISED"] == 1


class TestRequests:
    """A fault on the way of a request costs that request its cached prefix, never more."""

    @pytest.fixture
    def kept(self, world: ManagerWorld) -> ManagerWorld:
        """Return a world whose tree holds kept old KV, which switches all checks on."""
        world.push(PLAN.to_wire())
        world.disk()
        return world

    @pytest.fixture
    def blocked(self, world: ManagerWorld) -> ManagerWorld:
        """Return a world where a running request holds condemned KV."""
        world.harness.start(HELD)
        world.disk()
        assert world.journal.status()["blocked_tokens"] == len(PREFIX)
        return world

    def test_match_reads_nothing_blocked(self, blocked: ManagerWorld) -> None:
        with fault(blocked, Step(core_of, "_visible_tokens"), "before", "always") as hits:
            assert blocked.cached_tokens() == 0
        assert hits
        assert sum(blocked.journal.failures.values()) >= 1

    def test_placement(self, kept: ManagerWorld) -> None:
        step = Step(lambda world: world.harness.cache.placer, "place")
        with fault(kept, step, "before", "always") as hits:
            assert kept.cached_tokens() == 0
        assert hits
        assert kept.cached_tokens() == len(PREFIX)

    def test_insert_is_declined(self, kept: ManagerWorld) -> None:
        native = kept.harness.start(PREFIX, max_match=0)
        own = list(native.row)
        with fault(kept, Step(core_of, "foreign_overlap"), "before", "always") as hits:
            kept.harness.publish(native)
        assert hits
        assert native.row == own
        kept.harness.finish(native)
        kept.harness.check_slots()

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("name", ["_purge", "_remove_leaf"])
    def test_healing(self, kept: ManagerWorld, name: str, when: When) -> None:
        native = kept.harness.start(PREFIX, max_match=0)
        own = list(native.row)
        with fault(kept, Step(cache_of, name), when, "once") as hits:
            kept.harness.publish(native)
        assert hits
        assert native.row == own
        kept.harness.finish(native)
        assert {content.own for content in kept.harness.reads(PREFIX)} <= {"B"}
        assert_no_slot_is_in_two_places(kept)

    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("name", ["_purge", "_remove_leaf"])
    def test_release_of_condemned_kv(self, blocked: ManagerWorld, name: str, times: Times) -> None:
        running = blocked.harness.running[0]
        with fault(blocked, Step(cache_of, name), "before", times) as hits:
            blocked.harness.finish(running)
        assert hits
        assert blocked.cached_tokens() == 0
        assert sum(blocked.journal.failures.values()) >= 1
        # The next release anywhere removes what this one left.
        blocked.harness.run(tuple(range(5000, 5010)))
        blocked.harness.run(tuple(range(5000, 5010)))
        assert blocked.journal.status()["blocked_tokens"] == 0
        blocked.harness.check_slots()


class TestControlStream:
    @pytest.mark.parametrize(
        "key",
        [
            "xver_plan:",
            "xver_plan:{",
            "xver_plan:[]",
            "xver_plan:" + "[" * 100_000,
            'xver_plan:{"version":2}',
            PLAN.to_wire()[:-1],
            PLAN.to_wire().replace("-1", "-2"),
            PLAN.to_wire().replace("-1", "true"),
            PLAN.to_wire().replace("-1", "1e400"),
        ],
        ids=lambda key: key[:24],
    )
    def test_garbage_is_refused_and_counted(self, world: ManagerWorld, key: str) -> None:
        world.push(PLAN.to_wire())
        assert not world.push(key)
        assert world.journal.failures["MALFORMED_PLAN"] == 1
        assert "reason=NO_PLAN" in world.disk().message
        assert world.cached_tokens() == 0

    def test_parser_that_raises_anything(
        self, world: ManagerWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(key: str) -> None:
            raise MemoryError("injected")

        monkeypatch.setattr(updates, "plan_from_wire", fail)
        assert not world.push(PLAN.to_wire())
        assert world.journal.failures["MALFORMED_PLAN"] == 1
