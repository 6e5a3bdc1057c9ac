"""Prometheus series of one scheduler, beside SGLang's own under ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sglang_xver.engine.census import Census
from sglang_xver.report import UpdateReport

_REFRESH_S = 5.0
_APPLY_BUCKETS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class SchedulerMetrics:
    """Counters, gauges and a histogram; see the README's table.

    Create it only after SGLang has set up its own metrics: prometheus_client picks its storage
    when it is imported first.
    """

    def __init__(self, model_name: str) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._model = {"model_name": model_name}
        labels = list(self._model)
        self._updates = Counter(
            "xver_updates",
            "Weight updates by what became of the cache",
            [*labels, "action", "reason"],
        )
        self._failures = Counter(
            "xver_failures", "Failures that were answered by eviction", [*labels, "kind"]
        )
        self._cached = Counter(
            "xver_cached_tokens", "Cached prompt tokens by who computed them", [*labels, "source"]
        )
        self._events = Counter(
            "xver_tree_events", "Inserts declined and stale nodes replaced", [*labels, "event"]
        )
        self._apply = Histogram(
            "xver_plan_apply_milliseconds",
            "Time that a scheduler took to apply one plan",
            labels,
            buckets=_APPLY_BUCKETS_MS,
        )
        self._tokens = Gauge(
            "xver_tree_tokens",
            "Tokens in the prefix tree by state",
            [*labels, "state"],
            multiprocess_mode="mostrecent",
        )
        self._tokens_by_age = Gauge(
            "xver_tree_tokens_by_age",
            "Visible tokens by the updates since their weights were last served",
            [*labels, "age_updates"],
            multiprocess_mode="mostrecent",
        )
        self._oldest = Gauge(
            "xver_oldest_age_updates",
            "Updates that the oldest visible KV has survived",
            labels,
            multiprocess_mode="mostrecent",
        )
        self._seen_events: dict[str, int] = {}
        self._ages: set[int] = set()
        self._refreshed_s = 0.0

    def count_update(self, report: UpdateReport) -> None:
        """Count one update."""
        self._updates.labels(**self._model, action=report.action, reason=report.reason).inc()
        self._apply.labels(**self._model).observe(report.apply_ms)

    def count_failure(self, kind: str) -> None:
        """Count one failure that was caught."""
        self._failures.labels(**self._model, kind=kind).inc()

    def count_cached_tokens(self, native: int, kept_old: int) -> None:
        """Count the cached tokens of one request."""
        self._cached.labels(**self._model, source="native").inc(native)
        self._cached.labels(**self._model, source="kept_old").inc(kept_old)

    def is_due(self) -> bool:
        """Whether the gauges are old enough to be set again while requests are served."""
        return time.monotonic() - self._refreshed_s >= _REFRESH_S

    def refresh(self, census: Census, ages: Mapping[str, int], events: Mapping[str, int]) -> None:
        """Set the gauges; ``events`` holds totals by name."""
        self._refreshed_s = time.monotonic()
        for state in ("native", "hybrid", "kept_old", "blocked"):
            size: Any = getattr(census, f"{state}_tokens")
            self._tokens.labels(**self._model, state=state).set(size)
        by_age: dict[int, int] = dict.fromkeys(self._ages, 0)
        for key, tokens in census.tokens_by_epoch.items():
            age = ages.get(key, 0)
            by_age[age] = by_age.get(age, 0) + tokens
        self._ages |= by_age.keys()
        for age, tokens in by_age.items():
            self._tokens_by_age.labels(**self._model, age_updates=age).set(tokens)
        present = [ages.get(key, 0) for key in census.tokens_by_epoch]
        self._oldest.labels(**self._model).set(max(present, default=0))
        for name, total in events.items():
            grown = total - self._seen_events.get(name, 0)
            self._seen_events[name] = total
            self._events.labels(**self._model, event=name).inc(grown)
