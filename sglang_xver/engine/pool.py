"""Reads the running KV pool's storage and refuses pools that nobody checked."""

from __future__ import annotations

from typing import Any

from sglang_xver.errors import UnsupportedError
from sglang_xver.layout import PoolFacts

# Pools whose rows are one token of one layer. Keep and evict move whole slots, so the dtype of a
# row does not matter here, 8-bit floats included.
_SUPPORTED_POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")
_PLAIN_STORAGE = ("UnquantizedKVCacheMethod", "CPUFP8KVCacheMethod")

_SCALES_APART = "its values mean nothing without scales that lie elsewhere"
# By a part of the class name; the first that fits explains the refusal.
_REASONS = (
    ("DeepSeekV4", "it packs compressed states with index spaces of their own"),
    ("DSV4", "it packs compressed states with index spaces of their own"),
    ("SWA", "sliding-window layers keep other tokens than the tree knows"),
    ("Mamba", "recurrent states belong to a position, not to a token"),
    ("HybridLinear", "recurrent states belong to a position, not to a token"),
    ("FP4", _SCALES_APART),
    ("Nvfp4", _SCALES_APART),
    ("MXFP8", _SCALES_APART),
    ("HiSparse", "a part of the KV lies in host memory"),
    ("DSA", "its indexer keeps a second set of keys"),
    ("QSA", "its indexer keeps a second set of keys"),
    ("LayerSplit", "a rank holds a part of the layers"),
    ("PageInterleave", "a rank holds a part of the pages"),
    ("Unified", "its pages move between pools while the server runs"),
    ("NoOp", "it stores nothing"),
)
_UNKNOWN = "nobody checked what one of its slots holds"


def _refuse(pool: str, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"KV pool {pool} is not supported by --radix-cache-backend xver: {reason} "
        f"(supported: {', '.join(_SUPPORTED_POOLS)}). Start without the flag."
    )


def _require_supported_pool(kv_pool: Any) -> None:
    name = type(kv_pool).__name__
    if name not in _SUPPORTED_POOLS:
        raise _refuse(name, next((why for part, why in _REASONS if part in name), _UNKNOWN))
    if name == "MLATokenToKVPool":
        if kv_pool.use_dsa:
            raise _refuse(f"{name} with use_dsa", "its indexer keeps a second set of keys")
        if kv_pool.dcp_replicated or kv_pool.layer_shard_enabled:
            raise _refuse(f"{name}, sharded", "a rank holds a part of the KV")
        return
    if kv_pool.kv_cache_layout != "nhd":
        # Page-wise layouts: the first index of a buffer is not a token's slot.
        raise _refuse(f"{name} with layout {kv_pool.kv_cache_layout!r}", _UNKNOWN)
    method = type(kv_pool.quant_method).__name__
    if method not in _PLAIN_STORAGE:
        raise _refuse(f"{name} with {method}", _SCALES_APART)


def _row_bytes(buffer: Any) -> int:
    """Bytes of one slot of one layer's buffer ``[slots, ...]``."""
    return int(buffer[0].numel() * buffer.element_size())


def read_pool_facts(kv_pool: Any, total_kv_heads: int, tp_size: int) -> PoolFacts:
    """Describe ``kv_pool``.

    Args:
        kv_pool: ``token_to_kv_pool_allocator.get_kvcache()``.
        total_kv_heads: KV heads of the model over all ranks; ignored for MLA.
        tp_size: ranks that the KV heads are spread over.

    Raises:
        UnsupportedError: the pool's class or storage is not one that was checked.
    """
    _require_supported_pool(kv_pool)
    if type(kv_pool).__name__ == "MLATokenToKVPool":
        local = sum(_row_bytes(buffer) for buffer in kv_pool.kv_buffer)
        copies, layout = 1, "mla"
    else:
        local = sum(_row_bytes(buffer) for buffer in (*kv_pool.k_buffer, *kv_pool.v_buffer))
        copies, layout = min(tp_size, total_kv_heads), "mha"
    return PoolFacts(
        kv_dtype=str(kv_pool.dtype).removeprefix("torch."),
        pool_layout=layout,
        bytes_per_token=local * copies,
    )
