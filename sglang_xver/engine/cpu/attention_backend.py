"""CPU attention whose prefill cost after a prefix hit is (new rows x length).

SGLang's ``torch_native`` backend pads the query to the full length and discards the prefix rows, so
a cached prefix saves no attention work. Here only the new rows are computed, under a causal mask
aligned to the bottom right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from sglang_xver.errors import UnsupportedError

# Bool elements per mask. SDPA expands a bool mask to the compute dtype, so 4 Mi elements cost
# 4 MiB + 8 MiB (bf16); at length 4096 this is 1024 rows per call, past which larger calls do not
# run faster on a CPU.
MASK_ELEMENTS_LIMIT = 1 << 22


class KeySpan(NamedTuple):
    """Key positions ``[start, end)`` that some row of a query chunk can see."""

    start: int
    end: int


def attend_new_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None,
    enable_gqa: bool,
    window_tokens: int | None = None,
    mask_elements_limit: int = MASK_ELEMENTS_LIMIT,
) -> torch.Tensor:
    """Causal attention of the last ``new`` positions of a sequence over all its positions.

    Args:
        query: the new rows, positions ``length - new .. length - 1``.
            Shape: (heads, new, qk_head_dim).
        key: cached and new keys. Shape: (kv_heads, length, qk_head_dim).
        value: cached and new values. Shape: (kv_heads, length, v_head_dim).
        scale: softmax scale; None means ``1 / sqrt(qk_head_dim)``.
        enable_gqa: ``kv_heads`` divides ``heads`` instead of equalling it.
        window_tokens: a row at position p sees ``p - window_tokens .. p``; None means no limit.
        mask_elements_limit: rows are split so that no mask is larger than this.

    Returns:
        A new tensor. Shape: (heads, new, v_head_dim).
    """
    new, length = query.shape[1], key.shape[1]
    prefix = length - new
    if window_tokens is not None and window_tokens >= length - 1:
        window_tokens = None  # the window never cuts: keep the cheaper paths below

    if prefix == 0 and window_tokens is None:
        # SDPA's own causal flag needs no mask in memory.
        return _sdpa(query, key, value, None, scale, enable_gqa, is_causal=True)

    rows_per_chunk = max(1, mask_elements_limit // max(1, length))
    chunks = []
    for row in range(0, new, rows_per_chunk):
        chunk = query[:, row : row + rows_per_chunk]
        first, end = prefix + row, prefix + row + chunk.shape[1]
        span = KeySpan(0 if window_tokens is None else max(0, first - window_tokens), end)
        mask = None
        if chunk.shape[1] > 1:  # a single row sees exactly its span
            mask = _bottom_right_mask(first, end, span, window_tokens, query.device)
        keys, values = key[:, span.start : span.end], value[:, span.start : span.end]
        chunks.append(_sdpa(chunk, keys, values, mask, scale, enable_gqa))
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)


def _bottom_right_mask(
    first: int, end: int, span: KeySpan, window_tokens: int | None, device: torch.device
) -> torch.Tensor:
    """True where the row at position p may see the key at position k.

    Shape: (end - first, span.end - span.start).
    """
    rows = torch.arange(first, end, device=device).unsqueeze(1)
    keys = torch.arange(span.start, span.end, device=device).unsqueeze(0)
    mask = keys <= rows
    if window_tokens is not None:
        mask &= keys >= rows - window_tokens
    return mask


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    enable_gqa: bool,
    is_causal: bool = False,
) -> torch.Tensor:
    """SDPA on unbatched tensors. Shape: (heads, rows, v_head_dim).

    ``enable_gqa`` stays on: torch's CPU flash kernel reads shared KV heads in place, without the
    copies that repeating them would make.
    """
    return F.scaled_dot_product_attention(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        attn_mask=mask,
        scale=scale,
        enable_gqa=enable_gqa,
        is_causal=is_causal,
    ).squeeze(0)


class NewRowsAttnBackend(TorchNativeAttnBackend):
    """``torch_native`` with an extend step that computes the new rows only.

    Decode is the stock step: one row per request, no padding to save. Encoder-decoder models,
    cross attention and bidirectional layers take the stock extend step too. Logit soft-capping and
    attention sinks are refused; the stock backend drops the first silently.
    """

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> torch.Tensor:
        """Write K and V of the new tokens to the pool and attend. Shape: (tokens, heads * dim)."""
        _refuse_unsupported(layer, extra)
        return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> torch.Tensor:
        """Write K and V of one token per request and attend. Shape: (requests, heads * dim)."""
        _refuse_unsupported(layer, extra)
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)

    def _run_sdpa_forward_extend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        """Attend the new rows of each request and fill ``output`` in place.

        Args:
            query: Shape: (tokens, heads, qk_head_dim), requests one after the other.
            output: Shape: (tokens, heads, v_head_dim).
            k_cache: Shape: (slots, kv_heads, qk_head_dim).
            v_cache: Shape: (slots, kv_heads, v_head_dim).
            req_to_token: slot of each position. Shape: (request rows, context length).
            req_pool_indices: Shape: (requests,); so are the three length tensors.

        Source: ``TorchNativeAttnBackend._run_sdpa_forward_extend``.
        """
        if encoder_lens is not None or is_cross_attn or not causal:
            return super()._run_sdpa_forward_extend(
                query,
                output,
                k_cache,
                v_cache,
                req_to_token,
                req_pool_indices,
                seq_lens,
                extend_prefix_lens,
                extend_seq_lens,
                encoder_lens,
                scaling=scaling,
                enable_gqa=enable_gqa,
                causal=causal,
                is_cross_attn=is_cross_attn,
                sliding_window_size=sliding_window_size,
            )
        # SGLang writes "no window" both as None and as -1.
        window = None if sliding_window_size in (None, -1) else sliding_window_size
        start = 0
        for row, length, new in zip(
            req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), strict=True
        ):
            if new == 0:
                continue
            slots = req_to_token[row, :length]
            # The pool may hold another dtype than the compute dtype; the stock step converts too.
            key = k_cache[slots].to(query.dtype).movedim(0, 1)
            value = v_cache[slots].to(query.dtype).movedim(0, 1)
            attended = attend_new_rows(
                query[start : start + new].movedim(0, 1),
                key,
                value,
                scale=scaling,
                enable_gqa=enable_gqa,
                window_tokens=window,
            )
            output[start : start + new] = attended.movedim(0, 1)
            start += new
        return output


def _refuse_unsupported(layer: Any, extra: dict[str, Any]) -> None:
    """Raise for what plain SDPA cannot express, rather than serve other numbers.

    Raises:
        UnsupportedError: the layer caps its logits, or an argument such as ``sinks`` was passed.
    """
    logit_cap = getattr(layer, "logit_cap", None) or 0.0
    if logit_cap > 0:
        raise UnsupportedError(
            f"layer {layer.layer_id} has logit_cap={logit_cap}: the xver_cpu attention backend "
            "has no logit soft-capping; serve this model with another attention backend"
        )
    passed = sorted(name for name, value in extra.items() if value is not None)
    if passed:
        raise UnsupportedError(
            f"layer {layer.layer_id} passes {passed}: the xver_cpu attention backend has plain "
            "causal attention only (no sinks); serve this model with another attention backend"
        )
