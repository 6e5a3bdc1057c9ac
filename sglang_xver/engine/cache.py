"""The prefix cache: SGLang's unified radix cache that obeys the plan of the last weight update."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.kv_events import StorageMedium
from sglang.srt.mem_cache.base_prefix_cache import DecLockRefResult, InsertParams, InsertResult
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import BaseEvictionResult
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_xver.engine.tree import XverTreeCore
from sglang_xver.lineage import UNLIMITED, epochs_in, strictest
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
        self.declined_inserts = 0
        self.healed_nodes = 0
        super().__init__(params)

    # ---- what requests do ----

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert, unless that would hand the request KV that it did not compute or match.

        A stale node in the way is replaced when nobody holds it (the tree heals). Otherwise the
        insert is declined: the request stays on its own pages, which are freed when it finishes.
        """
        core = self.tree_core
        if self.disable or not (core.has_foreign or core.blocked):
            return super().insert(params)
        stale = core.foreign_overlap(params)
        while stale is not None:
            if not self._remove_if_free(stale):
                self.declined_inserts += 1
                return InsertResult(
                    prefix_len=0,
                    last_device_node=core.root_node.id,
                    rotation_tail_declined=True,
                    mamba_exist=True,
                )
            stale = core.foreign_overlap(params)
        return super().insert(params)

    def dec_lock_ref(self, *args: Any, **kwargs: Any) -> DecLockRefResult:
        """Release a lock, then remove condemned nodes that nobody holds any more."""
        result = super().dec_lock_ref(*args, **kwargs)
        if self.tree_core.blocked:
            self._purge(list(self.tree_core.blocked.values()))
        return result

    # ---- what a weight update does ----

    def apply_plan(self, plan: Plan) -> TreeChange:
        """Make ``plan.target_key`` the current epoch and cut every branch at its limit.

        The limit of a node is the strictest over all epochs on its path, floored to a page. What
        lies deeper is removed, or blocked while a request holds it.
        """
        core = self.tree_core
        core.epochs.advance(plan.target_key)
        limits: dict[int, int] = {}
        condemned: list[UnifiedTreeNode] = []
        kept_tokens = 0
        has_foreign = False
        stack = [(child, 0) for child in core.root_node.children.values()]
        while stack:
            node, start = stack.pop()
            limit = self._limit_tokens(node.xver_lineage.mask, plan, limits)
            end = start + len(node.key)
            if node.id in core.blocked or 0 <= limit <= start:
                condemned.extend(core.subtree(node))
                continue
            if limit != UNLIMITED and limit < end:
                upper, action = core._split_node(node.key, node, limit - start)
                if action is not None:
                    self._apply_cache_actions([action])
                condemned.extend(core.subtree(node))
                node, end = upper, limit
            else:
                stack.extend((child, end) for child in node.children.values())
            kept_tokens += end - start
            has_foreign |= node.xver_lineage.mask != core.epochs.current_bit
        core.has_foreign = has_foreign
        evicted, blocked = self._condemn(condemned)
        core.forget_dead_epochs()
        return TreeChange(kept_tokens, evicted, blocked)

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
        core.forget_dead_epochs()
        return TreeChange(0, evicted, blocked)

    def tokens_by_epoch(self) -> dict[str, int]:
        """Return the tokens in the tree by the epoch that produced them; blocked ones excluded."""
        core = self.tree_core
        sizes: dict[str, int] = {}
        for node in core.subtree(core.root_node)[1:]:
            if node.id not in core.blocked:
                key = core.epochs.key(node.xver_lineage.own)
                sizes[key] = sizes.get(key, 0) + len(node.key)
        return sizes

    def epochs_present(self) -> list[str]:
        """Return the keys of all epochs on any visible path, oldest first."""
        core = self.tree_core
        mask = 0
        for node in core.subtree(core.root_node)[1:]:
            if node.id not in core.blocked:
                mask |= node.xver_lineage.mask
        return [core.epochs.key(index) for index in epochs_in(mask)]

    def blocked_tokens(self) -> int:
        """Return the tokens that are condemned but still held by requests."""
        return sum(len(node.key) for node in self.tree_core.blocked.values())

    def _limit_tokens(self, mask: int, plan: Plan, limits: dict[int, int]) -> int:
        """Return the page-aligned depth limit for a lineage; ``limits`` memoises by mask."""
        limit = limits.get(mask)
        if limit is None:
            epochs = self.tree_core.epochs
            limit = strictest(plan.keep_max_tokens(epochs.key(index)) for index in epochs_in(mask))
            if limit != UNLIMITED:
                limit -= limit % self.page_size
            limits[mask] = limit
        return limit

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
            self._apply_eviction_result(result)

    def _remove_leaf(self, node: UnifiedTreeNode, result: BaseEvictionResult) -> None:
        """Detach ``node``, then release its slots into ``result``.

        In this order a failure half-way can leak slots, but never free one twice.
        """
        core = self.tree_core
        parent = node.parent
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
