"""The cache obeys the plan: what may be matched, what may be inserted, what becomes of the rest."""

from __future__ import annotations

import pytest

from sglang_xver.lineage import UNLIMITED, Lineage
from tests.unit.engine.tree_harness import Harness, plan

PAGES = pytest.mark.parametrize("page_size", [1, 16])
PREFIX = tuple(range(1000, 1064))
LONG = tuple(range(2000, 2160))


def epochs_of(contents: list) -> set[str]:
    return {epoch for content in contents for epoch in content.epochs}


def owners_of(contents: list) -> list[str]:
    return [content.own for content in contents]


class TestKeep:
    @PAGES
    def test_kept_prefix_is_matched_and_its_suffix_is_hybrid(self, page_size: int) -> None:
        h = Harness(page_size)
        h.run(PREFIX)
        change = h.update(plan("B", initial=UNLIMITED))
        assert change.kept_tokens == len(PREFIX)
        assert change.evicted_tokens == change.blocked_tokens == 0
        request = h.run(PREFIX + tuple(range(32)))
        assert request.matched == len(PREFIX)
        reads = h.reads(PREFIX + tuple(range(32)))
        assert owners_of(reads) == ["initial"] * 64 + ["B"] * 32
        tags = [n.xver_lineage for n in h.core.subtree(h.core.root_node)[1:]]
        assert [tag.is_hybrid for tag in tags] == [False, True]
        h.check_slots()

    def test_same_epoch_stays_pure(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("initial", initial=UNLIMITED))
        assert not h.core.has_foreign
        assert len(h.reads(PREFIX)) == len(PREFIX)

    def test_rollback_makes_surviving_nodes_pure_again(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        h.run(PREFIX + LONG)
        h.update(plan("initial", initial=UNLIMITED))
        # The hybrid suffix needs a rule of its own for B and has none.
        assert epochs_of(h.reads(PREFIX + LONG)) == {"initial"}
        assert not h.core.has_foreign
        h.check_slots()


class TestEvict:
    @PAGES
    def test_epoch_without_a_rule_is_evicted(self, page_size: int) -> None:
        h = Harness(page_size)
        h.run(PREFIX)
        h.run(LONG)
        change = h.update(plan("B"))
        assert change == (0, len(PREFIX) + len(LONG), 0)
        assert h.reads(PREFIX) == []
        h.check_slots()
        assert h.cache.evictable_size() == 0

    def test_never_chained(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        h.run(LONG)
        h.update(plan("C", B=UNLIMITED))
        assert h.reads(PREFIX) == []
        assert epochs_of(h.reads(LONG)) == {"B"}

    def test_hybrid_needs_a_rule_for_every_epoch_on_its_path(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        h.run(PREFIX + LONG)
        h.update(plan("C", B=UNLIMITED, initial=len(PREFIX)))
        assert len(h.reads(PREFIX + LONG)) == len(PREFIX)
        h.check_slots()


class TestDepthLimit:
    @pytest.mark.parametrize(
        "page_size, limit, kept", [(1, 100, 100), (16, 100, 96), (16, 15, 0), (1, 1, 1)]
    )
    def test_branch_is_cut_at_a_page_boundary(self, page_size: int, limit: int, kept: int) -> None:
        h = Harness(page_size)
        h.run(LONG)
        change = h.update(plan("B", initial=limit))
        assert change.kept_tokens == kept
        assert change.evicted_tokens == len(LONG) - kept
        assert len(h.reads(LONG)) == kept
        h.check_slots()

    def test_children_below_the_cut_go_too(self) -> None:
        h = Harness()
        h.run(LONG)
        h.run(LONG[:50] + PREFIX)
        h.update(plan("B", initial=60))
        assert len(h.reads(LONG)) == 60
        assert len(h.reads(LONG[:50] + PREFIX)) == 60
        h.update(plan("C", initial=40))
        assert len(h.reads(LONG)) == 40
        h.check_slots()


class TestLockedNodes:
    @PAGES
    def test_held_nodes_are_invisible_and_go_when_released(self, page_size: int) -> None:
        h = Harness(page_size)
        h.run(PREFIX)
        running = h.start(PREFIX + tuple(range(16)))
        assert running.matched == len(PREFIX)
        change = h.update(plan("B"))
        assert change.blocked_tokens == len(PREFIX)
        assert h.reads(PREFIX) == []
        fresh = h.run(PREFIX + tuple(range(16)))
        assert fresh.matched == 0
        assert h.cache.declined_inserts > 0
        assert epochs_of([h.content[s] for s in running.row[: len(PREFIX)]]) == {"initial"}
        h.check_slots()
        h.finish(running)
        assert h.cache.blocked_tokens() == 0
        assert h.core.blocked == {}
        h.check_slots()
        h.run(PREFIX)
        assert epochs_of(h.reads(PREFIX)) == {"B"}

    def test_straddler_is_never_published(self) -> None:
        h = Harness()
        running = h.start(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        h.finish(running)
        assert h.reads(PREFIX) == []
        h.check_slots()

    def test_second_update_while_blocked(self) -> None:
        h = Harness()
        h.run(PREFIX)
        running = h.start((*PREFIX, 1, 2))
        h.update(plan("B"))
        h.update(plan("C", initial=UNLIMITED, B=UNLIMITED))
        assert h.reads(PREFIX) == []
        h.finish(running)
        h.check_slots()
        assert h.cache.evictable_size() == 0


class TestNativeRecompute:
    """Trap T1: an insert must not switch a request back to KV that it did not compute."""

    @PAGES
    def test_unheld_old_branch_is_replaced(self, page_size: int) -> None:
        h = Harness(page_size)
        h.run(PREFIX + LONG)
        h.update(plan("B", initial=UNLIMITED))
        native = h.start(PREFIX, max_match=0)
        h.publish(native)
        row = [h.content[slot] for slot in native.row[: len(PREFIX)]]
        assert epochs_of(row) == {"B"}
        h.check_slots()
        h.finish(native)
        assert epochs_of(h.reads(PREFIX + LONG)) == {"B"}
        assert h.cache.healed_nodes > 0
        h.check_slots()

    @PAGES
    def test_held_old_branch_is_left_and_the_insert_declined(self, page_size: int) -> None:
        h = Harness(page_size)
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        reuser = h.start(PREFIX + tuple(range(16)))
        native = h.start(PREFIX, max_match=0)
        h.publish(native)
        assert epochs_of([h.content[slot] for slot in native.row[: len(PREFIX)]]) == {"B"}
        assert h.cache.declined_inserts == 1
        h.check_slots()
        h.finish(native)
        h.finish(reuser)
        h.check_slots()

    def test_partly_matched_request_keeps_its_own_rows(self) -> None:
        h = Harness()
        h.run(LONG)
        h.update(plan("B", initial=UNLIMITED))
        partly = h.start(LONG, max_match=40)
        assert partly.matched == 40
        h.publish(partly)
        owners = owners_of([h.content[slot] for slot in partly.row])
        assert owners == ["initial"] * 40 + ["B"] * 120
        h.finish(partly)
        h.check_slots()

    def test_native_request_does_not_adopt_a_hybrid_suffix(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        h.run(PREFIX + LONG)
        native = h.start(PREFIX + LONG, max_match=0)
        h.publish(native)
        assert epochs_of([h.content[slot] for slot in native.row]) == {"B"}
        h.finish(native)
        assert epochs_of(h.reads(PREFIX + LONG)) == {"B"}
        h.check_slots()

    def test_node_with_older_bits_than_its_ancestors_is_not_adopted(self) -> None:
        """A host copy that came back may carry bits that no ancestor has."""
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B"))
        h.run(PREFIX)
        node = h.core.subtree(h.core.root_node)[1]
        node.xver_lineage = Lineage(h.core.epochs.current, h.core.epochs.current_bit | 1)
        h.core.has_foreign = True
        native = h.start(PREFIX, max_match=0)
        row = list(native.row)
        h.publish(native)
        assert native.row == row
        h.finish(native)
        h.check_slots()

    def test_equal_lineage_is_shared(self) -> None:
        h = Harness()
        h.run(PREFIX)
        h.update(plan("B", initial=UNLIMITED))
        first = h.start(PREFIX + LONG)
        second = h.start(PREFIX + LONG)
        h.publish(first)
        h.publish(second)
        assert second.row == first.row
        assert h.cache.declined_inserts == 0
        h.finish(first)
        h.finish(second)
        h.check_slots()


class TestManyUpdates:
    def test_masks_stay_small(self) -> None:
        h = Harness()
        h.run(PREFIX)
        for number in range(300):
            h.update(plan(f"E{number}", initial=UNLIMITED))
            h.run((number, *LONG[:8]))
        assert epochs_of(h.reads(PREFIX)) == {"initial"}
        assert len(h.core.epochs) <= 61
        assert h.epoch == "E299"
        masks = [node.xver_lineage.mask for node in h.core.subtree(h.core.root_node)]
        assert max(masks).bit_length() <= 61
        h.update(plan("last", E299=UNLIMITED))
        assert h.reads(PREFIX) == []
        h.check_slots()

    def test_condemnations_leave_no_trace(self) -> None:
        h = Harness()
        running = h.start(PREFIX)
        h.publish(running)
        for _ in range(300):
            h.cache.condemn_all()
        assert len(h.core.epochs) <= 61
        assert h.reads(PREFIX) == []
        running.req.skip_radix_cache_insert = True
        h.finish(running)
        h.check_slots()
        h.run(PREFIX)
        assert epochs_of(h.reads(PREFIX)) == {h.epoch}


class TestCondemnAll:
    def test_nothing_stays_and_the_epoch_equals_no_other(self) -> None:
        h = Harness()
        h.run(PREFIX)
        running = h.start(LONG)
        h.publish(running)
        change = h.cache.condemn_all()
        assert (change.evicted_tokens, change.blocked_tokens) == (len(PREFIX), len(LONG))
        assert h.reads(PREFIX) == h.reads(LONG) == []
        first = h.epoch
        h.cache.condemn_all()
        assert h.epoch != first
        running.req.skip_radix_cache_insert = True
        h.finish(running)
        h.check_slots()

    def test_whatever_a_failing_removal_leaves_is_invisible(self, monkeypatch) -> None:
        h = Harness()
        h.run(PREFIX)
        h.run(LONG)

        def fail(*_: object) -> None:
            raise RuntimeError("injected")

        monkeypatch.setattr(h.cache, "_remove_leaf", fail)
        with pytest.raises(RuntimeError, match="injected"):
            h.cache.condemn_all()
        assert h.reads(PREFIX) == h.reads(LONG) == []
