"""What weight updates do to the cache, and what must come of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_xver.engine.census import take_census
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan
from tests.fuzz.faults import Fault, injected
from tests.fuzz.state import State
from tests.fuzz.tree_view import TreeView
from tests.fuzz.truth import Rule, Rules


class UpdateSteps(State):
    """Steps of the updates. Each returns False when it found nothing to do."""

    def do_update(self, target: str, rules: dict[str, list[Any]]) -> bool:
        """Apply a plan: exactly what it allows stays visible."""
        limits = {key: Rule(*rule) for key, rule in rules.items()}
        before = TreeView(self.h)
        self._judge(limits, target, is_same=target == self.h.epoch)
        change = self.h.update(_plan(limits, target))
        after = TreeView(self.h)
        stays = before.visible_slots[self.truth.is_kept[before.visible_slots]]
        assert np.array_equal(np.sort(stays), np.sort(after.visible_slots)), (
            "the plan kept other KV than it allows"
        )
        assert change.kept_tokens == len(after.visible_slots)
        assert change.blocked_tokens == self.h.cache.blocked_tokens() == after.blocked_tokens
        assert sum(change) == len(before.slots), "kept, evicted and blocked don't add up"
        self._check_census(after)
        self.count("kept" if change.kept_tokens else "kept nothing")
        return True

    def _check_census(self, view: TreeView) -> None:
        truth, census = self.truth, take_census(self.h.core)
        lineage = truth.lineage[view.visible_slots]
        own = truth.own[view.visible_slots] == truth.epoch_id(self.h.epoch)
        pure = lineage == truth.pure_lineage(self.h.epoch)
        sizes = (census.native_tokens, census.hybrid_tokens, census.kept_old_tokens)
        expected = (pure.sum(), (own & ~pure).sum(), (~own).sum())
        assert sizes == expected, f"the census counts {sizes}, there are {expected}"

    def _judge(self, limits: Rules, target: str, is_same: bool) -> None:
        self.truth.judge(limits, target)
        if is_same:
            for request in self.running:
                row, protected = self.h.row(request), request.req.kv.cache_protected_len
                self.truth.permit_tail(row, protected, target)

    def do_update_often(self, count: int) -> bool:
        """Roll out many versions in a row, each of which may read everything before it."""
        for _ in range(count):
            rules = {key: [UNLIMITED, {}] for key in self.present()}
            self.do_update(self.fresh_epoch(), rules)
        return True

    def do_condemn(self) -> bool:
        """The weights are unknown."""
        total = len(TreeView(self.h).slots)
        self.truth.forbid_all()
        self.h.bar_straddlers()
        epoch = self.h.epoch
        change = self.h.cache.condemn_all()
        after = TreeView(self.h)
        assert len(after.visible_slots) == 0
        assert change.kept_tokens == 0
        assert change.blocked_tokens == len(after.slots)
        assert sum(change) == total
        assert self.h.epoch != epoch
        assert not self.h.cache.placer.restricted_classes
        return True

    def do_write_weights(self, ends: bool) -> bool:
        """Open or close a session that writes weights bucket by bucket: nothing is cached in it."""
        if self.h.cache.is_suspended != ends:
            return False
        self.do_condemn()
        self.h.cache.is_suspended = not ends
        return True

    def do_block_all(self) -> bool:
        """The last resort of a failing eviction."""
        self.truth.forbid_all()
        self.h.bar_straddlers()
        epoch = self.h.epoch
        self.h.core.block_all()
        assert self.h.epoch != epoch
        self.is_lingering, self.are_events_exact = True, False
        return True

    def do_fail(self, target: str, rules: dict[str, list[Any]], fault: list[Any]) -> bool:
        """Apply a plan that breaks half-way, then fail closed as the update controller does."""
        limits = {key: Rule(*rule) for key, rule in rules.items()}
        before, epoch = TreeView(self.h), self.h.epoch
        with injected(self.h, Fault(*fault)) as injection:
            try:
                self.h.update(_plan(limits, target))
            except RuntimeError:
                self.h.bar_straddlers()
                self._fail_closed()
        if not injection.has_fired:
            self._judge(limits, target, is_same=target == epoch)
            return True
        self.truth.forbid_all()
        self.is_lingering = self.has_failed = True
        self.are_events_exact = False
        self.count("fault")
        self._note_losses(before)
        assert len(TreeView(self.h).visible_slots) == 0, "old KV is visible after a fault"
        assert self.h.epoch not in (epoch, target), "a fault left the weights known"
        return True

    def _fail_closed(self) -> None:
        try:
            self.h.cache.condemn_all()
        except RuntimeError:
            self.count("second fault")
            self.h.core.block_all()

    def _note_losses(self, before: TreeView) -> None:
        """Faults may leak, but only what was in the tree, and they never free a slot twice."""
        owners = self.owners(TreeView(self.h))
        lost = np.flatnonzero(owners == 0)
        fresh = np.setdiff1d(lost, self.lost)
        assert np.isin(fresh, before.slots).all(), "a fault lost slots outside the tree"
        self.count("lost slots", len(fresh))
        self.lost = lost

    def do_flush(self) -> bool:
        """Reset everything; SGLang does that on an idle server only."""
        if self.running:
            return False
        self.h.cache.reset()
        self.h.allocator.clear()
        self.truth.forbid_all()
        self.lost = self.lost[:0]
        self.is_lingering = self.has_failed = False
        self.are_events_exact = True
        return True


def _plan(limits: Rules, target: str) -> Plan:
    return Plan(
        update_id="u",
        target_key=target,
        model_path="m",
        rules={
            key: EpochRule(keep_max_tokens=rule.keep, families=rule.families, reason="T")
            for key, rule in limits.items()
        },
    )
