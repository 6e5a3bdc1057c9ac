"""Checks of the messages that several requests share."""

from __future__ import annotations

from xver.compat.v1 import common_pb2 as common

from compat_service.validation.fields import (
    MAX_COUNT,
    MAX_DIGEST_CHARS,
    MAX_NAME_CHARS,
    Violations,
)

MAX_SLIDING_WINDOWS = 1024
_LAYOUT_COUNTS = (
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "bytes_per_token",
)


def check_version(found: Violations, path: str, version: common.ModelVersion) -> None:
    """Check a model version whose fingerprint may be unknown."""
    if version.fingerprint:
        found.fingerprint(f"{path}.fingerprint", version.fingerprint)
    if version.base_fingerprint:
        found.fingerprint(f"{path}.base_fingerprint", version.base_fingerprint)
    for name in ("label", "family", "lineage"):
        found.text(f"{path}.{name}", getattr(version, name), MAX_NAME_CHARS)
    found.text(f"{path}.tokenizer_digest", version.tokenizer_digest, MAX_DIGEST_CHARS)
    found.count(f"{path}.lineage_step", version.lineage_step, 0, 2**63 - 1, "a step counts from 0")


def check_layout(found: Violations, path: str, layout: common.CacheLayout) -> None:
    """Check a cache layout; its digest is required by the caller where it must be."""
    found.text(f"{path}.digest", layout.digest, MAX_DIGEST_CHARS)
    found.text(f"{path}.rope_digest", layout.rope_digest, MAX_DIGEST_CHARS)
    for name in ("kv_dtype", "pool_layout"):
        found.text(f"{path}.{name}", getattr(layout, name), MAX_NAME_CHARS)
    for name in _LAYOUT_COUNTS:
        found.count(
            f"{path}.{name}", getattr(layout, name), 0, 2**63 - 1, "a size cannot be negative"
        )
    field = f"{path}.sliding_windows"
    if found.list_size(field, layout.sliding_windows, MAX_SLIDING_WINDOWS):
        for index, window in enumerate(layout.sliding_windows):
            found.count(f"{field}[{index}]", window, -1, MAX_COUNT, "-1 and 0 mean no window")


def check_engine(found: Violations, path: str, engine: common.Engine) -> None:
    """Check an engine; name and version are required by the caller where they must be."""
    for name in ("name", "version", "attention_backend"):
        found.text(f"{path}.{name}", getattr(engine, name), MAX_NAME_CHARS)


def require_conditions(
    found: Violations,
    layout_path: str,
    layout: common.CacheLayout,
    engine_path: str,
    engine: common.Engine,
) -> None:
    """Require what decides which evidence applies: layout digest, engine name and version."""
    found.require(f"{layout_path}.digest", layout.digest, "give the digest of the KV cache layout")
    found.require(f"{engine_path}.name", engine.name, "name the engine, for example sglang")
    found.require(
        f"{engine_path}.version", engine.version, "give the engine version, for example 0.5.23"
    )
