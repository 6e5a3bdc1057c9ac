"""The real tree as flat arrays, one entry per KV slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tests.unit.engine.tree_harness import Harness

_FULL = int(ComponentType.FULL)


class TreeView:
    """What the tree holds at one moment; parents come before their children."""

    def __init__(self, harness: Harness) -> None:
        core = harness.core
        self.blocked = core.blocked
        self.nodes: list[Any] = core.subtree(core.root_node)[1:]
        values = [node.component_data[_FULL].value for node in self.nodes]
        self.lengths = np.array([len(value) for value in values], np.int64)
        self.slots: NDArray[np.int64] = (
            torch.cat(values).numpy() if values else np.zeros(0, np.int64)
        )
        self.is_blocked = np.array([node.id in self.blocked for node in self.nodes], bool)

    def spread(self, per_node: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value of each slot's node."""
        return np.repeat(np.asarray(per_node), self.lengths)

    @property
    def visible_slots(self) -> NDArray[np.int64]:
        return self.slots[~np.repeat(self.is_blocked, self.lengths)]

    @property
    def blocked_tokens(self) -> int:
        return int(self.lengths[self.is_blocked].sum())
