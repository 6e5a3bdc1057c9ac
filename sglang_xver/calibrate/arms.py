"""The arms of a calibration on one server: who writes the KV, who reads it.

| arm | weights | KV of the document |
|---|---|---|
| S  | source | cold |
| C  | target | cold; the reference for "originally correct" |
| C' | target | cold once more; tells whether the reference is stable |
| W  | target | written by the target beforehand; the reference for distributions |
| R  | target | written by the source: direct reuse |
| X  | target | of another document; a control that must be told from W |

Weights are loaded twice, however many items there are: the source writes KV for arm R first, then
the target is loaded over it without a flush. That needs a server in mode ``off`` (SGLang's own
behaviour), which serves nobody else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sglang_xver.calibrate.divergence import ItemDivergence, compare_item
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.engine_types import Generation, ServerInfo, TopLogprobs
from sglang_xver.calibrate.errors import CalibrationError, InvalidRunError
from sglang_xver.calibrate.plan import MeasurementPlan
from sglang_xver.calibrate.tasks import Document, Item


class Arm(StrEnum):
    """Name of an arm in salts, results and messages."""

    SOURCE = "S"
    COLD = "C"
    COLD_AGAIN = "C'"
    WARM = "W"
    REUSE = "R"
    CONTROL = "X"


class Progress(NamedTuple):
    """One document of one arm was measured."""

    arm: Arm
    done: int
    total: int


@dataclass
class ItemResult:
    """What all arms answered to one item; divergences are from arm W."""

    item: Item
    document_id: str
    answers: dict[Arm, Generation] = field(default_factory=dict)
    divergence: ItemDivergence | None = None
    floor: ItemDivergence | None = None
    control: ItemDivergence | None = None

    def is_correct(self, arm: Arm) -> bool:
        """Whether ``arm`` answered the gold answer; only for scored tasks."""
        if self.item.task.is_correct is None:
            raise CalibrationError(f"task {self.item.task.name!r} has no answers to score")
        return self.item.task.is_correct(self.answers[arm].text, self.item.gold)

    @property
    def is_reference_repeated(self) -> bool:
        """Whether C and C' gave the same tokens."""
        cold, again = self.answers[Arm.COLD], self.answers[Arm.COLD_AGAIN]
        return cold.output_ids == again.output_ids


class PairMeasurement(NamedTuple):
    """All items of one pair, with the server's own description."""

    results: tuple[ItemResult, ...]
    server: ServerInfo
    plan: MeasurementPlan
    seconds_by_arm: Mapping[str, float]


