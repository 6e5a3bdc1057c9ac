"""A fault in any step of an update ends in eviction; the scheduler goes on and says what happened.

Every step is made to fail once or always, before it did anything or after it did all, on an idle
server and while a request holds old KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_xver.engine import plan_walk, updates
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX
from sglang_xver.plan import EpochRule
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
    controller_of,
    core_of,
    epochs_of,
    fault,
    step_name,
)
from tests.unit.engine.manager_world import PLAN, PREFIX, ManagerWorld, single_rank

APPLY_STEPS = (
    Step(lambda world: updates, "take_census"),
    Step(lambda world: updates, "explain"),
    Step(lambda world: plan_walk.PlanWalk, "run"),
    Step(lambda world: world.scheduler, "collect_inflight_reqs"),
    Step(controller_of, "_matching_plan"),
    Step(controller_of, "_bar_straddlers"),
    Step(controller_of, "_apply"),
    Step(cache_of, "apply_plan"),
    Step(cache_of, "_condemn"),
    Step(cache_of, "_purge"),
    Step(cache_of, "_remove_leaf"),
    Step(cache_of, "_reconcile_events"),
    Step(core_of, "subtree"),
    Step(core_of, "_split_node"),
    Step(core_of, "_remove_leaf_from_parent"),
    Step(core_of, "_update_evictable_leaf_sets"),
    Step(core_of, "_release_all_component_layers"),
    Step(core_of, "forget_dead_epochs"),
)
EVICT_STEPS = (
    Step(cache_of, "condemn_all"),
    Step(cache_of, "_condemn"),
    Step(cache_of, "_purge"),
    Step(cache_of, "_remove_leaf"),
    Step(core_of, "subtree"),
    Step(core_of, "_remove_leaf_from_parent"),
    Step(core_of, "_release_all_component_layers"),
    Step(controller_of, "_flush_if_idle"),
    Step(lambda world: world.scheduler, "flush_cache"),
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


class TestApply:
    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("step", APPLY_STEPS, ids=step_name)
    def test_idle(self, world: ManagerWorld, step: Step, when: When, times: Times) -> None:
        world.push(CUT.to_wire())
        with fault(world, step, when, times) as hits:
            output = world.disk()
        assert hits
        assert output.success
        assert world.cached_tokens() == 0
        assert world.journal.failures["APPLY_RAISED"] == 1
        assert "reason=APPLY_RAISED" in output.message
        assert_no_slot_is_in_two_places(world)
        assert_next_update_works(world)
        world.harness.check_slots()

    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("step", APPLY_STEPS, ids=step_name)
    def test_while_a_request_holds_old_kv(
        self, world: ManagerWorld, step: Step, when: When, times: Times
    ) -> None:
        running = world.harness.start(HELD)
        world.push(CUT.to_wire())
        with fault(world, step, when, times) as hits:
            world.disk()
        if not hits:
            # Nothing is removed while the request holds all of it: the plan applied.
            assert world.cached_tokens() == CUT_TOKENS
            return
        assert world.cached_tokens() == 0
        assert world.journal.failures["APPLY_RAISED"] == 1
        world.harness.finish(running)
        assert world.cached_tokens(HELD) == 0
        assert_no_slot_is_in_two_places(world)
        assert_next_update_works(world)


class TestPressureAfterAFault:
    """What a failed removal left behind is not chosen for eviction: it is in no tree any more."""

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize(
        "name",
        [
            "_remove_leaf_from_parent",
            "_update_evictable_leaf_sets",
            "_release_all_component_layers",
        ],
    )
    def test_eviction(self, world: ManagerWorld, name: str, when: When) -> None:
        # A running request keeps SGLang's flush from setting everything right.
        running = world.harness.start(tuple(range(7000, 7010)))
        with fault(world, Step(core_of, name), when, "once") as hits:
            world.disk()
        assert hits
        world.harness.run(tuple(range(8000, 8100)))
        world.harness.cache.evict(EvictParams(num_tokens=world.harness.size))
        world.harness.finish(running)
        assert world.cached_tokens() == 0
        assert_no_slot_is_in_two_places(world)
        assert_next_update_works(world)


class TestEvict:
    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("step", EVICT_STEPS, ids=step_name)
    def test_without_a_plan(
        self, world: ManagerWorld, step: Step, when: When, times: Times
    ) -> None:
        with fault(world, step, when, times) as hits:
            output = world.disk()
        assert hits
        assert output.success
        assert world.cached_tokens() == 0
        assert world.journal.failures["APPLY_RAISED"] == 1
        assert_no_slot_is_in_two_places(world)
        assert_next_update_works(world)
        world.harness.check_slots()

    @pytest.mark.parametrize("name", ["advance", "advance_unknown"])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_epoch_that_advances_at_the_second_try(
        self, world: ManagerWorld, name: str, when: When
    ) -> None:
        with fault(world, Step(epochs_of, name), when, "once"):
            world.disk()
        assert world.cached_tokens() == 0
        assert world.harness.epoch.startswith("unknown")
        assert_next_update_works(world)

    @pytest.mark.parametrize("name", ["advance", "advance_unknown"])
    def test_epoch_that_never_advances_suspends_the_cache(
        self, world: ManagerWorld, name: str
    ) -> None:
        """New KV under the old epoch's name would be kept by that epoch's evidence."""
        fresh = tuple(range(6000, 6050))
        with fault(world, Step(epochs_of, name), "before", "always"):
            world.disk()
        world.harness.run(fresh)
        assert (world.cached_tokens(), world.cached_tokens(fresh)) == (0, 0)
        assert world.journal.status()["is_suspended"]
        assert_next_update_works(world)

    def test_request_that_ran_in_doubt_publishes_nothing_after_it(
        self, world: ManagerWorld
    ) -> None:
        """A rollback ends the doubt; what other weights computed meanwhile is not the base's."""
        with fault(world, Step(controller_of, "_bar_straddlers"), "before", "always"):
            world.disk()
        assert world.journal.status()["is_suspended"]
        running = world.harness.start(tuple(range(6000, 6050)))
        rules = {"initial": EpochRule(keep_max_tokens=-1, reason="SAME_FINGERPRINT")}
        back = PLAN.model_copy(update={"target_key": "initial", "rules": rules})
        world.push(back.to_wire())
        world.disk()
        assert running.req.skip_radix_cache_insert
        world.harness.finish(running)
        assert world.cached_tokens(running.tokens) == 0
        world.harness.check_slots()

    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("step", EVICT_STEPS[:-2], ids=step_name)
    @pytest.mark.parametrize("path", ["begin", "resume", "check", "condemn"])
    def test_paths_without_a_plan_of_their_own(
        self, world: ManagerWorld, step: Step, times: Times, path: str
    ) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "begin": world.begin,
            "resume": lambda: world.resume("weights"),
            "check": lambda: world.check("reset_tensors"),
            "condemn": lambda: world.push(CONDEMN_KEY_PREFIX + "CHECKPOINT_CHANGED"),
        }
        world.release("weights")
        with fault(world, step, "before", times) as hits:
            calls[path]()
        assert hits
        assert world.cached_tokens() == 0
        assert sum(world.journal.failures.values()) >= 1
        if path == "begin":
            world.end()
        assert_no_slot_is_in_two_places(world)
        assert_next_update_works(world)
        world.harness.check_slots()

    @pytest.mark.parametrize("times", ["once", "always"])
    @pytest.mark.parametrize("name", ["advance_unknown", "condemn_all"])
    def test_end_of_a_session(self, world: ManagerWorld, name: str, times: Times) -> None:
        world.begin()
        world.harness.run(PREFIX)
        owner = epochs_of if name == "advance_unknown" else cache_of
        with fault(world, Step(owner, name), "before", times) as hits:
            world.end()
        assert hits
        assert world.journal.failures["CONDEMN_RAISED"] == 1
        assert world.cached_tokens() == 0
        assert_next_update_works(world)
        world.harness.check_slots()


def test_hooks_are_applied_to_the_class_under_test() -> None:
    """Without the hooks everything above would test SGLang alone."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    name = f"{SchedulerWeightUpdaterManager.__module__}.{SchedulerWeightUpdaterManager.__name__}"
    assert f"{name}.flush_cache_after_weight_update" in HookRegistry._patched
