"""Epochs and lineage: which weights produced a node's KV and its ancestors' KV.

An *epoch* is one set of weights, keyed by its content fingerprint, so that a reload of the same
bytes, or a rollback to an earlier version, is the same epoch again. A node carries the index of the
epoch that produced it (``own``) and a bitmask of its own and all its ancestors' epochs (``mask``):
a suffix computed on kept old KV is *hybrid* and never looks purely new. Pure module: no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNLIMITED = -1
"""Depth limit that never cuts."""


class Lineage(NamedTuple):
    """Tag of one tree node.

    ``own`` is the index of the epoch that computed the node's KV; ``mask`` has the bit of every
    epoch found on the path from the root to the node, ``own`` included.
    """

    own: int
    mask: int

    @property
    def is_hybrid(self) -> bool:
        """Whether KV of more than one epoch lies on the node's path."""
        return self.mask != 1 << self.own


def epochs_in(mask: int) -> Iterator[int]:
    """Yield the epoch indices whose bit is set in ``mask``, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class EpochTable:
    """Epoch keys seen by one process, numbered in the order of the request stream.

    Every rank sees the same stream, so the numbers agree on all ranks. ``current`` is the epoch of
    the weights that are being served.
    """

    def __init__(self, initial_key: str) -> None:
        self._keys: list[str] = [initial_key]
        self._index: dict[str, int] = {initial_key: 0}
        self._unknown_count = 0
        self.current = 0

    @property
    def current_key(self) -> str:
        """Key of the weights that are being served."""
        return self._keys[self.current]

    @property
    def current_bit(self) -> int:
        """Bit of the current epoch in a lineage mask."""
        return 1 << self.current

    def key(self, index: int) -> str:
        """Return the key of epoch ``index``; raises IndexError when it was never seen."""
        return self._keys[index]

    def keys(self) -> tuple[str, ...]:
        """Keys of all epochs that are remembered, by index."""
        return tuple(self._keys)

    def advance(self, key: str) -> int:
        """Make ``key`` the current epoch and return its index (an old one for a known key)."""
        index = self._index.get(key)
        if index is None:
            index = len(self._keys)
            self._keys.append(key)
            self._index[key] = index
        self.current = index
        return index

    def compact(self, live_mask: int) -> dict[int, int]:
        """Forget every epoch without a bit in ``live_mask`` but the current one; renumber the rest.

        Returns the new index by old index. Masks that were made before are void.
        """
        kept = list(epochs_in(live_mask | self.current_bit))
        renumbered = {old: new for new, old in enumerate(kept)}
        self._keys = [self._keys[old] for old in kept]
        self._index = {key: index for index, key in enumerate(self._keys)}
        self.current = renumbered[self.current]
        return renumbered

    def __len__(self) -> int:
        return len(self._keys)

    def advance_unknown(self) -> int:
        """Make an epoch current that equals no other: weights whose content nobody knows."""
        self._unknown_count += 1
        return self.advance(f"unknown:{self._unknown_count}")


def renumber(lineage: Lineage, renumbered: dict[int, int]) -> Lineage:
    """Return ``lineage`` with the indices that :meth:`EpochTable.compact` gave.

    Raises:
        KeyError: an epoch of the lineage was forgotten.
    """
    mask = 0
    for index in epochs_in(lineage.mask):
        mask |= 1 << renumbered[index]
    return Lineage(renumbered[lineage.own], mask)


def most_permissive(limits: Iterable[int]) -> int:
    """Return the largest depth limit in tokens, ``UNLIMITED`` being the largest of all.

    ``limits`` holds at least one.
    """
    known = list(limits)
    return UNLIMITED if UNLIMITED in known else max(known)


def strictest(limits: Iterable[int]) -> int:
    """Return the smallest depth limit in tokens; ``UNLIMITED`` when there is none."""
    result = UNLIMITED
    for limit in limits:
        if limit != UNLIMITED and (result == UNLIMITED or limit < result):
            result = limit
    return result
