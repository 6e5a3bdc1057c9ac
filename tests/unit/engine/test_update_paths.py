"""Every way to change weights, through SGLang's own handler with the plugin's hooks on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.engine.manager_world import PATH, PLAN, PREFIX, ManagerWorld, Outcome, single_rank

HELD = (*PREFIX, 1, 2)


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, single_rank(patch):
        yield


@pytest.fixture
def world() -> ManagerWorld:
    return warm(ManagerWorld())


def warm(world: ManagerWorld) -> ManagerWorld:
    world.harness.run(PREFIX)
    return world


def tensor_session(world: ManagerWorld) -> None:
    world.begin()
    world.tensors()
    world.tensors()
    world.end()


def distributed_session(world: ManagerWorld) -> None:
    world.begin()
    world.distributed()
    world.distributed()
    world.end()


def memory_session(world: ManagerWorld) -> None:
    """Weights that somebody writes straight into the server's memory."""
    world.begin()
    world.end()


def release_and_resume(*tags: str) -> Callable[[ManagerWorld], None]:
    def run(world: ManagerWorld) -> None:
        world.release(*tags)
        world.resume(*tags)

    return run


CHANGES: dict[str, Callable[[ManagerWorld], Any]] = {
    "disk_without_a_plan": lambda world: world.disk(),
    "disk_without_a_flush": lambda world: world.disk(flush=False),
    "ipc": lambda world: world.ipc(),
    "tensor_session": tensor_session,
    "distributed_session": distributed_session,
    "memory_session": memory_session,
    "resumed_weights": release_and_resume("weights"),
    "resumed_memory": release_and_resume(),
    "reset_tensors": lambda world: world.check("reset_tensors"),
}
"""Every way by which the content of the weights becomes another, or unknown."""

NO_CHANGES: dict[str, Callable[[ManagerWorld], Any]] = {
    "checksum": lambda world: world.check("checksum"),
    "snapshot": lambda world: world.check("snapshot"),
    "bucket_outside_a_session": lambda world: world.tensors(),
    "broadcast_outside_a_session": lambda world: world.distributed(),
    "end_outside_a_session": lambda world: world.end(),
}


class TestContentUnknown:
    @pytest.mark.parametrize("path", CHANGES)
    def test_nothing_old_is_visible(self, world: ManagerWorld, path: str) -> None:
        before = world.harness.epoch
        CHANGES[path](world)
        assert world.cached_tokens() == 0
        assert world.harness.epoch != before
        assert world.harness.epoch.startswith("unknown")
        world.assert_serves()

    @pytest.mark.parametrize("path", CHANGES)
    def test_a_plan_for_another_update_does_not_help(self, world: ManagerWorld, path: str) -> None:
        world.push(PLAN.model_copy(update={"update_id": "another"}).to_wire())
        CHANGES[path](world)
        assert world.cached_tokens() == 0

    @pytest.mark.parametrize("path", [name for name in CHANGES if "resumed" not in name])
    def test_running_requests_neither_publish_nor_leak(
        self, world: ManagerWorld, path: str
    ) -> None:
        running = world.harness.start(HELD)
        CHANGES[path](world)
        assert running.req.skip_radix_cache_insert
        assert world.cached_tokens() == 0
        world.harness.finish(running)
        assert world.cached_tokens(HELD) == 0
        assert world.journal.status()["blocked_tokens"] == 0
        world.assert_serves()

    @pytest.mark.parametrize("path", CHANGES)
    def test_mode_observe_follows_the_weights(self, path: str) -> None:
        world = warm(ManagerWorld(mode="observe"))
        before = world.harness.epoch
        CHANGES[path](world)
        assert world.harness.epoch != before
        assert all(key.startswith("OBSERVE:") for key in world.journal.reports)

    def test_a_later_update_may_keep_again(self, world: ManagerWorld) -> None:
        tensor_session(world)
        world.harness.run(PREFIX)
        source = world.harness.epoch
        world.push(PLAN.model_copy(update={"rules": {source: PLAN.rules["initial"]}}).to_wire())
        assert world.disk().success
        assert world.cached_tokens() == len(PREFIX)


class TestContentUnchanged:
    @pytest.mark.parametrize("path", NO_CHANGES)
    def test_everything_stays(self, world: ManagerWorld, path: str) -> None:
        version = world.target.version
        NO_CHANGES[path](world)
        assert world.target.version == version
        assert world.cached_tokens() == len(PREFIX)
        assert world.journal.reports == {}

    def test_released_and_resumed_cache_was_flushed_by_sglang(self, world: ManagerWorld) -> None:
        release_and_resume("kv_cache")(world)
        assert (world.cached_tokens(), world.flushes) == (0, 1)
        assert world.harness.epoch == "initial"

    def test_released_weights_alone_touch_nothing(self, world: ManagerWorld) -> None:
        world.release("weights")
        assert world.cached_tokens() == len(PREFIX)


