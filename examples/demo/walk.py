"""The hot reloads that are shown, one step at a time, on a live server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.documents import ServedPrefix
from examples.demo.timing import Visitor, Visits
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.errors import InvalidRunError

WARM_QUESTIONS = 2
# A shared machine may be slow for a few seconds, just while one of the two medians is taken. The
# cache stays as it is meanwhile, so asking again is fair; three misses are no accident.
MAX_TIMINGS = 3
_PAUSE_BEFORE_RETRY_S = 5.0
WARM_LIMIT_RATIO = 1.3


@dataclass(frozen=True)
class StepResult:
    """One update: what was decided, what was done, and what a client felt."""

    name: str
    verdict: str
    reason: str
    decision_id: str
    kept_tokens: int
    evicted_tokens: int
    cold: Visits
    warm: Visits
    after: Visits
    timings: int = 1
    """How often "after" was timed."""

    @property
    def after_to_warm_ratio(self) -> float:
        """1 means that the update was not felt."""
        return self.after.median_ms / self.warm.median_ms


def stock_step(
    client: EngineClient, base: Path, update: Path, prefixes: Sequence[ServedPrefix]
) -> StepResult:
    """Show SGLang's own behaviour: an update flushes the cache. The server's mode is ``off``."""
    client.update_weights_from_disk(base)
    client.flush_cache()
    visitor = Visitor(client, prefixes)
    cold, warm = visitor.fill(), visitor.revisit(WARM_QUESTIONS)
    before_tokens = _tokens_in_tree(client)
    client.update_weights_from_disk(update)
    left_tokens = _tokens_in_tree(client)
    return StepResult(
        name="stock SGLang, mild",
        verdict="FLUSH",
        reason="every update flushes",
        decision_id="",
        kept_tokens=left_tokens,
        evicted_tokens=before_tokens - left_tokens,
        cold=cold,
        warm=warm,
        after=visitor.visit(),
    )


class Walk:
    """Walks one serving server through updates, each from the same base weights."""

    def __init__(self, client: EngineClient, base: Path) -> None:
        self._client = client
        self._base = base
        self._is_at_base = True
        self._has_base_kv = False

    def step(
        self,
        name: str,
        update: Path,
        prefixes: Sequence[ServedPrefix],
        *,
        before_update: Callable[[str], None] = lambda _: None,
        after_update: Callable[[str], None] = lambda _: None,
    ) -> StepResult:
        """Fill the cache, update, and time the same prefixes again.

        ``before_update`` and ``after_update`` get the step's ``cache_salt`` and may ask questions
        of their own.
        """
        self._return_to_base()
        visitor = Visitor(self._client, prefixes)
        cold, warm = visitor.fill(), visitor.revisit(WARM_QUESTIONS)
        before_update(visitor.cache_salt)
        self._is_at_base = False
        report = self._client.update_weights_from_disk(update).report
        if not report:
            raise InvalidRunError(
                "the update's reply says nothing of xver; is the plugin installed in this Python?"
            )
        is_kept = self._has_base_kv = report["action"] == "KEEP"
        after = visitor.visit(WARM_QUESTIONS if is_kept else 1)
        timings = 1
        while (
            is_kept
            and timings < MAX_TIMINGS
            and after.median_ms > WARM_LIMIT_RATIO * warm.median_ms
        ):
            time.sleep(_PAUSE_BEFORE_RETRY_S)
            after = visitor.visit(WARM_QUESTIONS)
            timings += 1
        after_update(visitor.cache_salt)
        return StepResult(
            name=name,
            verdict=report["action"],
            reason=report["reason"],
            decision_id=report["decision_id"].removeprefix("-"),
            kept_tokens=int(report["kept_tokens"]),
            evicted_tokens=int(report["evicted_tokens"]),
            cold=cold,
            warm=warm,
            after=after,
            timings=timings,
        )

    def _return_to_base(self) -> None:
        """Load the base again: none of the update's KV may survive, for nobody measured that pair.

        The base's own KV is exact for the base and may have been kept; each step starts empty.
        """
        if self._is_at_base:
            return
        self._client.update_weights_from_disk(self._base)
        epochs = set(self._client.server_info().xver["tokens_by_epoch"])
        if epochs - {"initial"}:
            raise InvalidRunError(
                f"after the return to the base weights the cache holds KV of {sorted(epochs)}, "
                "expected that of the base alone: nobody measured the pair"
            )
        self._client.flush_cache()
        self._is_at_base = True


def _tokens_in_tree(client: EngineClient) -> int:
    tokens = client.server_info().xver["tokens_by_epoch"]
    return sum(int(count) for count in tokens.values())
