"""Server options that the xver backend refuses, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_xver.errors import UnsupportedError


class Refusal(NamedTuple):
    """An option that can't be combined with the backend."""

    option: str
    is_set: Callable[[Any], bool]
    reason: str


def _flag(name: str) -> Callable[[Any], bool]:
    return lambda args: bool(getattr(args, name, False))


def _above_one(name: str) -> Callable[[Any], bool]:
    return lambda args: int(getattr(args, name, 1) or 1) > 1


_UNTAGGED_TIER = "old KV could come back from a tier whose copies carry no version"
_OWN_POOLS = "it keeps KV in pools or rows that the tree's plan does not reach"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("--enable-hierarchical-cache", _flag("enable_hierarchical_cache"), _UNTAGGED_TIER),
    Refusal("--hicache-storage-backend", _flag("hicache_storage_backend"), _UNTAGGED_TIER),
    Refusal("--enable-lmcache", _flag("enable_lmcache"), _UNTAGGED_TIER),
    Refusal("--enable-flexkv", _flag("enable_flexkv"), _UNTAGGED_TIER),
    Refusal(
        "--enable-unified-cache-external-linker",
        _flag("enable_unified_cache_external_linker"),
        _UNTAGGED_TIER,
    ),
    Refusal("--speculative-algorithm", _flag("speculative_algorithm"), _OWN_POOLS),
    Refusal("--enable-streaming-session", _flag("enable_streaming_session"), _OWN_POOLS),
    Refusal("--enable-session-radix-cache", _flag("enable_session_radix_cache"), _OWN_POOLS),
    Refusal("--enable-kv-cache-sharding", _flag("enable_kv_cache_sharding"), _OWN_POOLS),
    Refusal(
        "--disaggregation-mode",
        lambda args: getattr(args, "disaggregation_mode", "null") not in (None, "null"),
        "the decode side holds copies of its own",
    ),
    Refusal(
        "--dllm-algorithm", _flag("dllm_algorithm"), "its requests hold KV in a queue of its own"
    ),
    Refusal("--dp-size", _above_one("dp_size"), "a plan for several replicas was not checked"),
    Refusal("--pp-size", _above_one("pp_size"), "pipeline stages were not checked"),
    Refusal(
        "--tokenizer-worker-num",
        _above_one("tokenizer_worker_num"),
        "several main processes would each hold a part of the state",
    ),
    Refusal(
        "--enable-lora",
        _flag("enable_lora"),
        "evidence is measured without adapters and says nothing about base plus adapter",
    ),
)


def require_supported(server_args: Any, tree_components: int, is_multimodal: bool = False) -> None:
    """Raise :class:`UnsupportedError` that names every refused option that is set.

    Args:
        server_args: SGLang's resolved server arguments.
        tree_components: component kinds of the tree; more than one means SWA or Mamba state.
        is_multimodal: whether the model takes images or sound.
    """
    problems = [
        f"{refusal.option} ({refusal.reason})"
        for refusal in REFUSALS
        if refusal.is_set(server_args)
    ]
    if tree_components > 1:
        problems.append("sliding-window or Mamba models (their states were not checked)")
    if is_multimodal:
        problems.append("multimodal models (their embedding cache survives every update)")
    if problems:
        raise UnsupportedError(
            f"--radix-cache-backend xver can't be combined with {'; '.join(problems)}. "
            "Drop the option or the backend."
        )