class PairRunner:
    """Runs all arms of one plan for one (source, target) pair. Use a new one for each pair."""

    _ARMS_PER_DOCUMENT = 7  # R is visited twice: written by the source, read by the target

    def __init__(
        self,
        client: EngineClient,
        plan: MeasurementPlan,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._on_progress = on_progress
        self._done = 0
        self._page_size = 1
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._results: dict[str, ItemResult] = {}
        self._warm: dict[str, tuple[TopLogprobs, ...]] = {}

    def measure(self, source: Path, target: Path) -> PairMeasurement:
        """Measure the pair; leaves the target's weights loaded and the cache full.

        Raises:
            CalibrationError: the server isn't in mode ``off`` or its pool is too small.
            InvalidRunError: a request hit the cache other than its arm demands.
            EngineRequestError: the server failed.
        """
        server = self._require_calibration_server()
        documents = self._plan.documents
        self._results = {
            item.item_id: ItemResult(item, document.document_id)
            for document in documents
            for item in document.items
        }
        self._client.update_weights_from_disk(source, flush_cache=True)
        self._for_each(Arm.REUSE, lambda document: self._write_prefix(Arm.REUSE, document))
        self._for_each(Arm.SOURCE, self._source_arm)
        self._client.update_weights_from_disk(target, flush_cache=False)
        self._for_each(Arm.WARM, self._warm_arm)
        self._for_each(Arm.COLD, self._cold_arm)
        self._for_each(Arm.COLD_AGAIN, self._cold_again_arm)
        self._for_each(Arm.REUSE, self._reuse_arm)
        self._for_each(Arm.CONTROL, self._control_arm)
        return PairMeasurement(
            tuple(self._results.values()), server, self._plan, dict(self._seconds)
        )

    def _require_calibration_server(self) -> ServerInfo:
        server = self._client.server_info()
        if server.mode != "off":
            raise CalibrationError(
                f"the server's xver mode is {server.mode or 'absent'!r}; arm R needs KV that "
                "nobody judged. Start a server of its own with --radix-cache-backend xver and "
                "SGLANG_XVER_MODE=off"
            )
        if not server.layout:
            raise CalibrationError(
                "the server doesn't state the layout of its KV cache, so nobody could tell where "
                "the evidence holds; see its log for the reason"
            )
        self._plan.require_fits(server)
        self._page_size = server.page_size
        return server

    def _for_each(self, arm: Arm, measure: Callable[[Document], None]) -> None:
        for document in self._plan.documents:
            started = time.perf_counter()
            measure(document)
            self._seconds[arm] += time.perf_counter() - started
            self._done += 1
            total = self._ARMS_PER_DOCUMENT * len(self._plan.documents)
            self._on_progress(Progress(arm, self._done, total))

    # ---- arms ----

    def _source_arm(self, document: Document) -> None:
        scored = [item for item in document.items if item.task.is_correct is not None]
        self._ask_cold(Arm.SOURCE, document, scored)

    def _warm_arm(self, document: Document) -> None:
        self._write_prefix(Arm.WARM, document)
        for item in document.items:
            self._ask(Arm.WARM, document, item, len(document.prefix_ids))
            scores = self._score(Arm.WARM, document, item)
            if scores is not None:
                self._warm[item.item_id] = scores

    def _cold_arm(self, document: Document) -> None:
        self._ask_cold(Arm.COLD, document, document.items)
        for item in document.items:
            scores = self._score(Arm.COLD, document, item)
            self._results[item.item_id].floor = self._divergence(document, item, scores)

    def _cold_again_arm(self, document: Document) -> None:
        self._ask_cold(Arm.COLD_AGAIN, document, document.items)

    def _reuse_arm(self, document: Document) -> None:
        for item in document.items:
            self._ask(Arm.REUSE, document, item, len(document.prefix_ids))
            scores = self._score(Arm.REUSE, document, item)
            self._results[item.item_id].divergence = self._divergence(document, item, scores)

    def _control_arm(self, document: Document) -> None:
        """Ask the first item of each task on the next document instead of its own."""
        documents = self._plan.documents
        other = documents[(documents.index(document) + 1) % len(documents)]
        asked: set[str] = set()
        for item in document.items:
            if item.is_scored_for_divergence and item.task.name not in asked:
                asked.add(item.task.name)
                scores = self._score(Arm.CONTROL, other, item)
                self._results[item.item_id].control = self._divergence(document, item, scores)

    # ---- requests ----

    def _write_prefix(self, arm: Arm, document: Document) -> None:
        answer = self._client.generate(
            document.prefix_ids, max_new_tokens=1, cache_salt=self._plan.salt(arm, document)
        )
        self._require_cached(arm, document.document_id, answer.cached_tokens, 0)

    def _ask_cold(self, arm: Arm, document: Document, items: Sequence[Item]) -> None:
        """Prefill from scratch: with the first item only, or with every one (see the plan)."""
        for index, item in enumerate(items):
            is_cold = index == 0 or self._plan.is_cold_every_item
            self._ask(arm, document, item, 0 if is_cold else len(document.prefix_ids))

    def _ask(self, arm: Arm, document: Document, item: Item, expected_tokens: int) -> None:
        # Capped at the document's end: questions share their first words, and a longer hit for
        # some of them would compare different batch shapes.
        answer = self._client.generate(
            (*document.prefix_ids, *item.question_ids),
            max_new_tokens=item.task.max_new_tokens,
            cache_salt=self._salt(arm, document, item),
            reuse_at_most_tokens=len(document.prefix_ids),
        )
        self._require_cached(arm, item.item_id, answer.cached_tokens, expected_tokens)
        if not answer.output_ids:
            raise InvalidRunError(f"arm {arm}, item {item.item_id!r}: the server generated nothing")
        self._results[item.item_id].answers[arm] = answer

    def _score(self, arm: Arm, document: Document, item: Item) -> tuple[TopLogprobs, ...] | None:
        """Return the distributions along W's own answer, or None for an item without them."""
        if not item.is_scored_for_divergence:
            return None
        warm = self._results[item.item_id].answers[Arm.WARM]
        forced = warm.output_ids[: item.task.forced_positions]
        prompt = (*document.prefix_ids, *item.question_ids)
        is_control = arm is Arm.CONTROL
        scores = self._client.score(
            (*prompt, *forced[:-1]),
            first_position=len(prompt),
            top_k=self._plan.top_k or self._client.vocab_size,
            cache_salt=self._salt(Arm.WARM if is_control else arm, document, item),
        )
        if is_control:
            self._require_cached_at_least(arm, item.item_id, scores.cached_tokens, document)
        else:
            # The answer's own request left the prompt in the cache, all but its last token is hit.
            self._require_cached(arm, item.item_id, scores.cached_tokens, len(prompt) - 1)
        return scores.positions

    def _salt(self, arm: Arm, document: Document, item: Item) -> str:
        cold_arms = (Arm.SOURCE, Arm.COLD, Arm.COLD_AGAIN)
        is_own = self._plan.is_cold_every_item and arm in cold_arms
        return self._plan.salt(arm, document, item.item_id if is_own else "")

    def _divergence(
        self, document: Document, item: Item, scores: tuple[TopLogprobs, ...] | None
    ) -> ItemDivergence | None:
        if scores is None:
            return None
        reference = self._warm[item.item_id]
        return compare_item(document.document_id, reference, scores, self._client.vocab_size)

    def _require_cached(self, arm: Arm, what: str, found_tokens: int, expected_tokens: int) -> None:
        expected_tokens = expected_tokens // self._page_size * self._page_size
        if found_tokens != expected_tokens:
            raise InvalidRunError(
                f"arm {arm}, {what!r}: {found_tokens} prompt tokens came from the cache, the arm "
                f"demands {expected_tokens}. The run is void. Is somebody else using this server, "
                "or is its pool too small?"
            )

    def _require_cached_at_least(
        self, arm: Arm, what: str, found_tokens: int, document: Document
    ) -> None:
        floor_tokens = len(document.prefix_ids) // self._page_size * self._page_size
        if found_tokens < floor_tokens:
            self._require_cached(arm, what, found_tokens, floor_tokens)
