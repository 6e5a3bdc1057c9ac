"""Counts what lies in the tree, by the weights that had a part in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_xver.engine.tree import XverTreeCore
from sglang_xver.lineage import epochs_in


@dataclass
class Census:
    """Sizes in tokens (KV slots) of what is visible, and of what is blocked."""

    native_tokens: int = 0
    """Computed by the current weights, on a path of their own."""
    hybrid_tokens: int = 0
    """Computed by the current weights on kept KV of earlier ones."""
    kept_old_tokens: int = 0
    """Computed by earlier weights."""
    blocked_tokens: int = 0
    """Condemned, invisible, and held by running requests."""
    tokens_by_epoch: dict[str, int] = field(default_factory=dict)
    """Visible tokens by the key of the epoch that computed them."""
    epochs_present: list[str] = field(default_factory=list)
    """Keys of all epochs on any visible path, oldest first."""


def take_census(core: XverTreeCore) -> Census:
    """Count every node of the tree."""
    census = Census()
    epochs, all_epochs = core.epochs, 0
    for node in core.subtree(core.root_node)[1:]:
        size, tag = len(node.key), node.xver_lineage
        if node.id in core.blocked:
            census.blocked_tokens += size
            continue
        all_epochs |= tag.mask
        key = epochs.key(tag.own)
        census.tokens_by_epoch[key] = census.tokens_by_epoch.get(key, 0) + size
        if tag.mask == epochs.current_bit:
            census.native_tokens += size
        elif tag.own == epochs.current:
            census.hybrid_tokens += size
        else:
            census.kept_old_tokens += size
    census.epochs_present = [epochs.key(index) for index in epochs_in(all_epochs)]
    return census
