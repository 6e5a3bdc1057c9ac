"""Times what each request costs in the tree, the variants in turns within one run."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from examples.bench.caches import RUST, VARIANTS, BenchCache, Matched
from examples.bench.workload import Workload


@dataclass
class BlockTimes:
    """Nanoseconds of every request of one block, by operation."""

    match: list[int] = field(default_factory=list)
    insert: list[int] = field(default_factory=list)
    lock: list[int] = field(default_factory=list)
    """Lock and unlock together."""

    @property
    def match_and_insert(self) -> int:
        """Total of the block, with whatever garbage collection fell into it."""
        return sum(self.match) + sum(self.insert)


@dataclass
class RequestCost:
    """All blocks of one page size; block ``i`` of every variant ran the same requests."""

    page_size: int
    blocks: dict[str, list[BlockTimes]] = field(default_factory=dict)

    def microseconds(self, variant: str, operation: Callable[[BlockTimes], list[int]]) -> float:
        """Median over all requests of one operation."""
        times = [time for block in self.blocks[variant] for time in operation(block)]
        return statistics.median(times) / 1000

    def ratio(self, variant: str) -> float:
        """Median over the blocks of match + insert, over the Rust core's in the same block."""
        pairs = zip(self.blocks[variant], self.blocks[RUST], strict=True)
        return statistics.median(
            own.match_and_insert / rust.match_and_insert for own, rust in pairs
        )


def measure_requests(
    workload: Workload, page_size: int, rounds: int, block_requests: int
) -> RequestCost:
    """Run the workload ``rounds`` times on fresh trees.

    The variants take turns block by block, each first as often as the others, so that a slow
    moment of the machine hits all of them.

    Raises:
        RuntimeError: a variant matched other lengths than the Rust core.
    """
    cost = RequestCost(page_size, {variant: [] for variant in VARIANTS})
    requests = workload.requests()
    starts = range(0, len(requests) - block_requests + 1, block_requests)
    for _ in range(rounds):
        caches = [BenchCache(name, page_size, 2 * workload.max_tokens) for name in VARIANTS]
        for cache in caches:
            cache.warm_up(workload.prompts())
        for turn, start in enumerate(starts):
            first = turn % len(caches)
            matched = {}
            for cache in caches[first:] + caches[:first]:
                times, lengths = _run_block(cache, requests[start : start + block_requests])
                cost.blocks[cache.variant].append(times)
                matched[cache.variant] = lengths
            _require_same(matched)
    return cost


def _run_block(cache: BenchCache, requests: Sequence[array[int]]) -> tuple[BlockTimes, list[int]]:
    tree, times, lengths = cache.cache, BlockTimes(), []
    for tokens in requests:
        match_params = cache.match_params(tokens)
        started = perf_counter_ns()
        result = tree.match_prefix(match_params)
        matched_at = perf_counter_ns()
        lock = tree.lock(result.last_device_node)
        locked_at = perf_counter_ns()
        times.match.append(matched_at - started)
        matched = Matched(int(result.device_prefix_len), result.last_device_node)
        lengths.append(matched.num_tokens)
        insert_params = cache.insert_params(tokens, matched)
        started = perf_counter_ns()
        tree.insert(insert_params)
        inserted_at = perf_counter_ns()
        tree.unlock(lock)
        unlocked_at = perf_counter_ns()
        times.insert.append(inserted_at - started)
        times.lock.append(locked_at - matched_at + unlocked_at - inserted_at)
    return times, lengths


def _require_same(matched: dict[str, list[int]]) -> None:
    for variant, lengths in matched.items():
        if lengths != matched[RUST]:
            raise RuntimeError(f"{variant} matched {lengths}, {RUST} {matched[RUST]}")
