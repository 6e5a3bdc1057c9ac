"""Time to first token over the served prefixes: cold, warm, and after a reload."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.demo.documents import ServedPrefix
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.errors import InvalidRunError


class Visits(NamedTuple):
    """Requests that were timed together."""

    ttft_ms: tuple[float, ...]
    cached_tokens: tuple[int, ...]

    @property
    def median_ms(self) -> float:
        """Median, so that one slow request on a busy machine decides nothing."""
        return statistics.median(self.ttft_ms)

    def has_hits_of(self, prefix_tokens: int) -> bool:
        """Whether every request reused at least the whole prefix."""
        return min(self.cached_tokens) >= prefix_tokens


@dataclass
class Visitor:
    """Sends questions on the same prefixes, each question once, under one ``cache_salt``.

    All questions have the same form and nearly the same length, so that requests differ by what
    is cached and by nothing else.
    """

    client: EngineClient
    prefixes: Sequence[ServedPrefix]
    cache_salt: str = field(default_factory=lambda: f"demo-{uuid.uuid4().hex}")
    _asked: int = 0

    @property
    def prefix_tokens(self) -> int:
        """Length of the shortest prefix."""
        return min(len(prefix.prefix_ids) for prefix in self.prefixes)

    def visit(self, questions_per_prefix: int = 1) -> Visits:
        """Ask the next questions on every prefix and time the first token of each answer."""
        samples = []
        for _ in range(questions_per_prefix):
            for prefix in self.prefixes:
                question = prefix.question_ids[self._asked % len(prefix.question_ids)]
                prompt = (*prefix.prefix_ids, *question)
                samples.append(self.client.ttft(prompt, cache_salt=self.cache_salt))
            self._asked += 1
        return Visits(
            tuple(sample.ttft_ms for sample in samples),
            tuple(sample.cached_tokens for sample in samples),
        )

    def fill(self) -> Visits:
        """Visit prefixes that nobody asked about before; raises when one was cached."""
        visits = self.visit()
        if max(visits.cached_tokens) >= self.prefix_tokens:
            raise InvalidRunError(
                f"{max(visits.cached_tokens)} tokens of a new prefix were cached already; "
                "is somebody else using this server?"
            )
        return visits

    def revisit(self, questions_per_prefix: int) -> Visits:
        """Visit cached prefixes; raises when one was not cached."""
        visits = self.visit(questions_per_prefix)
        if not visits.has_hits_of(self.prefix_tokens):
            raise InvalidRunError(
                f"only {min(visits.cached_tokens)} of {self.prefix_tokens} tokens of a filled "
                "prefix were cached; is the server's pool too small?"
            )
        return visits