class TestFailedUpdates:
    """Refused before, or torn in the middle: from the outside the two look the same."""

    @pytest.mark.parametrize("outcome", ["refuses", "tears"])
    @pytest.mark.parametrize("path", ["disk", "ipc"])
    def test_answered_failure_evicts(
        self, world: ManagerWorld, path: str, outcome: Outcome
    ) -> None:
        world.push(PLAN.to_wire())
        world.target.outcome = outcome
        output = getattr(world, path)()
        assert not output.success
        assert "reason=UPDATE_FAILED" in output.message
        assert world.cached_tokens() == 0
        world.assert_serves()

    @pytest.mark.parametrize("path", ["disk", "ipc"])
    def test_exception_evicts(self, world: ManagerWorld, path: str) -> None:
        world.push(PLAN.to_wire())
        world.target.outcome = "raises"
        with pytest.raises(RuntimeError, match="torn"):
            getattr(world, path)()
        assert world.cached_tokens() == 0
        assert world.journal.failures["UPDATE_RAISED"] == 1
        assert world.journal.reports["EVICT:UPDATE_RAISED"] == 1

    @pytest.mark.parametrize("path", ["disk", "ipc"])
    @pytest.mark.parametrize("outcome", ["refuses", "tears"])
    def test_draft_that_fails_after_the_target_loaded(self, path: str, outcome: Outcome) -> None:
        world = warm(ManagerWorld(draft=True))
        assert world.draft is not None
        world.draft.outcome = outcome
        world.push(PLAN.to_wire())
        output = getattr(world, path)()
        assert world.target.version == 1
        assert not output.success
        assert "reason=UPDATE_FAILED" in output.message
        assert world.cached_tokens() == 0

    @pytest.mark.parametrize("outcome", ["refuses", "tears", "raises"])
    @pytest.mark.parametrize("path", ["tensors", "distributed"])
    def test_bucket_that_fails_after_a_good_one(
        self, world: ManagerWorld, path: str, outcome: Outcome
    ) -> None:
        world.begin()
        assert getattr(world, path)().success
        world.harness.run(PREFIX)
        world.target.outcome = outcome
        if outcome == "raises":
            with pytest.raises(RuntimeError, match="torn"):
                getattr(world, path)()
        else:
            assert not getattr(world, path)().success
        world.harness.run(PREFIX)
        assert world.cached_tokens() == 0
        world.end()
        assert world.cached_tokens() == 0
        assert world.harness.epoch.startswith("unknown")
        world.assert_serves()

    def test_good_update_after_a_failed_one(self, world: ManagerWorld) -> None:
        world.target.outcome = "tears"
        world.disk()
        world.target.outcome = "loads"
        world.push(PLAN.to_wire())
        assert world.disk().success
        world.harness.run(PREFIX)
        again = PLAN.model_copy(update={"update_id": "u2", "target_key": "C"})
        world.push(again.model_copy(update={"rules": {"B": PLAN.rules["initial"]}}).to_wire())
        output = world.disk(update_id="u2")
        assert "action=KEEP" in output.message
        assert world.cached_tokens() == len(PREFIX)


