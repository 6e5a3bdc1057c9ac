"""What a run will measure, fixed before the first item."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field

from sglang_xver.calibrate.engine_types import ServerInfo
from sglang_xver.calibrate.errors import CalibrationError
from sglang_xver.calibrate.tasks import Document, Task

# Arms that hold a copy of every document's KV at the same time: S, R, W, C and C'.
_COPIES_IN_POOL = 5
_USABLE_POOL_SHARE = 0.95


@dataclass(frozen=True)
class MeasurementPlan:
    """Documents, sample sizes and salts of one run.

    ``top_k`` None compares whole-vocabulary distributions; a number compares the k most likely
    tokens with a lumped remainder, a lower bound.
    """

    documents: tuple[Document, ...]
    hfr_limit: float
    confidence_level: float
    planned_looks: int = 1
    top_k: int | None = None
    is_cold_every_item: bool = False
    """Arms S, C and C' prefill every item from scratch instead of each document once."""
    run_salt: str = field(default_factory=lambda: f"calibrate-{uuid.uuid4().hex}")
    """Prefix of every ``cache_salt``; unique, so that no earlier run's KV can be met."""

    def __post_init__(self) -> None:
        lengths = {len(document.prefix_ids) for document in self.documents}
        if len(self.documents) < 2 or len(lengths) != 1:
            raise CalibrationError(
                f"{len(self.documents)} documents of {sorted(lengths)} prefix tokens; the control "
                "arm needs two or more of one length. Measure each length in a run of its own"
            )
        names = [document.document_id for document in self.documents]
        items = [item.item_id for document in self.documents for item in document.items]
        for kind, values in (("document", names), ("item", items)):
            repeated = [value for value, count in Counter(values).items() if count > 1]
            if repeated:
                raise CalibrationError(f"{kind} id {repeated[0]!r} is used twice; make ids unique")

    @property
    def prefix_tokens(self) -> int:
        """Length of every document's prefix in tokens."""
        return len(self.documents[0].prefix_ids)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, in order of appearance."""
        seen = {item.task.name: item.task for d in self.documents for item in d.items}
        return tuple(seen.values())

    @property
    def planned_items(self) -> int:
        """Items of the smallest stratum: the number that every stratum must reach."""
        counts = Counter(item.task.name for d in self.documents for item in d.items)
        return min(counts.values())

    def salt(self, arm: str, document: Document, item_id: str = "") -> str:
        """Return the ``cache_salt`` of one arm on one document (and item, where items differ)."""
        return "/".join(
            part for part in (self.run_salt, arm, document.document_id, item_id) if part
        )

    def require_fits(self, server: ServerInfo) -> None:
        """Check that all arms fit into the pool; raises :class:`CalibrationError` otherwise."""
        needed = 0
        for document in self.documents:
            tails = sum(len(i.question_ids) + i.task.max_new_tokens for i in document.items)
            prefixes = len(document.prefix_ids)
            needed += _COPIES_IN_POOL * (prefixes + tails)
            if self.is_cold_every_item:
                # Every item of the three cold arms then holds the whole prefix.
                needed += 3 * prefixes * (len(document.items) - 1)
        if needed > _USABLE_POOL_SHARE * server.pool_tokens:
            raise CalibrationError(
                f"the arms hold up to {needed} tokens, the pool has {server.pool_tokens}: KV of "
                "one arm would evict another's. Use fewer documents or a larger --max-total-tokens"
            )
