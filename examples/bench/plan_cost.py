"""Times how long an update holds the scheduler: keep all, evict all, and SGLang's flush."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time_ns

from examples.bench.caches import (
    RUST,
    XVER,
    BenchCache,
    Matched,
    evict_everything,
    keep_everything,
)
from examples.bench.workload import Workload

KEEP_LIMIT_MS = 10.0
EVICT_LIMIT_RATIO = 1.5
EVICT_LIMIT_EXTRA_MS = 60.0


@dataclass
class PlanCost:
    """CPU milliseconds of every repetition, on trees of ``num_nodes`` nodes and ``num_tokens``.

    CPU time, and the fastest repetition counts: a single update is too short for a median to
    cancel what else the machine does.
    """

    page_size: int
    num_nodes: int = 0
    num_tokens: int = 0
    keep_ms: list[float] = field(default_factory=list)
    evict_ms: list[float] = field(default_factory=list)
    flush_ms: list[float] = field(default_factory=list)
    """SGLang with its Rust core: the tree's reset and the allocator's clear."""

    @property
    def evict_limit_ms(self) -> float:
        """What evicting everything may cost at most."""
        return EVICT_LIMIT_RATIO * min(self.flush_ms) + EVICT_LIMIT_EXTRA_MS


def measure_plans(workload: Workload, page_size: int, repetitions: int) -> PlanCost:
    """Apply plans to full trees, one after the other.

    Raises:
        RuntimeError: a plan kept or freed other than it should.
    """
    cost = PlanCost(page_size)
    for _ in range(repetitions):
        _measure_plans_once(cost, workload)
        stock = _full_cache(RUST, workload, page_size)
        cost.flush_ms.append(_timed(stock.flush))
        _require(stock, 0)
    return cost


def _measure_plans_once(cost: PlanCost, workload: Workload) -> None:
    cache = _full_cache(XVER, workload, cost.page_size)
    core = cache.cache.tree_core
    cost.num_nodes = len(core.subtree(core.root_node)) - 1
    cost.num_tokens = cache.cache.evictable_size()
    keep, evict = keep_everything(cache.epoch, "next"), evict_everything("after next")
    cost.keep_ms.append(_timed(lambda: cache.apply(keep)))
    _require(cache, cost.num_tokens)
    cost.evict_ms.append(_timed(lambda: cache.apply(evict)))
    _require(cache, 0)


def _full_cache(variant: str, workload: Workload, page_size: int) -> BenchCache:
    cache = BenchCache(variant, page_size, 2 * workload.max_tokens)
    for tokens in workload.requests():
        result = cache.cache.match_prefix(cache.match_params(tokens))
        matched = Matched(int(result.device_prefix_len), result.last_device_node)
        cache.cache.insert(cache.insert_params(tokens, matched))
    return cache


def _timed(action: Callable[[], None]) -> float:
    """Run ``action`` without garbage collection, whose turn is an accident here."""
    gc.disable()
    try:
        started = process_time_ns()
        action()
        return (process_time_ns() - started) / 1e6
    finally:
        gc.enable()


def _require(cache: BenchCache, tokens: int) -> None:
    held, free = cache.cache.evictable_size(), cache.allocator.available_size()
    if held != tokens or held + free != cache.allocator.size:
        raise RuntimeError(
            f"{cache.variant} holds {held} tokens, not {tokens}; {free} slots of "
            f"{cache.allocator.size} are free"
        )
