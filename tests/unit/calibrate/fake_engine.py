"""An in-memory stand-in for a server: a real prefix cache per salt, scripted answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from sglang_xver.calibrate.engine_types import (
    Generation,
    Scores,
    ServerInfo,
    TopLogprobs,
    UpdateReply,
)
from tests.unit.calibrate.builders import ENGINE, LAYOUT, VOCAB_SIZE, distribution

Written = dict[tuple[int, ...], str]


class FakeEngine:
    """Remembers which weights wrote each cached token; ``answer`` and ``logits`` see the writer.

    ``reader`` is the loaded checkpoint's name, ``writer`` that of the KV of the first prompt token.
    """

    vocab_size = VOCAB_SIZE

    def __init__(self, *, mode: str = "off", pool_tokens: int = 10_000) -> None:
        self.mode = mode
        self.pool_tokens = pool_tokens
        self.weights = "none"
        self.updates: list[tuple[str, bool]] = []
        self.salts: set[str] = set()
        self.answer: Callable[[str, str], str] = lambda reader, writer: (
            "right" if reader == writer else "wrong"
        )
        self.logits: Callable[[str, str, tuple[int, ...]], TopLogprobs] = _default_logits
        self._cache: dict[str, Written] = defaultdict(dict)

    def server_info(self) -> ServerInfo:
        layout = {"mode": self.mode, "layout": LAYOUT, "engine": ENGINE}
        return ServerInfo(1000, self.pool_tokens, 1, self.mode, LAYOUT, layout)

    def update_weights_from_disk(self, path: Path, *, flush_cache: bool = True) -> UpdateReply:
        self.updates.append((path.name, flush_cache))
        self.weights = path.name
        if flush_cache:
            self._cache.clear()
        return UpdateReply("", {})

    def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        cache_salt: str,
        reuse_at_most_tokens: int | None = None,
    ) -> Generation:
        cap = len(input_ids) - 1 if reuse_at_most_tokens is None else reuse_at_most_tokens
        cached_tokens, writer = self._run(tuple(input_ids), cache_salt, cap)
        text = self.answer(self.weights, writer)
        ids = tuple(range(max_new_tokens)) if text == "right" else (9,) * max_new_tokens
        return Generation(text, ids, cached_tokens, "length")

    def score(
        self, input_ids: Sequence[int], *, first_position: int, top_k: int, cache_salt: str
    ) -> Scores:
        ids = tuple(input_ids)
        cached_tokens, writer = self._run(ids, cache_salt, first_position - 1)
        count = len(ids) - first_position + 1
        row = self.logits(self.weights, writer, ids)
        return Scores((row,) * count, cached_tokens)

    def _run(self, ids: tuple[int, ...], salt: str, cap: int) -> tuple[int, str]:
        self.salts.add(salt)
        cache = self._cache[salt]
        cached_tokens = 0
        while cached_tokens < cap and ids[: cached_tokens + 1] in cache:
            cached_tokens += 1
        writer = cache[ids[:1]] if cached_tokens else self.weights
        for end in range(1, len(ids) + 1):
            # As in SGLang: what is in the tree already stays there.
            cache.setdefault(ids[:end], self.weights)
        return cached_tokens, writer


def _default_logits(reader: str, writer: str, ids: tuple[int, ...]) -> TopLogprobs:
    """Peaked at a token that depends on the document and on who wrote its KV."""
    peak = (ids[0] + (0 if reader == writer else 7)) % VOCAB_SIZE
    return distribution([0.5 if t == peak else 0.5 / (VOCAB_SIZE - 1) for t in range(VOCAB_SIZE)])
