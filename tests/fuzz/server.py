"""One server for the fuzzer: its options, its clients' prompts and hints, and its real cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_xver.fidelity import is_namespaced
from tests.fuzz.truth import FAMILIES, Truth, path_hashes
from tests.unit.engine.tree_harness import Harness, Request

MAX_RUNNING = 6
SEGMENTS = {1: (7, 16, 20, 33), 4: (7, 16, 20, 33), 16: (7, 16, 20, 33), 64: (40, 64, 90, 130)}
MAX_TOKENS = {1: 300, 4: 300, 16: 300, 64: 540}

HINTS: dict[str, tuple[str, Any]] = {
    "none": ("strictest", None),
    "empty": ("strictest", {}),
    "niah": ("niah", {"task": "niah"}),
    "qa": ("qa", {"task": "qa", "fidelity": "default"}),
    "native": ("native", {"fidelity": "native"}),
    "native qa": ("native", {"task": "qa", "fidelity": "native"}),
    "undeclared": ("native", {"task": "poetry"}),
    "malformed": ("native", {"fidelity": 7}),
}
"""What clients say, by a short name: the class that it means, and the hint itself."""


@dataclass(frozen=True)
class Setup:
    """What a server is started with."""

    page_size: int = 1
    pages: int = 400
    policy: str = "lru"
    has_families: bool = True
    events: str = "off"
    """``off``, ``plain`` or ``dynamo``: SGLang's two formats of KV events."""


@lru_cache(maxsize=4096)
def tokens_of(branches: tuple[int, ...], permille: int, page_size: int) -> tuple[int, ...]:
    """Return a path in a small tree of segments, cut after ``permille`` of its tokens.

    Prompts share first words, branch and stop anywhere.
    """
    tokens: list[int] = []
    node = 0
    for branch in branches:
        node = node * 3 + branch + 1
        tokens += [node * 200 + offset for offset in range(SEGMENTS[page_size][node * 7 % 4])]
    return tuple(tokens[: max(2, len(tokens) * permille // 1000)])


def _must_not_fail(kind: str, error: Exception) -> None:
    """Stand in for the journal: nothing may go wrong on the way of a request."""
    raise AssertionError(f"the cache caught {kind}") from error


class FuzzHarness(Harness):
    """The harness, with contents in the model's arrays."""

    def __init__(self, setup: Setup) -> None:
        config = {"threshold": 60, "next_prompt_estimate": 20} if setup.policy == "tlru" else None
        super().__init__(
            setup.page_size,
            setup.pages * setup.page_size,
            FAMILIES,
            eviction_policy=setup.policy,
            eviction_policy_config=config,
            enable_kv_cache_events=setup.events != "off",
            dynamo_kv_event_format=setup.events == "dynamo",
        )
        self.truth = Truth(self.size + self.page_size, self.page_size)
        self._table = self.rows.req_to_token.numpy()
        self.core.on_failure = _must_not_fail

    def row(self, request: Request) -> NDArray[np.int32]:
        """Return the slots of the request's tokens as the request pool has them."""
        return self._table[request.req.kv.req_pool_idx, : len(request.tokens)].copy()

    def space_of(self, req: Any) -> int:
        """Return the number of the namespace that the cache chose for a request."""
        if req.extra_key != req.fuzz_key:
            return self.truth.space_id(req.extra_key, req.fuzz_class)
        # A client's key of the reserved form stays as it is only while nothing is cached.
        name = f"outside {req.extra_key}" if is_namespaced(req.extra_key) else req.extra_key
        return self.truth.space_id(name)

    def _record(self, request: Request, start: int) -> None:
        tokens = np.array(request.req.full_untruncated_fill_ids, np.int64)
        space = self.space_of(request.req)
        row = np.array(request.row[: len(request.tokens)], np.int32)
        self.truth.compute(row, start, path_hashes(tokens), self.epoch, space)
