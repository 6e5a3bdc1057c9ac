"""Reads the running KV pool's storage and refuses pools that nobody checked."""

from __future__ import annotations

from typing import Any

from sglang_xver.errors import UnsupportedError
from sglang_xver.layout import PoolFacts

# Pools whose rows are one token of one layer. Keep and evict move whole slots, so nothing else
# about them matters here; packed pools with index spaces of their own are refused.
_SUPPORTED_POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")


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
        UnsupportedError: the pool's class is not one that was checked.
    """
    name = type(kv_pool).__name__
    if name not in _SUPPORTED_POOLS:
        raise UnsupportedError(
            f"KV pool {name} is not supported by --radix-cache-backend xver "
            f"(supported: {', '.join(_SUPPORTED_POOLS)}). Start without the flag."
        )
    if name == "MLATokenToKVPool":
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
