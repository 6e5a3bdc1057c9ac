"""Description of a KV cache's shape and storage, comparable over machines. Pure module."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from sglang_xver.identity import Geometry


@dataclass(frozen=True)
class PoolFacts:
    """What the running KV pool says about itself.

    ``bytes_per_token`` counts all layers and all KV heads of the model, over all ranks.
    """

    kv_dtype: str
    pool_layout: str
    bytes_per_token: int


@dataclass(frozen=True)
class KvLayout:
    """Geometry of the model plus storage of the pool; evidence is valid for one layout only."""

    digest: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    rope_digest: str
    kv_dtype: str
    pool_layout: str
    bytes_per_token: int

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready mapping with the field names of the API's ``CacheLayout``."""
        return asdict(self)


def make_layout(geometry: Geometry, pool: PoolFacts, compute: str) -> KvLayout:
    """Combine a model's geometry, a pool's storage and the way of computing into a layout.

    ``compute`` names the model's dtype and quantisation: what they change is in the KV too, so
    evidence from one holds for no other.

    The page size is left out on purpose: it decides which slots a token gets, never what is
    stored in them, so evidence holds for every page size.
    """
    values = geometry.values
    heads = int(values.get("num_attention_heads", 0))
    head_dim = values.get("head_dim")
    if head_dim is None:
        head_dim = int(values.get("hidden_size", 0)) // heads if heads else 0
    text = json.dumps([geometry.digest, asdict(pool), compute], sort_keys=True)
    return KvLayout(
        digest="layout:" + hashlib.sha256(text.encode()).hexdigest(),
        num_layers=int(values.get("num_hidden_layers", 0)),
        num_kv_heads=int(values.get("num_key_value_heads", heads)),
        head_dim=int(head_dim),
        kv_lora_rank=int(values.get("kv_lora_rank", 0)),
        qk_rope_head_dim=int(values.get("qk_rope_head_dim", 0)),
        rope_digest=geometry.rope_digest,
        kv_dtype=pool.kv_dtype,
        pool_layout=pool.pool_layout,
        bytes_per_token=pool.bytes_per_token,
    )
