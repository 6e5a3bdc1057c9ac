"""The tree core: SGLang's Python radix tree with an epoch and a lineage on every node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

from sglang_xver.engine.events import ExactEventRecorder
from sglang_xver.engine.full_only import FullOnlyTreeCore
from sglang_xver.lineage import EpochTable, Lineage, renumber

INITIAL_EPOCH_KEY = "initial"

# A mask of that many bits is a small Python integer; the live epochs are bounded by the age limit.
_MAX_EPOCHS = 60


def ignore_failure(kind: str, error: Exception) -> None:
    """Stand in until somebody counts failures."""


class PlacedNode(NamedTuple):
    """A node and where it lies on its path: tokens ``[start, end)`` from the root."""

    node: UnifiedTreeNode
    start: int
    end: int


class XverTreeCore(FullOnlyTreeCore):
    """``FullOnlyTreeCore`` whose nodes know which weights produced them.

    Every node carries ``xver_lineage`` (see :class:`sglang_xver.lineage.Lineage`). Nodes in
    ``blocked`` are condemned but held by a running request: no request may match them, nothing may
    be inserted at or below them, and they are removed when they are released. ``has_foreign`` is
    False while every node belongs to the current epoch alone, which keeps the usual case cheap.
    """

    def __init__(self, params: Any, components: Any) -> None:
        self.epochs = EpochTable(INITIAL_EPOCH_KEY)
        self.blocked: dict[int, UnifiedTreeNode] = {}
        self.has_foreign = False
        self.on_failure: Callable[[str, Exception], None] = ignore_failure
        super().__init__(params, components)
        self.kv_events = ExactEventRecorder(params, self.epochs)

    # ---- tagging: every way a node comes into being ----

    def reset(self) -> None:
        """Drop the whole tree, tags and blocks included."""
        self.blocked = {}
        self.has_foreign = False
        super().reset()
        self.root_node.xver_lineage = Lineage(self.epochs.current, 0)

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = super()._new_node(priority)
        node.xver_lineage = Lineage(self.epochs.current, self.epochs.current_bit)
        node.xver_announced = False
        return node

    def _add_new_node(self, parent: UnifiedTreeNode, *args: Any, **kwargs: Any) -> UnifiedTreeNode:
        node = super()._add_new_node(parent, *args, **kwargs)
        node.xver_lineage = Lineage(
            self.epochs.current, parent.xver_lineage.mask | self.epochs.current_bit
        )
        return node

    def _split_node(self, key: RadixKey, child: UnifiedTreeNode, split_len: int) -> Any:
        upper, action = super()._split_node(key, child, split_len)
        upper.xver_lineage = child.xver_lineage
        upper.xver_announced = child.xver_announced
        if child.id in self.blocked:
            self.blocked[upper.id] = upper
        return upper, action

    def _unevict_node_on_insert(self, node: UnifiedTreeNode, *args: Any, **kwargs: Any) -> None:
        super()._unevict_node_on_insert(node, *args, **kwargs)
        # The device copy is fresh, but descendants were computed on what was here before: the
        # old bits stay, so the node is never taken for purely new.
        node.xver_lineage = Lineage(
            self.epochs.current, node.xver_lineage.mask | self.epochs.current_bit
        )

    def _unregister_node(self, node: UnifiedTreeNode) -> None:
        self.blocked.pop(node.id, None)
        super()._unregister_node(node)

    def forget_dead_epochs(self) -> None:
        """Renumber the epochs once there are many, so that masks stay small over many updates."""
        if len(self.epochs) <= _MAX_EPOCHS:
            return
        nodes = [node for node in self._node_arena.values() if node is not self.root_node]
        visible = [node for node in nodes if node.id not in self.blocked]
        live_mask = 0
        for node in visible:
            live_mask |= node.xver_lineage.mask
        renumbered = self.epochs.compact(live_mask)
        for node in visible:
            node.xver_lineage = renumber(node.xver_lineage, renumbered)
        # Blocked nodes are never asked for their lineage again.
        for node in self.blocked.values():
            node.xver_lineage = Lineage(self.epochs.current, self.epochs.current_bit)

    # ---- visibility ----

    def block_all(self) -> None:
        """Make every node invisible at once; the last resort where nothing else can be trusted.

        The weights are unknown from here on, as after every eviction without a plan.
        """
        self.epochs.advance_unknown()
        self.blocked = {
            node_id: node
            for node_id, node in self._node_arena.items()
            if node is not self.root_node
        }

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match as SGLang does, but never into a blocked node."""
        if self.blocked:
            try:
                visible = self._visible_tokens(params.key)
            except Exception as error:
                self.on_failure("VISIBILITY_RAISED", error)
                return self._empty_match_result
            if visible < len(params.key):
                params = _with_key(params, params.key[:visible])
        return super().match_prefix(params)

    def _walk(self, key: RadixKey) -> Iterator[PlacedNode]:
        """Yield the nodes on ``key``'s path, read-only; the last may match in part."""
        path, start = self.path(key), 0
        for node in path.nodes:
            end = min(start + len(node.key), path.matched_tokens)
            yield PlacedNode(node, start, end)
            start = end

    def _visible_tokens(self, key: RadixKey) -> int:
        for placed in self._walk(key):
            if placed.node.id in self.blocked:
                return placed.start
        return len(key)

    def foreign_overlap(self, params: InsertParams) -> UnifiedTreeNode | None:
        """Return the topmost node that an insert must not adopt, or None.

        SGLang's insert keeps an existing node, frees the request's fresh KV as a duplicate and
        rewrites the request's row with the node's slots. That is right only where the node was
        computed by the current weights on a lineage that the request already has. ``params.key``
        covers the request's tokens; its first ``params.prev_prefix_len`` are tree slots already.
        """
        lineage = self.epochs.current_bit
        for placed in self._walk(params.key):
            tag = placed.node.xver_lineage
            if placed.node.id in self.blocked:
                return placed.node
            if placed.end <= params.prev_prefix_len:
                lineage |= tag.mask
            elif tag.own != self.epochs.current or tag.mask & ~lineage:
                return placed.node
        return None

    def foreign_tokens_above(self, node_id: int) -> int:
        """Return the tokens on the path to a node that are not purely the current weights' own."""
        node, current_bit, tokens = self.node_by_id(node_id), self.epochs.current_bit, 0
        while node is not self.root_node:
            if node.xver_lineage.mask != current_bit:
                tokens += len(node.key)
            node = node.parent
        return tokens

    def subtree(self, top: UnifiedTreeNode) -> list[UnifiedTreeNode]:
        """Return ``top`` and its descendants, parents before children, in insertion order."""
        nodes, position = [top], 0
        while position < len(nodes):
            nodes.extend(nodes[position].children.values())
            position += 1
        return nodes

    def is_held(self, node: UnifiedTreeNode) -> bool:
        """Whether a request still uses the node."""
        return bool(node.component_data[0].lock_ref > 0)


def _with_key(params: MatchPrefixParams, key: RadixKey) -> MatchPrefixParams:
    """Return a copy of ``params`` for ``key``; the caller's object may be reused by SGLang."""
    return dataclasses.replace(params, key=key)
