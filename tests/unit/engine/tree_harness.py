"""Drives the real cache with real allocators and tiny pools, and remembers who computed each slot.

``Harness`` plays the scheduler's part for one request at a time: match, lock, allocate, publish,
release. For every KV slot it records the token path and the epochs of the computation, so that a
test can tell what a request really reads, whatever the tags say.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.plan import EpochRule, Plan

MAX_CONTEXT = 512
MAX_REQUESTS = 64


@dataclass
class SlotContent:
    """What was computed into a slot: the token path up to it and every epoch that took part."""

    path: tuple[int, ...]
    epochs: frozenset[str]
    own: str


@dataclass
class Request:
    """A request of the harness; ``row`` are its KV slots in token order."""

    tokens: tuple[int, ...]
    req: Any
    matched: int
    row: list[int] = field(default_factory=list)
    barred: bool = False


def plan(target: str, **limits: int) -> Plan:
    """Return a plan with one rule per named epoch; -1 keeps all."""
    return Plan(
        update_id="u",
        target_key=target,
        model_path="m",
        rules={
            key: EpochRule(keep_max_tokens=limit, reason="TEST") for key, limit in limits.items()
        },
    )


class Harness:
    """One cache of ``size`` slots with pages of ``page_size`` tokens."""

    def __init__(self, page_size: int = 1, size: int = 2048) -> None:
        self.page_size = page_size
        self.size = size
        pool = MHATokenToKVPool(
            size=size,
            page_size=page_size,
            dtype=torch.bfloat16,
            head_num=1,
            head_dim=2,
            layer_num=1,
            device="cpu",
            enable_memory_saver=False,
            enable_alt_stream=False,
        )
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", pool, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                size, page_size, torch.bfloat16, "cpu", pool, False
            )
        self.rows = ReqToTokenPool(MAX_REQUESTS, MAX_CONTEXT, "cpu", False)
        self.cache = XverRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
            )
        )
        self.content: dict[int, SlotContent] = {}
        self.free_rows = list(range(MAX_REQUESTS))
        self.running: list[Request] = []

    @property
    def core(self) -> Any:
        return self.cache.tree_core

    @property
    def epoch(self) -> str:
        return str(self.core.epochs.current_key)

    def _key(self, tokens: tuple[int, ...], limit: int | None = None) -> RadixKey:
        return RadixKey(array("q", tokens), limit=limit)

    def start(self, tokens: tuple[int, ...], max_match: int | None = None) -> Request:
        """Admit a request: match (at most ``max_match`` tokens), lock, allocate, compute."""
        limit = len(tokens) - 1 if max_match is None else max_match
        result = self.cache.match_prefix(MatchPrefixParams(key=self._key(tokens, limit)))
        matched = int(result.device_prefix_len)
        node = result.last_device_node
        slots = self.cache.path_device_indices(node).tolist()[:matched]
        req = SimpleNamespace(
            rid=str(id(tokens)),
            kv=SimpleNamespace(
                req_pool_idx=self.free_rows.pop(),
                cache_protected_len=matched,
                cache_inserted_len=0,
                holds_kv=True,
            ),
            full_untruncated_fill_ids=array("q", tokens),
            origin_input_ids=array("q", tokens),
            priority=0,
            session_id=None,
            kv_rotation_base=None,
            extra_key=None,
            cache_salt=None,
            last_node=node,
            lock=self.cache.lock(node),
            is_finished=False,
            skip_radix_cache_insert=False,
        )
        req.finished = lambda: req.is_finished
        request = Request(tokens, req, matched, list(slots))
        self.running.append(request)
        self._compute(request)
        return request

    def _allocate(self, start: int, end: int, last_slot: int) -> list[int]:
        needed = end - start
        shortage = needed + self.page_size - self.allocator.available_size()
        if shortage > 0:
            from sglang.srt.mem_cache.base_prefix_cache import EvictParams

            self.cache.evict(EvictParams(num_tokens=shortage))
        if self.page_size == 1:
            slots = self.allocator.alloc(needed)
        else:
            # Whole pages, as a prefill that starts on a page boundary gets them.
            assert start % self.page_size == 0
            pages = -(-needed // self.page_size)
            slots = self.allocator.alloc(pages * self.page_size)
        assert slots is not None, "pool exhausted"
        return [int(slot) for slot in slots][: needed if self.page_size == 1 else None]

    def _compute(self, request: Request) -> None:
        start, end = request.matched, len(request.tokens)
        fresh = self._allocate(start, end, request.row[-1] if request.row else -1)
        lineage = frozenset[str]().union(*(self.content[s].epochs for s in request.row))
        for offset, slot in enumerate(fresh[: end - start]):
            path = request.tokens[: start + offset + 1]
            self.content[slot] = SlotContent(path, lineage | {self.epoch}, self.epoch)
        request.row += fresh
        index = request.req.kv.req_pool_idx
        row = torch.tensor(request.row, dtype=torch.int32)
        self.rows.req_to_token[index, : len(row)] = row

    def publish(self, request: Request, finished: bool = False) -> None:
        """Hand the request's KV to the tree, as a checkpoint or as the final insert."""
        if request.req.skip_radix_cache_insert:
            return
        request.req.is_finished = finished
        self.cache.checkpoint_into_tree(request.req, up_to=len(request.tokens))
        index = request.req.kv.req_pool_idx
        length = len(request.row)
        request.row = self.rows.req_to_token[index, :length].tolist()

    def finish(self, request: Request, publish: bool = True) -> None:
        """Release the request, publishing its KV first unless it is barred or aborted."""
        if publish:
            self.publish(request, finished=True)
        protected = request.req.kv.cache_protected_len
        start = -(-protected // self.page_size) * self.page_size
        tail = request.row[protected:] if self.page_size == 1 else request.row[start:]
        if tail:
            self.allocator.free(torch.tensor(sorted(tail), dtype=torch.int64))
        self.cache.unlock(request.req.lock)
        self.free_rows.append(request.req.kv.req_pool_idx)
        self.running.remove(request)

    def run(self, tokens: tuple[int, ...], max_match: int | None = None) -> Request:
        """Run a request from start to end and return it."""
        request = self.start(tokens, max_match)
        self.finish(request)
        return request

    def update(self, update: Plan) -> Any:
        """Apply ``update`` as a scheduler does: straddlers are barred, then the plan applies."""
        if update.target_key != self.epoch:
            for request in self.running:
                request.req.skip_radix_cache_insert = True
        return self.cache.apply_plan(update)

    def reads(self, tokens: tuple[int, ...]) -> list[SlotContent]:
        """Return what a new request for ``tokens`` would read from the cache."""
        key = self._key(tokens)
        result = self.cache.match_prefix(MatchPrefixParams(key=key))
        slots = self.cache.path_device_indices(result.last_device_node).tolist()
        return [self.content[slot] for slot in slots[: int(result.device_prefix_len)]]

    def check_slots(self) -> None:
        """Assert that no slot is leaked or owned twice."""
        tree = [
            int(slot)
            for node in self.core.subtree(self.core.root_node)[1:]
            for slot in node.component_data[ComponentType.FULL].value
        ]
        assert len(tree) == len(set(tree)), "a slot is in the tree twice"
        own: list[int] = []
        for request in self.running:
            protected = request.req.kv.cache_protected_len
            own += request.row[protected:]
        assert len(own) == len(set(own)), "two requests own a slot"
        assert not set(own) & set(tree), "a request owns a slot of the tree"
        total = self.allocator.available_size() + len(tree) + len(own)
        assert total == self.size, f"{self.size - total} slots leaked"
        evictable = self.cache.evictable_size() + self.cache.protected_size()
        assert evictable == len(tree)
        self.cache.sanity_check()
