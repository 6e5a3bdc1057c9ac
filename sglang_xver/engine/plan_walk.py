"""Judges every branch of the tree by a plan: what stays, what is condemned, who may not see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

from sglang_xver.engine.tree import XverTreeCore
from sglang_xver.fidelity import class_of_namespace
from sglang_xver.lineage import UNLIMITED, epochs_in, strictest
from sglang_xver.plan import Plan


@dataclass
class Judgement:
    """Outcome of one walk. ``condemned`` holds whole subtrees, parents before children."""

    kept_tokens: int = 0
    has_foreign: bool = False
    condemned: list[UnifiedTreeNode] = field(default_factory=list)
    restricted_classes: frozenset[str] = frozenset()


class PlanWalk:
    """One walk over the tree under one plan, whose target is the current epoch already.

    The limit of a node is the strictest over all epochs on its path, floored to a page. In the
    namespace of a class it is that class's limit, elsewhere what the most permissive family may
    reuse.
    """

    def __init__(
        self, core: XverTreeCore, plan: Plan, apply_actions: Callable[[list[Any]], None]
    ) -> None:
        self._core = core
        self._plan = plan
        self._apply_actions = apply_actions
        self._limits: dict[tuple[str | None, int], int] = {}
        # By lineage mask: the deepest position that stays in the namespace of everybody.
        self._deepest: dict[int, int] = {}

    def run(self) -> Judgement:
        """Judge every node, splitting those that cross their limit."""
        judgement = Judgement()
        current_bit = self._core.epochs.current_bit
        stack = [
            (child, 0, class_of_namespace(child.key.extra_key))
            for child in self._core.root_node.children.values()
        ]
        while stack:
            node, start, class_name = stack.pop()
            end = self._kept_end(node, start, class_name)
            whole = end == start + len(node.key)
            if not whole:
                if end > start:
                    upper = self._split(node, end - start)
                    judgement.condemned.extend(self._core.subtree(node))
                    node = upper
                else:
                    judgement.condemned.extend(self._core.subtree(node))
                    continue
            else:
                stack.extend((child, end, class_name) for child in node.children.values())
            judgement.kept_tokens += end - start
            mask = node.xver_lineage.mask
            if mask != current_bit:
                judgement.has_foreign = True
                if class_name is None:
                    self._deepest[mask] = max(end, self._deepest.get(mask, 0))
        judgement.restricted_classes = self._restricted_classes()
        return judgement

    def _kept_end(self, node: UnifiedTreeNode, start: int, class_name: str | None) -> int:
        """Return the position up to which ``node``, which begins at ``start``, may stay."""
        end = start + len(node.key)
        if node.id in self._core.blocked:
            return start
        limit = self._limit_tokens(class_name, node.xver_lineage.mask)
        return end if limit == UNLIMITED else max(start, min(end, limit))

    def _split(self, node: UnifiedTreeNode, length: int) -> UnifiedTreeNode:
        upper, action = self._core._split_node(node.key, node, length)
        if action is not None:
            self._apply_actions([action])
        return upper

    def _limit_tokens(self, class_name: str | None, mask: int) -> int:
        key = (class_name, mask)
        limit = self._limits.get(key)
        if limit is None:
            epochs = self._core.epochs
            limit = strictest(
                self._plan.keep_max_tokens(epochs.key(index), class_name)
                for index in epochs_in(mask)
            )
            if limit != UNLIMITED:
                limit -= limit % self._core.page_size
            self._limits[key] = limit
        return limit

    def _restricted_classes(self) -> frozenset[str]:
        """Return the classes that may not see all that stays in the namespace of everybody."""
        return frozenset(
            class_name
            for class_name in self._plan.classes()
            if any(
                0 <= self._limit_tokens(class_name, mask) < end
                for mask, end in self._deepest.items()
            )
        )
