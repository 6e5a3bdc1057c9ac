"""KV pools: what is read off the supported ones, and that every other one is refused by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest
import sglang.srt.mem_cache as mem_cache
import torch
from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool, MLATokenToKVPool

from sglang_xver.engine.pool import read_pool_facts
from sglang_xver.errors import UnsupportedError

LAYERS, HEAD_DIM, LATENT, ROPE = 2, 4, 8, 4
UNCHECKED = "nobody checked"


def mha(heads: int = 2, dtype: torch.dtype = torch.bfloat16, **fields: Any) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        size=8,
        page_size=1,
        dtype=dtype,
        head_num=heads,
        head_dim=HEAD_DIM,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
        **fields,
    )


def mla(dtype: torch.dtype = torch.bfloat16, **fields: Any) -> MLATokenToKVPool:
    return MLATokenToKVPool(
        size=8,
        page_size=1,
        dtype=dtype,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
        **fields,
    )


def pool_classes() -> list[type]:
    """Return every KV pool class of SGLang's modules that import on this machine."""
    for module in pkgutil.iter_modules(mem_cache.__path__):
        if "pool" in module.name or "split" in module.name:
            importlib.import_module(f"{mem_cache.__name__}.{module.name}")
    found, todo = {}, [KVCache]
    while todo:
        for subclass in todo.pop().__subclasses__():
            found[f"{subclass.__module__}.{subclass.__name__}"] = subclass
            todo.append(subclass)
    concrete = [c for c in found.values() if not inspect.isabstract(c)]
    return sorted(concrete, key=lambda c: c.__name__)


REFUSED = [c for c in pool_classes() if c not in (MHATokenToKVPool, MLATokenToKVPool)]


class TestSupported:
    @pytest.mark.parametrize("local, total, tp", [(2, 2, 1), (1, 2, 2), (1, 2, 4)])
    def test_bytes_count_every_head_once(self, local: int, total: int, tp: int) -> None:
        facts = read_pool_facts(mha(local), total, tp)
        assert facts.bytes_per_token == 2 * LAYERS * total * HEAD_DIM * torch.bfloat16.itemsize
        assert (facts.kv_dtype, facts.pool_layout) == ("bfloat16", "mha")

    def test_mla_latent_is_replicated(self) -> None:
        facts = read_pool_facts(mla(), 128, 8)
        assert facts.bytes_per_token == LAYERS * (LATENT + ROPE) * torch.bfloat16.itemsize
        assert (facts.kv_dtype, facts.pool_layout) == ("bfloat16", "mla")

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
    @pytest.mark.parametrize("make", [mha, mla])
    def test_eight_bit_floats_are_another_layout_of_half_the_bytes(
        self, make: Any, dtype: torch.dtype
    ) -> None:
        wide, narrow = read_pool_facts(make(), 2, 1), read_pool_facts(make(dtype=dtype), 2, 1)
        assert narrow.bytes_per_token * 2 == wide.bytes_per_token
        assert narrow.kv_dtype == str(dtype).removeprefix("torch.")


class TestRefused:
    def test_the_list_holds_the_pools_that_matter(self) -> None:
        names = {c.__name__ for c in REFUSED}
        assert names >= {
            "DeepSeekV4TokenToKVPool",
            "DSATokenToKVPool",
            "HybridLinearKVPool",
            "MHATokenToKVPoolFP4",
            "MHATokenToKVPoolMXFP8",
            "MLATokenToKVPoolFP4",
            "SWAKVPool",
            "UnifiedMHATokenToKVPool",
        }

    @pytest.mark.parametrize("pool_class", REFUSED, ids=lambda c: c.__name__)
    def test_every_other_pool_of_sglang_by_name(self, pool_class: type) -> None:
        with pytest.raises(UnsupportedError, match=rf"KV pool {pool_class.__name__} is not"):
            read_pool_facts(object.__new__(pool_class), 1, 1)

    @pytest.mark.parametrize(
        "name, reason",
        [
            ("DeepSeekV4TokenToKVPool", "index spaces of their own"),
            ("SWAKVPool", "sliding-window"),
            ("HybridLinearKVPool", "recurrent"),
            ("MHATokenToKVPoolFP4", "scales"),
            ("MLATokenToKVPoolFP4", "scales"),
            ("MHATokenToKVPoolMXFP8", "scales"),
            ("DSATokenToKVPool", "indexer"),
        ],
    )
    def test_with_its_reason(self, name: str, reason: str) -> None:
        pool_class = next(c for c in REFUSED if c.__name__ == name)
        with pytest.raises(UnsupportedError, match=reason):
            read_pool_facts(object.__new__(pool_class), 1, 1)

    def test_a_pool_that_nobody_knows(self) -> None:
        class QuantumPool:
            pass

        with pytest.raises(UnsupportedError, match=f"QuantumPool .*{UNCHECKED}"):
            read_pool_facts(QuantumPool(), 1, 1)

    def test_quantisation_inside_a_pool_of_the_plain_class(self) -> None:
        pool = mha()
        pool.quant_method = type("NVFP4KVCacheMethod", (), {})()
        with pytest.raises(UnsupportedError, match=r"NVFP4KVCacheMethod.*scales"):
            read_pool_facts(pool, 2, 1)

    def test_a_buffer_whose_first_index_is_a_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
        with pytest.raises(UnsupportedError, match="layout 'hnd'"):
            read_pool_facts(mha(), 2, 1)

    @pytest.mark.parametrize("field", ["use_dsa", "dcp_replicated", "layer_shard_enabled"])
    def test_mla_with_more_or_less_than_its_latent(self, field: str) -> None:
        pool = mla()
        setattr(pool, field, True)
        with pytest.raises(UnsupportedError, match="MLATokenToKVPool"):
            read_pool_facts(pool, 2, 1)


def test_the_message_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match="Start without the flag"):
        read_pool_facts(SimpleNamespace(), 1, 1)
