"""Compares trees of ranks: one digest over everything that must be equal on all of them."""

from __future__ import annotations

import hashlib

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from sglang_xver.engine.tree import XverTreeCore

AUDIT_KEY_PREFIX = "xver_audit:"
"""Control message that anybody may send; every rank then logs the digest of its tree."""


def tree_digest(core: XverTreeCore) -> str:
    """Digest of every node: its place, tokens, KV slots, lineage by epoch key, and visibility.

    Walks the whole tree, which takes tenths of a second on a large one.
    """
    hasher = hashlib.sha256(core.epochs.current_key.encode())
    names = {core.root_node.id: 0}
    for number, node in enumerate(core.subtree(core.root_node)[1:], start=1):
        names[node.id] = number
        tag = node.xver_lineage
        epochs = [key for i, key in enumerate(core.epochs.keys()) if tag.mask >> i & 1]
        slots = node.component_data[BASE_COMPONENT_TYPE].value
        hasher.update(
            repr(
                (
                    names[node.parent.id],
                    node.key.extra_key,
                    list(node.key.token_ids[: len(node.key)]),
                    slots.tolist(),
                    core.epochs.key(tag.own),
                    epochs,
                    node.id in core.blocked,
                )
            ).encode()
        )
    return hasher.hexdigest()
