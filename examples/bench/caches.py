"""One radix cache per tree core, each with SGLang's real allocator and no KV behind it."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan

RUST = "SGLang, Rust core"
PYTHON = "SGLang, Python core"
XVER = "xver, all KV current"
XVER_KEPT = "xver, prompts kept from an earlier version"

VARIANTS = (RUST, PYTHON, XVER, XVER_KEPT)


class Matched(NamedTuple):
    """How much of a request is in the tree, and the node that the match ended on."""

    num_tokens: int
    node: int


class BenchCache:
    """A cache of ``size`` slots and the operations of one request on it."""

    def __init__(self, variant: str, page_size: int, size: int) -> None:
        self.variant = variant
        self.page_size = page_size
        size -= size % page_size
        self.allocator = (
            TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", None, False)
            if page_size == 1
            else PagedTokenToKVPoolAllocator(size, page_size, torch.bfloat16, "cpu", None, False)
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            tree_components=(ComponentType.FULL,),
            tree_core_backend={RUST: "rust", PYTHON: "python"}.get(variant),
        )
        is_stock = variant in (RUST, PYTHON)
        self.cache: Any = UnifiedRadixCache(params) if is_stock else XverRadixCache(params)

    def warm_up(self, prompts: list[array[int]]) -> None:
        """Put the system prompts into the tree; with kept KV, update the weights afterwards."""
        for prompt in prompts:
            self.cache.insert(self.insert_params(prompt, Matched(0, self.root)))
        if self.variant == XVER_KEPT:
            self.apply(keep_everything(self.epoch, "the next version"))

    def match_params(self, tokens: array[int]) -> MatchPrefixParams:
        """As the scheduler asks: at least one token is always computed."""
        return MatchPrefixParams(key=RadixKey(tokens, limit=len(tokens) - 1))

    def insert_params(self, tokens: array[int], matched: Matched) -> InsertParams:
        """As a checkpoint inserts: whole pages, the matched part in the tree's own slots."""
        end = len(tokens) - len(tokens) % self.page_size
        own = self.cache.path_device_indices(matched.node)
        fresh = self.allocator.alloc(end - matched.num_tokens)
        return InsertParams(
            key=RadixKey(tokens[:end]),
            value=torch.cat([own, fresh]),
            prev_prefix_len=matched.num_tokens,
        )

    @property
    def root(self) -> int:
        return int(self.cache.root_node_handle())

    @property
    def epoch(self) -> str:
        """Key of the epoch that a plan would name as source; for the xver variants only."""
        return str(self.cache.tree_core.epochs.current_key)

    def apply(self, plan: Plan) -> None:
        """Apply a plan; for the xver variants only."""
        self.cache.apply_plan(plan)

    def flush(self) -> None:
        """What SGLang's flush does to tree and slots."""
        self.cache.reset()
        self.allocator.clear()


def keep_everything(source: str, target: str) -> Plan:
    """Return a plan that keeps all KV of ``source`` under ``target``."""
    rule = EpochRule(keep_max_tokens=UNLIMITED, reason="BENCHMARK")
    return Plan(update_id="b", target_key=target, model_path="m", rules={source: rule})


def evict_everything(target: str) -> Plan:
    """Return a plan that keeps nothing."""
    return Plan(update_id="b", target_key=target, model_path="m")
