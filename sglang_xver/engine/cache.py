"""The prefix cache: SGLang's unified radix cache that obeys the plan of the last weight update."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.disaggregation.kv_events import StorageMedium
from sglang.srt.mem_cache.base_prefix_cache import (
    DecLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import BaseEvictionResult
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_xver.engine.placement import RequestPlacer
from sglang_xver.engine.plan_walk import PlanWalk
from sglang_xver.engine.tree import XverTreeCore
from sglang_xver.plan import Plan
from sglang_xver.report import TreeChange

TREE_CORE_NAME = "xver"


class XverRadixCache(UnifiedRadixCache):
    """``UnifiedRadixCache`` over :class:`XverTreeCore`.

    Until a plan or a condemnation is applied it behaves as its base class does, which is what
    modes off and observe rely on.
    """

    tree_core: XverTreeCore

    def __init__(self, params: Any) -> None:
        params.tree_core_backend = TREE_CORE_NAME
        self.placer = RequestPlacer()
        self.counts_foreign = False
        """Whether old KV is looked for though no plan kept any, as mode observe must."""
        self.is_suspended = False
        """Whether nothing is matched and nothing inserted: the weights are being written."""
        self.declined_inserts = 0
        self.healed_nodes = 0
        super().__init__(params)

    def reset(self) -> None:
        """Drop everything; a flush has no condition."""
        super().reset()
        self.placer.restricted_classes = frozenset()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match in the request's own namespace, and note how much of the match is old KV.

        Sets ``req.xver_kept_old_tokens``: matched tokens whose path is not purely the current
        weights' own.
        """
        core = self.tree_core
        if self.is_suspended:
            return core.empty_match_result
        try:
            params = self.placer.place(params)
        except Exception as error:
            core.on_failure("PLACEMENT_RAISED", error)
            return core.empty_match_result
        result = super().match_prefix(params)
        req = params.req
        # SGLang counts a request's cached tokens once, when its first prefill is scheduled.
        if req is not None and not req._cache_breakdown_computed:
            req.xver_kept_old_tokens = self._count_kept_old(result)
        return result

    def _count_kept_old(self, result: MatchResult) -> int:
        core = self.tree_core
        if not (core.has_foreign or self.counts_foreign):
            return 0
        try:
            return core.foreign_tokens_above(result.last_device_node)
        except Exception as error:
            core.on_failure("SPLIT_RAISED", error)
            return int(result.device_prefix_len)

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert, unless that would hand the request KV that it did not compute or match.

        A stale node in the way is replaced when nobody holds it (the tree heals). Otherwise the
        insert is declined: the request stays on its own pages, which are freed when it finishes.
        """
        core = self.tree_core
        if self.is_suspended:
            return self._decline()
        if self.disable or not (core.has_foreign or core.blocked):
            return super().insert(params)
        try:
            stale = core.foreign_overlap(params)
            while stale is not None and self._remove_if_free(stale):
                stale = core.foreign_overlap(params)
        except Exception as error:
            core.on_failure("INSERT_RAISED", error)
            return self._decline()
        return super().insert(params) if stale is None else self._decline()

    def _decline(self) -> InsertResult:
        self.declined_inserts += 1
        return InsertResult(
            prefix_len=0,
            last_device_node=self.tree_core.root_node.id,
            rotation_tail_declined=True,
            mamba_exist=True,
        )

    def dec_lock_ref(self, *args: Any, **kwargs: Any) -> DecLockRefResult:
        """Release a lock, then remove condemned nodes that nobody holds any more."""
        result = super().dec_lock_ref(*args, **kwargs)
        if self.tree_core.blocked:
            try:
                self._purge(list(self.tree_core.blocked.values()))
            except Exception as error:
                # What is left stays invisible, and the next release tries again.
                self.tree_core.on_failure("PURGE_RAISED", error)
        return result

    def apply_plan(self, plan: Plan) -> TreeChange:
        """Make ``plan.target_key`` the current epoch and cut every branch at its limit.

        What lies deeper is removed, or blocked while a request holds it.
        """
        core = self.tree_core
        core.epochs.advance(plan.target_key)
        judgement = PlanWalk(core, plan, self._apply_cache_actions).run()
        core.has_foreign = judgement.has_foreign
        self.placer.restricted_classes = judgement.restricted_classes
        evicted, blocked = self._condemn(judgement.condemned)
        self._reconcile_events()
        core.forget_dead_epochs()
        return TreeChange(judgement.kept_tokens, evicted, blocked)

    def condemn_all(self) -> TreeChange:
        """Make nothing visible: remove every node, block those that a request holds.

        The current epoch becomes one that equals no other, because the content of the weights is
        not known.
        """
        core = self.tree_core
        core.epochs.advance_unknown()
        nodes = core.subtree(core.root_node)[1:]
        evicted, blocked = self._condemn(nodes)
        core.has_foreign = False
        self.placer.restricted_classes = frozenset()
        self._reconcile_events()
        core.forget_dead_epochs()
        return TreeChange(0, evicted, blocked)

    def blocked_tokens(self) -> int:
        """Return the tokens that are condemned but still held by requests."""
        return sum(len(node.key) for node in self.tree_core.blocked.values())

    def _reconcile_events(self) -> None:
        """Withdraw blocks that are not exact any more; announce those that are exact again."""
        core = self.tree_core
        if not core.kv_events.enabled:
            return
        for node in core.subtree(core.root_node)[1:]:
            if node.id in core.blocked:
                core.kv_events.record_remove(node)
            else:
                core.kv_events.reconcile(node)

    def _condemn(self, nodes: list[UnifiedTreeNode]) -> tuple[int, int]:
        """Block ``nodes``, remove those that are free; return (evicted, blocked) tokens."""
        core = self.tree_core
        total = sum(len(node.key) for node in nodes)
        # Blocked first: should a removal raise, what is left is invisible all the same.
        for node in nodes:
            core.blocked[node.id] = node
        self._purge(nodes)
        blocked = sum(len(node.key) for node in nodes if node.id in core.blocked)
        return total - blocked, blocked

    def _remove_if_free(self, top: UnifiedTreeNode) -> bool:
        """Remove ``top`` and everything below it unless something in there is held."""
        nodes = self.tree_core.subtree(top)
        if any(self.tree_core.is_held(node) for node in nodes):
            return False
        self._purge(nodes)
        self.healed_nodes += len(nodes)
        return True

    def _purge(self, nodes: list[UnifiedTreeNode]) -> None:
        """Remove every node of ``nodes`` that is unheld and childless, children first.

        Node ids grow with creation, but a split makes a parent that is younger than its child, so
        the order comes from depth: the nodes are visited until nothing more can go.
        """
        core = self.tree_core
        result = BaseEvictionResult()
        try:
            pending = list(nodes)
            removed = True
            while pending and removed:
                removed = False
                for node in reversed(pending):
                    if not node.children and not core.is_held(node):
                        self._remove_leaf(node, result)
                        removed = True
                pending = [node for node in pending if node.id in core._node_arena]
        finally:
            # For every tensor it gets back, the allocator copies its whole list of free slots.
            for slots in result.device_frees.values():
                slots[:] = [torch.cat(slots)]
            self._apply_eviction_result(result)

    def _remove_leaf(self, node: UnifiedTreeNode, result: BaseEvictionResult) -> None:
        """Detach ``node``, then release its slots into ``result``.

        In this order a failure half-way can leak slots, but never free one twice.
        """
        core = self.tree_core
        parent = node.parent
        try:
            core._remove_leaf_from_parent(node)
            core._update_evictable_leaf_sets(parent)
            core._release_all_component_layers(
                node,
                StorageMedium.GPU,
                result.tracker,
                result.device_frees,
                result.host_frees,
                cache_actions=result.cache_actions,
            )
        except Exception:
            if node.id not in core._node_arena:
                # SGLang's eviction looks up every leaf by its id and must not find this one.
                core.evictable_device_leaves.discard(node)
            raise