class TestSessions:
    @pytest.mark.parametrize("bucket", ["tensors", "distributed"])
    @pytest.mark.parametrize("flush", [True, False])
    def test_what_ran_between_buckets_is_gone_at_the_end(
        self, world: ManagerWorld, bucket: str, flush: bool
    ) -> None:
        tails = [tuple(range(start, start + 40)) for start in (3000, 3100, 3200)]
        world.begin()
        world.harness.run(tails[0])
        for tail in tails[1:]:
            getattr(world, bucket)(flush)
            world.harness.run(tail)
        world.end()
        assert [world.cached_tokens(tokens) for tokens in (PREFIX, *tails)] == [0, 0, 0, 0]
        world.assert_serves()

    def test_request_that_spans_the_whole_session(self, world: ManagerWorld) -> None:
        running = world.harness.start(HELD)
        tensor_session(world)
        world.harness.finish(running)
        assert world.cached_tokens(HELD) == 0
        world.assert_serves()

    def test_request_that_starts_inside_and_ends_after(self, world: ManagerWorld) -> None:
        world.begin()
        world.tensors()
        running = world.harness.start(HELD)
        world.tensors()
        world.end()
        assert running.req.skip_radix_cache_insert
        world.harness.finish(running)
        assert world.cached_tokens(HELD) == 0
        world.assert_serves()

    def test_one_decision_for_all_buckets(self, world: ManagerWorld) -> None:
        world.begin()
        for _ in range(5):
            assert "[xver" not in world.tensors().message
        assert "reason=WEIGHTS_WRITTEN_IN_SESSION" in world.end().message
        assert world.journal.reports == {
            "EVICT:WEIGHT_SESSION_OPENED": 1,
            "EMPTY:WEIGHTS_WRITTEN_IN_SESSION": 1,
        }

    def test_disk_update_inside_a_session(self, world: ManagerWorld) -> None:
        """Its plan was made for weights that somebody may have written over."""
        world.begin()
        world.push(PLAN.to_wire())
        assert world.disk().success
        world.harness.run(PREFIX)
        world.end()
        assert world.cached_tokens() == 0
        assert world.harness.epoch.startswith("unknown")
        world.assert_serves()

    @pytest.mark.parametrize("raises", [False, True])
    def test_session_that_is_never_ended_caches_nothing(
        self, world: ManagerWorld, raises: bool
    ) -> None:
        world.begin()
        world.target.outcome = "raises" if raises else "loads"
        if raises:
            with pytest.raises(RuntimeError, match="torn"):
                world.tensors()
        for _ in range(3):
            world.harness.run(PREFIX)
            assert world.cached_tokens() == 0
        assert world.journal.status()["is_suspended"]
        world.harness.check_slots()

    def test_second_begin_is_refused_and_the_session_lives_on(self, world: ManagerWorld) -> None:
        assert world.begin().success
        assert not world.begin().success
        assert world.tensors().success
        assert world.end().success
        assert world.cached_tokens() == 0


class TestDisk:
    def test_plan_of_this_update_keeps(self, world: ManagerWorld) -> None:
        world.push(PLAN.to_wire())
        output = world.disk()
        assert "action=KEEP" in output.message
        assert world.cached_tokens() == len(PREFIX)
        assert world.harness.epoch == "B"

    def test_two_plans_then_two_updates(self, world: ManagerWorld) -> None:
        """The order of two concurrent updates: the plan that was overtaken keeps nothing."""
        second = PLAN.model_copy(update={"update_id": "u2", "target_key": "C"})
        world.push(PLAN.to_wire())
        world.push(second.to_wire())
        assert "reason=NO_PLAN" in world.disk().message
        assert world.cached_tokens() == 0
        world.harness.run(PREFIX)
        assert "action=EVICT" in world.disk(update_id="u2").message
        assert world.cached_tokens() == 0

    @pytest.mark.parametrize("between", ["ipc", "tensor_session", "memory_session"])
    def test_plan_does_not_outlive_another_change(self, world: ManagerWorld, between: str) -> None:
        """The plan knows nothing of what came between it and its update."""
        world.push(PLAN.to_wire())
        CHANGES[between](world)
        world.harness.run(PREFIX)
        world.disk()
        assert world.cached_tokens() == 0

    def test_same_bytes(self, world: ManagerWorld) -> None:
        rules = {"initial": PLAN.rules["initial"]}
        same = PLAN.model_copy(update={"target_key": "initial", "rules": rules})
        running = world.harness.start(HELD)
        world.push(same.to_wire())
        assert "action=SAME" in world.disk().message
        world.harness.finish(running)
        assert world.cached_tokens(HELD) == len(HELD)

    def test_other_checkpoint_than_planned(self, world: ManagerWorld) -> None:
        world.push(PLAN.to_wire())
        assert "reason=NO_PLAN" in world.disk(path=PATH + "/other").message
        assert world.cached_tokens() == 0

    def test_rollback_makes_pure_nodes_pure_again_and_mixed_ones_not(
        self, world: ManagerWorld
    ) -> None:
        keep = PLAN.rules["initial"]
        world.push(PLAN.to_wire())
        world.disk()
        hybrid = (*PREFIX, *range(4000, 4020))
        world.harness.run(hybrid)
        back = PLAN.model_copy(
            update={"target_key": "initial", "rules": {"initial": keep, "B": keep}}
        )
        world.push(back.to_wire())
        world.disk()
        masks = {
            len(node.key): node.xver_lineage.mask
            for node in world.harness.core.subtree(world.harness.core.root_node)[1:]
        }
        assert masks == {len(PREFIX): 0b01, 20: 0b11}
        assert {content.own for content in world.harness.reads(hybrid)} == {"initial", "B"}
