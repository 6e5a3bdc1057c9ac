"""Dial pairs: the same function with the KV cache moved by a known amount, no training.

V is rotated per KV head and rotated back in o_proj; Q and K are rotated by one angle per RoPE
plane, which commutes with RoPE. Natively the target equals its base up to bf16 rounding; KV of
one read by the other is wrong by a linear map that grows with ``alpha``. So the right verdict is
known in advance: small alpha keep, larger alpha remap, permuted heads remap by a joint map only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.testbed.cache import TestbedError, build_once, content_id
from examples.testbed.lora import load_weights, write_variant

_RECIPE_VERSION = 1


@dataclass(frozen=True)
class _Heads:
    layers: int
    queries: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.queries // self.kv


def dial(base: Path, alpha: float, permute_heads: bool = False, *, seed: int = 0) -> Path:
    """Cached checkpoint folder with the base's function and a KV space turned by ``alpha``.

    ``permute_heads`` also shifts KV heads by one place, with their query groups. Raises
    TestbedError for an architecture whose Q/K/V have biases or norms: a rotation would then
    change the function.
    """
    recipe = {
        "kind": "dial",
        "version": _RECIPE_VERSION,
        "base": content_id(base),
        "alpha": alpha,
        "permute_heads": permute_heads,
        "seed": seed,
    }

    def build(folder: Path) -> None:
        weights = load_weights(base)
        turned = turned_weights(weights, _heads(base), alpha, permute_heads, seed)
        write_variant(base, turned, folder)

    return build_once(f"dial-{alpha:g}{'-permuted' if permute_heads else ''}", recipe, build)


def turned_weights(
    weights: Mapping[str, torch.Tensor], heads: _Heads, alpha: float, permute: bool, seed: int
) -> dict[str, torch.Tensor]:
    """New state dict with every attention block turned; computed in fp32, inputs kept.

    Raises TestbedError when Q, K or V carry more than a weight matrix.
    """
    foreign = [k for k in weights if "self_attn" in k and not k.endswith("_proj.weight")]
    if foreign:
        raise TestbedError(
            f"{foreign[0]} isn't a plain projection, so turning KV would change the function; "
            "use a Llama checkpoint without attention biases and norms"
        )
    generator = torch.Generator().manual_seed(seed)
    turned = dict(weights)
    for layer in range(heads.layers):
        stem = f"model.layers.{layer}.self_attn"
        names = [f"{stem}.{p}_proj.weight" for p in "qkvo"]
        block = _turn_block([weights[n].float() for n in names], heads, alpha, permute, generator)
        for name, tensor in zip(names, block, strict=True):
            turned[name] = tensor.to(weights[name].dtype).contiguous()
    return turned


def _turn_block(
    block: list[torch.Tensor],
    heads: _Heads,
    alpha: float,
    permute: bool,
    generator: torch.Generator,
) -> list[torch.Tensor]:
    hidden = block[0].shape[1]
    q = block[0].view(heads.kv, heads.group, heads.dim, hidden)
    k = block[1].view(heads.kv, heads.dim, hidden)
    v = block[2].view(heads.kv, heads.dim, hidden)
    o = block[3].view(hidden, heads.kv, heads.group, heads.dim)
    planes = _plane_rotation(heads, alpha, generator)
    values = _value_rotation(heads, alpha, generator)
    q = torch.einsum("hde,hgex->hgdx", planes, q)
    k = torch.einsum("hde,hex->hdx", planes, k)
    v = torch.einsum("hde,hex->hdx", values, v)
    # o R^T (R v) = o v: the inverse of a rotation is its transpose.
    o = torch.einsum("xhge,hde->xhgd", o, values)
    if permute:
        q, k, v, o = q.roll(1, 0), k.roll(1, 0), v.roll(1, 0), o.roll(1, 1)
    return [t.reshape(w.shape) for t, w in zip((q, k, v, o), block, strict=True)]


def _plane_rotation(heads: _Heads, alpha: float, generator: torch.Generator) -> torch.Tensor:
    """Shape (kv heads, dim, dim): plane j spans dims j and j + dim/2, as RoPE pairs them."""
    half = heads.dim // 2
    angle = alpha * heads.dim**0.5 * torch.randn(heads.kv, half, generator=generator)
    cos, sin = torch.diag_embed(angle.cos()), torch.diag_embed(angle.sin())
    return torch.cat([torch.cat([cos, -sin], -1), torch.cat([sin, cos], -1)], -2)


def _value_rotation(heads: _Heads, alpha: float, generator: torch.Generator) -> torch.Tensor:
    """Shape (kv heads, dim, dim): expm(alpha * A) with a random antisymmetric A."""
    square = torch.randn(heads.kv, heads.dim, heads.dim, generator=generator)
    return torch.linalg.matrix_exp(alpha * (square - square.mT) / 2**0.5)


def _heads(base: Path) -> _Heads:
    config = json.loads((base / "config.json").read_text())
    queries = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // queries
    kv = config.get("num_key_value_heads") or queries
    return _Heads(config["num_hidden_layers"], queries, kv, dim)
