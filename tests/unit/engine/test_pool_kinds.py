"""Keep, cut and evict over every kind of pool that is supported, with KV that can be told apart.

A plan moves whole slots and reads none, so the bytes of kept slots must be the ones that were
written, in any storage.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan

SLOTS = 64
TOKENS = list(range(100, 132))
COMMON: dict[str, Any] = {
    "size": SLOTS,
    "layer_num": 2,
    "device": "cpu",
    "enable_memory_saver": False,
}


def mla(page_size: int, dtype: torch.dtype) -> MLATokenToKVPool:
    return MLATokenToKVPool(
        page_size=page_size, dtype=dtype, kv_lora_rank=8, qk_rope_head_dim=4, **COMMON
    )


def mha(page_size: int, dtype: torch.dtype) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        page_size=page_size, dtype=dtype, head_num=2, head_dim=4, enable_alt_stream=False, **COMMON
    )


def buffers(pool: Any) -> list[torch.Tensor]:
    """Return the raw bytes of every layer's buffers, one row per slot."""
    layers = [*pool.kv_buffer] if hasattr(pool, "kv_buffer") else [*pool.k_buffer, *pool.v_buffer]
    return [layer.view(torch.uint8).reshape(layer.shape[0], -1) for layer in layers]


class World:
    """One cache over one pool, filled with one branch whose KV is random bytes."""

    def __init__(self, make_pool: Any, page_size: int, dtype: torch.dtype) -> None:
        self.pool = make_pool(page_size, dtype)
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(SLOTS, dtype, "cpu", self.pool, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                SLOTS, page_size, dtype, "cpu", self.pool, False
            )
        self.cache = XverRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(2, SLOTS, "cpu", False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
            )
        )
        generator = torch.Generator().manual_seed(7)
        for layer in buffers(self.pool):
            layer.random_(0, 256, generator=generator)
        self.slots = self.allocator.alloc(len(TOKENS))
        self.written = self.bytes_of(self.slots)
        self.cache.insert(InsertParams(key=self.key(), value=self.slots.clone()))

    def key(self) -> RadixKey:
        return RadixKey(array("q", TOKENS), None)

    def bytes_of(self, slots: torch.Tensor) -> list[torch.Tensor]:
        return [layer[slots].clone() for layer in buffers(self.pool)]

    def visible(self) -> torch.Tensor:
        result = self.cache.match_prefix(MatchPrefixParams(key=self.key()))
        slots = self.cache.path_device_indices(result.last_device_node)
        return slots[: result.device_prefix_len]

    def update(self, keep_max_tokens: int) -> Any:
        rule = EpochRule(keep_max_tokens=keep_max_tokens, reason="TEST")
        return self.cache.apply_plan(
            Plan(update_id="u", target_key="b", model_path="m", rules={"initial": rule})
        )


@pytest.fixture(
    params=[
        (pool, page, dtype)
        for pool in (mha, mla)
        for page in (1, 16)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    ],
    ids=lambda p: f"{p[0].__name__}-page{p[1]}-{str(p[2]).removeprefix('torch.')}",
)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


@pytest.mark.parametrize("limit, kept", [(UNLIMITED, 32), (16, 16), (31, None), (0, 0)])
def test_kept_slots_hold_what_was_written_and_the_rest_is_free(
    world: World, limit: int, kept: int | None
) -> None:
    page = world.cache.page_size
    expected = limit - limit % page if kept is None else kept
    change = world.update(limit)
    assert (change.kept_tokens, change.evicted_tokens) == (expected, len(TOKENS) - expected)
    visible = world.visible()
    assert visible.tolist() == world.slots[:expected].tolist()
    for now, before in zip(world.bytes_of(visible), world.written, strict=True):
        assert torch.equal(now, before[:expected])
    assert world.allocator.available_size() == SLOTS - expected


def test_condemned_at_once(world: World) -> None:
    change = world.cache.condemn_all()
    assert change.evicted_tokens == len(TOKENS)
    assert world.visible().tolist() == []
    assert world.allocator.available_size() == SLOTS


def test_held_slots_are_freed_when_released(world: World) -> None:
    node = world.cache.match_prefix(MatchPrefixParams(key=world.key())).last_device_node
    lock = world.cache.lock(node)
    change = world.update(0)
    assert (change.evicted_tokens, change.blocked_tokens) == (0, len(TOKENS))
    assert world.visible().tolist() == []
    held = world.bytes_of(world.slots)
    assert all(torch.equal(a, b) for a, b in zip(held, world.written, strict=True))
    world.cache.unlock(lock)
    assert world.allocator.available_size() == SLOTS
