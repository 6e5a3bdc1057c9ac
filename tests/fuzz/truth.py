"""What is really in every KV slot, and who may read it: the model that the cache is held against.

All state lies in arrays indexed by slot, so that judging a plan or checking a whole tree costs a
few vector operations. Nothing here asks the cache or the plan's own methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.unit.engine.tree_harness import MAX_CONTEXT

FAMILIES = ("niah", "qa")
CLASSES = ("native", "strictest", *FAMILIES)
EVERYBODY = 0
"""Row of the verdicts for what the tree keeps in the namespace that everybody shares."""

# Fixed odd multipliers: two token paths have the same sum by a chance of 2 ** -64 only.
_POWERS = np.random.default_rng(0).integers(1, 2**63, MAX_CONTEXT, dtype=np.uint64) * 2 + 1


class Rule(NamedTuple):
    """Limits of one source epoch in tokens: 0 evicts, -1 keeps all."""

    keep: int
    families: dict[str, int]


Rules = dict[str, Rule]


def row_of(class_name: str | None) -> int:
    """Return the row of the verdicts for a class; None is the shared namespace."""
    return EVERYBODY if class_name is None else 1 + CLASSES.index(class_name)


def path_hashes(
    tokens: Sequence[int] | NDArray[np.int64], start: int = 0, before: int = 0
) -> NDArray[np.uint64]:
    """Return one number per token that identifies the path up to it.

    Args:
        tokens: consecutive tokens of a path.
        start: position of the first.
        before: number of the path up to ``start``.
    """
    own = np.asarray(tokens, dtype=np.int64).astype(np.uint64)
    return np.cumsum(own * _POWERS[start : start + len(own)]) + np.uint64(before)


def deepest(rules: Rules, target: str, epoch: str, row: int) -> int:
    """Return how deep KV of ``epoch`` may be read under ``target``; -1 without a limit."""
    rule = rules.get(epoch)
    if rule is None:
        return 0
    if row == EVERYBODY:
        return rule.keep
    class_name = CLASSES[row - 1]
    if class_name == "native":
        return rule.keep if epoch == target else 0
    if not rule.families:
        return rule.keep
    if class_name == "strictest":
        known = [limit for limit in rule.families.values() if limit != -1]
        return min(known) if known else -1
    return rule.families[class_name]


class Truth:
    """Content of ``slots`` KV slots."""

    def __init__(self, slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.stamp = np.zeros(slots, np.int64)
        """Number of the computation; equal stamps are the same content."""
        self.path = np.zeros(slots, np.uint64)
        self.depth = np.zeros(slots, np.int64)
        """Tokens on the path up to the slot's, itself included."""
        self.lineage = np.zeros(slots, np.int64)
        self.own = np.zeros(slots, np.int64)
        self.space = np.zeros(slots, np.int64)
        self.is_kept = np.zeros(slots, bool)
        """Whether all plans since the computation allow the slot in its namespace."""
        self.is_readable = np.zeros((1 + len(CLASSES), slots), bool)
        """Whether the last plan allows the slot to a class."""
        self.epochs: dict[str, int] = {}
        self.lineages: list[frozenset[int]] = []
        self._lineage_ids: dict[frozenset[int], int] = {}
        self.spaces: dict[str | None, int] = {}
        self._space_rows: list[int] = []
        self._stamps = 0
        self.space_id(None)

    # What is computed.

    def epoch_id(self, key: str) -> int:
        return self.epochs.setdefault(key, len(self.epochs))

    def lineage_id(self, epochs: frozenset[int]) -> int:
        found = self._lineage_ids.get(epochs)
        if found is None:
            found = self._lineage_ids[epochs] = len(self.lineages)
            self.lineages.append(epochs)
        return found

    def pure_lineage(self, epoch: str) -> int:
        """Return the lineage of KV in which no other weights had a part."""
        return self.lineage_id(frozenset((self.epoch_id(epoch),)))

    def space_id(self, extra_key: str | None, class_name: str | None = None) -> int:
        """Return the number of a namespace; ``class_name`` is the class it belongs to."""
        found = self.spaces.get(extra_key)
        if found is None:
            found = self.spaces[extra_key] = len(self._space_rows)
            self._space_rows.append(row_of(class_name))
        return found

    def compute(
        self,
        row: NDArray[np.int64],
        start: int,
        paths: NDArray[np.uint64],
        epoch: str,
        space: int,
    ) -> None:
        """Note that ``row[start:]`` was computed by ``epoch`` on what ``row[:start]`` holds."""
        slots, own = row[start:], self.epoch_id(epoch)
        if start:
            last = row[start - 1]
            epochs = self.lineages[self.lineage[last]] | {own}
            # A request may keep tokens that were forbidden behind some that are not.
            self.is_kept[slots] = self.is_kept[row[:start]].all()
            self.is_readable[:, slots] = self.is_readable[:, row[:start]].all(axis=1)[:, None]
        else:
            epochs = frozenset((own,))
            self.is_kept[slots] = True
            self.is_readable[:, slots] = True
        count = len(slots)
        self.stamp[slots] = np.arange(self._stamps + 1, self._stamps + count + 1)
        self._stamps += count
        self.path[slots] = paths[start:]
        self.depth[slots] = np.arange(start + 1, start + count + 1)
        self.lineage[slots] = self.lineage_id(epochs)
        self.own[slots] = own
        self.space[slots] = space

    # What plans say.

    def judge(self, rules: Rules, target: str) -> None:
        """Apply a plan for ``target`` to the content of every slot."""
        if not self.lineages:
            return
        keys = list(self.epochs)
        rows = range(1 + len(CLASSES))
        unlimited = np.iinfo(np.int64).max
        by_epoch = np.array([[deepest(rules, target, key, row) for key in keys] for row in rows])
        by_epoch -= np.where(by_epoch > 0, by_epoch % self.page_size, 0)
        by_epoch[by_epoch == -1] = unlimited
        limits = np.array(
            [by_epoch[:, list(epochs)].min(axis=1) for epochs in self.lineages], np.int64
        ).T
        self.is_readable = self.depth <= limits[:, self.lineage]
        space_rows = np.array(self._space_rows)[self.space]
        self.is_kept &= self.is_readable[space_rows, np.arange(len(self.depth))]

    def permit_tail(self, row: NDArray[np.int64], protected: int, epoch: str) -> None:
        """Judge a private tail anew after an update that changed no weights.

        What the current weights computed on KV that stays is what they would compute now.
        """
        head, tail = row[:protected], row[protected:]
        is_current = self.own[tail] == self.epoch_id(epoch)
        if self.is_kept[head].all():
            self.is_kept[tail] = is_current
        whole = self.is_readable[:, head].all(axis=1)
        self.is_readable[np.ix_(whole, tail)] = is_current

    def forbid_all(self) -> None:
        """Nothing that was computed so far may be read by anybody."""
        self.is_kept[:] = False
        self.is_readable[:] = False
