"""What one scheduler says about its updates: log, ``/server_info`` block, Prometheus series."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from sglang_xver.decision import age_after_update
from sglang_xver.engine.audit import tree_digest
from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.engine.census import take_census
from sglang_xver.engine.metrics import SchedulerMetrics
from sglang_xver.layout import KvLayout
from sglang_xver.report import UpdateReport

logger = logging.getLogger(__name__)


class ServerFacts(NamedTuple):
    """What stays the same while a scheduler lives."""

    mode: str
    layout: KvLayout | None
    """Layout of the cache; None when unknown, which evicts at every update."""
    engine: dict[str, str]
    """Fields of the API's ``Engine``."""
    initial_stamp: str = ""
    """File stamps of the served checkpoint, taken after it was loaded."""


class Journal:
    """Counts and tells; decides nothing. A failure to tell never reaches the scheduler."""

    def __init__(
        self,
        cache: XverRadixCache,
        facts: ServerFacts,
        make_metrics: Callable[[], SchedulerMetrics] | None = None,
    ) -> None:
        """Prepare; ``make_metrics`` is called at the first thing to count."""
        self.facts = facts
        self.reports: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.last_report: UpdateReport | None = None
        self.ages: dict[str, int] = {}
        """Updates since each epoch's weights were last the served ones, by its key."""
        self._cache = cache
        self._served_key = cache.tree_core.epochs.current_key
        self._make_metrics = make_metrics
        self._metrics: SchedulerMetrics | None = None

    def record(self, report: UpdateReport) -> None:
        """Take note of one update; if it changed the weights, all other epochs grow older by it."""
        epochs = self._cache.tree_core.epochs
        if epochs.current_key != self._served_key:
            self.ages = age_after_update(self.ages, epochs.keys(), epochs.current_key)
            self._served_key = epochs.current_key
        self.last_report = report
        self.reports[f"{report.action}:{report.reason}"] += 1
        logger.info("xver update: %s", report.to_dict())
        self._tell(lambda metrics: metrics.count_update(report))
        self.refresh()

    def count_failure(self, kind: str) -> None:
        """Take note of a failure that was answered by eviction."""
        self.failures[kind] += 1
        self._tell(lambda metrics: metrics.count_failure(kind))

    def note_caught(self, kind: str, error: Exception) -> None:
        """Count and log a fault that was caught while requests are served."""
        self.count_failure(kind)
        logger.error("xver: %s; nothing old becomes visible by it", kind, exc_info=error)

    def count_cached_tokens(self, req: Any, native: int, kept_old: int) -> None:
        """Count the cached tokens of ``req``, once."""
        if self._make_metrics is None or getattr(req, "xver_counted", False):
            return
        req.xver_counted = True
        self._tell(lambda metrics: metrics.count_cached_tokens(native, kept_old))
        if self._metrics is not None and self._metrics.is_due():
            self.refresh()

    def refresh(self) -> None:
        """Set the gauges to what lies in the tree now."""
        events = {
            "declined_insert": self._cache.declined_inserts,
            "healed_node": self._cache.healed_nodes,
        }
        self._tell(
            lambda metrics: metrics.refresh(take_census(self._cache.tree_core), self.ages, events)
        )

    def log_audit(self, name: str) -> None:
        """Check the tree and log its digest; every rank does so at the same point of the stream."""
        try:
            self._cache.sanity_check()
            logger.info("xver audit %.80s: digest %s", name, tree_digest(self._cache.tree_core))
        except Exception:
            self.failures["AUDIT_FAILED"] += 1
            logger.exception("xver audit %.80s: failed", name)

    def _tell(self, tell: Callable[[SchedulerMetrics], None]) -> None:
        if self._make_metrics is None:
            return
        try:
            if self._metrics is None:
                self._metrics = self._make_metrics()
            tell(self._metrics)
        except Exception:
            self.failures["METRICS_RAISED"] += 1
            logger.exception("xver: a metric was not written")

    def status(self) -> dict[str, Any]:
        """Return the block for ``/server_info``; JSON-ready."""
        cache, facts = self._cache, self.facts
        return {
            "mode": facts.mode,
            "current_epoch": cache.tree_core.epochs.current_key,
            **asdict(take_census(cache.tree_core)),
            "ages_updates": self.ages,
            "is_suspended": cache.is_suspended,
            "restricted_classes": sorted(cache.placer.restricted_classes),
            "declined_inserts": cache.declined_inserts,
            "healed_nodes": cache.healed_nodes,
            "engine": facts.engine,
            "initial_stamp": facts.initial_stamp,
            "layout": None if facts.layout is None else facts.layout.to_dict(),
            "last_update": None if self.last_report is None else self.last_report.to_dict(),
            "updates": dict(self.reports),
            "failures": dict(self.failures),
        }
