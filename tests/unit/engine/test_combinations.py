"""Options that could bring old KV back are refused, each with its reason."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.server_args import ServerArgs

from sglang_xver.engine.combinations import REFUSALS, require_supported
from sglang_xver.engine.pool import read_pool_facts
from sglang_xver.errors import UnsupportedError

SETTINGS = {
    "--enable-hierarchical-cache": ("enable_hierarchical_cache", True),
    "--hicache-storage-backend": ("hicache_storage_backend", "file"),
    "--enable-lmcache": ("enable_lmcache", True),
    "--enable-flexkv": ("enable_flexkv", True),
    "--enable-unified-cache-external-linker": ("enable_unified_cache_external_linker", True),
    "--speculative-algorithm": ("speculative_algorithm", "EAGLE"),
    "--enable-streaming-session": ("enable_streaming_session", True),
    "--enable-session-radix-cache": ("enable_session_radix_cache", True),
    "--enable-kv-cache-sharding": ("enable_kv_cache_sharding", True),
    "--disaggregation-mode": ("disaggregation_mode", "decode"),
    "--dllm-algorithm": ("dllm_algorithm", "LowConfidence"),
    "--dp-size": ("dp_size", 2),
    "--pp-size": ("pp_size", 2),
    "--tokenizer-worker-num": ("tokenizer_worker_num", 2),
    "--enable-lora": ("enable_lora", True),
}


def test_every_refusal_is_tested() -> None:
    assert SETTINGS.keys() == {refusal.option for refusal in REFUSALS}


@pytest.mark.parametrize("option", SETTINGS)
def test_refused_by_name(option: str) -> None:
    field, value = SETTINGS[option]
    with pytest.raises(UnsupportedError, match=option):
        require_supported(SimpleNamespace(**{field: value}), 1)


@pytest.mark.parametrize("option", SETTINGS)
def test_option_still_exists_in_sglang(option: str) -> None:
    assert SETTINGS[option][0] in inspect.signature(ServerArgs).parameters


def test_all_reasons_at_once() -> None:
    args = SimpleNamespace(enable_lmcache=True, pp_size=4)
    with pytest.raises(UnsupportedError, match=r"lmcache.*pp-size.*sliding-window"):
        require_supported(args, 2)


def test_multimodal_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="multimodal"):
        require_supported(SimpleNamespace(), 1, is_multimodal=True)


def test_plain_server_is_supported() -> None:
    require_supported(SimpleNamespace(disaggregation_mode="null", dp_size=1, enable_lora=None), 1)


def test_unchecked_pool_is_refused() -> None:
    class DeepSeekV4TokenToKVPool:
        pass

    with pytest.raises(UnsupportedError, match="DeepSeekV4TokenToKVPool is not supported"):
        read_pool_facts(DeepSeekV4TokenToKVPool(), 1, 1)


class MHATokenToKVPool:
    def __init__(self, heads: int) -> None:
        self.dtype = torch.bfloat16
        self.k_buffer = self.v_buffer = [torch.zeros(3, heads, 4, dtype=torch.bfloat16)] * 2


class MLATokenToKVPool:
    dtype = torch.bfloat16
    kv_buffer = (torch.zeros(3, 1, 12, dtype=torch.bfloat16),) * 2


@pytest.mark.parametrize("local, total, tp", [(2, 2, 1), (1, 2, 2), (1, 2, 4)])
def test_bytes_count_every_head_once(local: int, total: int, tp: int) -> None:
    facts = read_pool_facts(MHATokenToKVPool(local), total, tp)
    assert facts.bytes_per_token == 2 * 2 * total * 4 * 2
    assert facts.kv_dtype == "bfloat16"


def test_mla_latent_is_replicated() -> None:
    assert read_pool_facts(MLATokenToKVPool(), 128, 8).bytes_per_token == 2 * 12 * 2
