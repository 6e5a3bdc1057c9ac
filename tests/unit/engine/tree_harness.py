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
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.fidelity import HINT_KEY
from sglang_xver.plan import EpochRule, Plan

MAX_CONTEXT = 640
MAX_REQUESTS = 64


@dataclass
class SlotContent:
    """What was computed into a slot: the token path up to it and every epoch that took part."""

    path: tuple[int, ...]
    epochs: frozenset[str]
    own: str


@dataclass(eq=False)
class Request:
    """A request of the harness.

    ``tokens`` are those with KV, ``prompt`` all that prefill has to compute, and ``row`` the KV
    slots in token order, up to the end of the last page.
    """

    tokens: tuple[int, ...]
    prompt: tuple[int, ...]
    req: Any
    matched: int
    row: list[int] = field(default_factory=list)


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
    """One cache of ``size`` slots with pages of ``page_size`` tokens.

    ``families`` are the task families that the deployment declares, ``params`` further fields of
    SGLang's ``CacheInitParams``.
    """

    def __init__(
        self,
        page_size: int = 1,
        size: int = 2048,
        families: tuple[str, ...] = (),
        **params: Any,
    ) -> None:
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
                **params,
            )
        )
        self.cache.placer.families = families
        self.content: dict[int, SlotContent] = {}
        self.free_rows = list(range(MAX_REQUESTS))
        self.running: list[Request] = []

    @property
    def core(self) -> Any:
        return self.cache.tree_core

    @property
    def epoch(self) -> str:
        return str(self.core.epochs.current_key)

    def request(
        self,
        tokens: tuple[int, ...],
        extra_key: str | None = None,
        hint: Any = None,
        priority: int = 0,
    ) -> Any:
        """Return SGLang's view of a request that holds no KV yet.

        ``hint`` is what the client put under ``custom_params["xver"]``.
        """
        params = None if hint is None else {HINT_KEY: hint}
        req = SimpleNamespace(
            rid=str(id(tokens)),
            kv=SimpleNamespace(
                req_pool_idx=None,
                cache_protected_len=0,
                cache_inserted_len=0,
                holds_kv=False,
            ),
            full_untruncated_fill_ids=array("q"),
            origin_input_ids=array("q", tokens),
            sampling_params=SimpleNamespace(custom_params=params),
            priority=priority,
            session=None,
            session_id=None,
            kv_rotation_base=None,
            extra_key=extra_key,
            cache_salt=None,
            last_node=None,
            lock=None,
            is_finished=False,
            skip_radix_cache_insert=False,
            _cache_breakdown_computed=False,
        )
        req.finished = lambda: req.is_finished
        return req

    def match(self, req: Any, limit: int | None = None) -> Any:
        """Return SGLang's match of at most ``limit`` tokens for a request without KV."""
        key = RadixKey(req.origin_input_ids, req.extra_key, limit=limit)
        return self.cache.match_prefix(MatchPrefixParams(key=key, req=req))

    def matched_slots(self, result: Any) -> list[int]:
        """Return the slots that a match found, in token order."""
        slots = self.cache.path_device_indices(result.last_device_node).tolist()
        return list(slots[: int(result.device_prefix_len)])

    def start(
        self,
        tokens: tuple[int, ...],
        max_match: int | None = None,
        *,
        chunk: int | None = None,
        again: Any = None,
        **options: Any,
    ) -> Request:
        """Admit a request: match at most ``max_match`` tokens, lock, allocate, compute.

        ``chunk`` is how many tokens the first prefill computes at most; None computes all.
        ``again`` is the view of a request that waited or was retracted; without it ``options``
        are those of :meth:`request`.
        """
        req = self.request(tokens, **options) if again is None else again
        req.origin_input_ids = array("q", tokens)
        result = self.match(req, len(tokens) - 1 if max_match is None else max_match)
        matched = int(result.device_prefix_len)
        req.last_node = result.last_device_node
        req.lock = self.cache.lock(req.last_node)
        req.kv.req_pool_idx = self.free_rows.pop()
        req.kv.cache_protected_len = matched
        req.kv.cache_inserted_len = 0
        req.kv.holds_kv = True
        req._cache_breakdown_computed = True
        req.full_untruncated_fill_ids = array("q", tokens[:matched])
        request = Request(tokens[:matched], tokens, req, matched, self.matched_slots(result))
        self.running.append(request)
        end = len(tokens) if chunk is None else min(len(tokens), matched + chunk)
        self.extend(request, tokens[matched:end])
        return request

    def _allocate(self, needed: int) -> list[int]:
        """Return slots for ``needed`` tokens in whole pages; evicts what they lack."""
        pages = -(-needed // self.page_size)
        shortage = pages * self.page_size - self.allocator.available_size()
        if shortage > 0:
            self.cache.evict(EvictParams(num_tokens=shortage))
        slots = self.allocator.alloc(pages * self.page_size)
        assert slots is not None, "pool exhausted"
        allocated: list[int] = slots.tolist()
        return allocated

    def extend(self, request: Request, more: tuple[int, ...]) -> None:
        """Compute ``more`` tokens: the next chunk of the prompt, or decoded ones."""
        start = len(request.tokens)
        request.tokens += more
        request.req.full_untruncated_fill_ids.extend(more)
        missing = len(request.tokens) - len(request.row)
        if missing > 0:
            request.row += self._allocate(missing)
        self._record(request, start)
        row = torch.tensor(request.row, dtype=torch.int32)
        self.rows.req_to_token[request.req.kv.req_pool_idx, : len(row)] = row

    def _record(self, request: Request, start: int) -> None:
        """Note what has been computed into the row from token ``start`` on."""
        before = (self.content[slot].epochs for slot in request.row[:start])
        epochs = frozenset[str]().union({self.epoch}, *before)
        for position in range(start, len(request.tokens)):
            path = request.tokens[: position + 1]
            self.content[request.row[position]] = SlotContent(path, epochs, self.epoch)

    def publish(self, request: Request, finished: bool = False) -> None:
        """Hand the request's KV to the tree, as a checkpoint or as the final insert."""
        if request.req.skip_radix_cache_insert:
            return
        request.req.is_finished = finished
        self.cache.checkpoint_into_tree(request.req, up_to=len(request.tokens))
        index = request.req.kv.req_pool_idx
        request.row = self.rows.req_to_token[index, : len(request.row)].tolist()

    def owned_from(self, request: Request) -> int:
        """Return the position in the row from which the slots are the request's own."""
        protected = request.req.kv.cache_protected_len
        return -(-protected // self.page_size) * self.page_size

    def finish(self, request: Request, publish: bool = True) -> None:
        """Release the request, publishing its KV first unless it is barred or aborted."""
        if publish:
            self.publish(request, finished=True)
        tail = request.row[self.owned_from(request) :]
        if tail:
            self.allocator.free(torch.tensor(tail, dtype=torch.int64))
        self.cache.unlock(request.req.lock)
        self.free_rows.append(request.req.kv.req_pool_idx)
        request.req.kv.holds_kv = False
        self.running.remove(request)

    def run(self, tokens: tuple[int, ...], max_match: int | None = None, **options: Any) -> Request:
        """Run a request from start to end and return it."""
        request = self.start(tokens, max_match, **options)
        self.finish(request)
        return request

    def bar_straddlers(self) -> None:
        """Keep the KV of everything that runs out of the tree, as a weight update does."""
        for request in self.running:
            request.req.skip_radix_cache_insert = True

    def update(self, update: Plan) -> Any:
        """Apply ``update`` as a scheduler does: straddlers are barred, then the plan applies."""
        if update.target_key != self.epoch:
            self.bar_straddlers()
        return self.cache.apply_plan(update)

    def reads(self, tokens: tuple[int, ...], **options: Any) -> list[SlotContent]:
        """Return what a new request for ``tokens`` would read from the cache."""
        result = self.match(self.request(tokens, **options))
        return [self.content[slot] for slot in self.matched_slots(result)]

    def check_slots(self) -> None:
        """Assert that no slot is leaked or owned twice."""
        tree = [
            int(slot)
            for node in self.core.subtree(self.core.root_node)[1:]
            for slot in node.component_data[ComponentType.FULL].value
        ]
        assert len(tree) == len(set(tree)), "a slot is in the tree twice"
        own = [s for request in self.running for s in request.row[self.owned_from(request) :]]
        assert len(own) == len(set(own)), "two requests own a slot"
        assert not set(own) & set(tree), "a request owns a slot of the tree"
        total = self.allocator.available_size() + len(tree) + len(own)
        assert total == self.size, f"{self.size - total} slots leaked"
        evictable = self.cache.evictable_size() + self.cache.protected_size()
        assert evictable == len(tree)
        self.cache.sanity_check()
