"""Entry point of the SGLang plugin."""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_xver.config import load_config
from sglang_xver.engine.cpu.kernel_stub import ensure_sgl_kernel
from sglang_xver.identity import read_config, read_geometry, stamp_digest
from sglang_xver.layout import KvLayout, PoolFacts, make_layout

if TYPE_CHECKING:
    from sglang_xver.engine.metrics import SchedulerMetrics

logger = logging.getLogger(__name__)

BACKEND_NAME = "xver"


def register() -> None:
    """Register the cache backend, the tree core and all hooks; called by SGLang in each process.

    Nothing is registered unless the installed SGLang offers everything: a server started with the
    flag then stops with an unknown backend, and one started without it is left alone.
    """
    ensure_sgl_kernel()
    # Read now, though nobody needs it yet: a typo must stop the server before it loads a model.
    load_config()
    from sglang_xver.engine import hook_table

    hook_table.require_matching_sglang()
    _register_cpu_attention()
    _register_backend()
    _register_hooks()


def _register_cpu_attention() -> None:
    from sglang_xver.engine.cpu.attention import register_cpu_attention

    register_cpu_attention()


def _register_backend() -> None:
    from sglang.srt.mem_cache.registry import (
        register_radix_cache_backend,
        registered_radix_cache_backends,
    )
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        register_tree_core_backend,
        registered_tree_core_backends,
    )

    from sglang_xver.engine.cache import TREE_CORE_NAME

    if TREE_CORE_NAME not in registered_tree_core_backends():
        register_tree_core_backend(TREE_CORE_NAME, _make_tree_core)
    if BACKEND_NAME not in registered_radix_cache_backends():
        register_radix_cache_backend(BACKEND_NAME, make_cache)


def _make_tree_core(params: Any, components: Any) -> Any:
    from sglang_xver.engine.tree import XverTreeCore

    return XverTreeCore(params, components)


def make_cache(ctx: Any) -> Any:
    """Build the prefix cache for one scheduler.

    Raises:
        HookError: a hook is missing in this process.
        UnsupportedError: an option or a pool that was not checked is in use.
        ConfigError: the configuration is malformed.
    """
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    from sglang_xver.engine.cache import XverRadixCache
    from sglang_xver.engine.combinations import require_supported
    from sglang_xver.engine.hook_table import require_applied_hooks
    from sglang_xver.engine.journal import Journal, ServerFacts
    from sglang_xver.engine.pool import read_pool_facts
    from sglang_xver.engine.updates import UpdateController

    require_applied_hooks()
    config = load_config()
    require_supported(
        ctx.server_args,
        tree_components=1 + int(ctx.is_hybrid_swa) + int(ctx.is_hybrid_ssm),
        is_multimodal=ctx.model_config.is_multimodal,
        is_generation=ctx.model_config.is_generation,
    )
    facts = read_pool_facts(
        ctx.params.token_to_kv_pool_allocator.get_kvcache(),
        ctx.model_config.get_total_num_kv_heads(),
        ctx.tp_size,
    )
    folder = _served_folder(ctx)
    layout = None if folder is None else _layout(ctx, folder, facts)
    stamp = "" if folder is None else stamp_digest(folder)
    cache = create_unified_radix_cache(ctx, cache_class=XverRadixCache)
    server = ServerFacts(config.mode, layout, _engine(ctx.server_args), stamp)
    journal = Journal(cache, server, _metrics_factory(ctx))
    cache.xver_updates = UpdateController(cache, config, journal)
    logger.info("xver: prefix cache ready, mode %s, layout %s", config.mode, layout)
    return cache


def _metrics_factory(ctx: Any) -> Callable[[], SchedulerMetrics] | None:
    """All ranks see the same, so the first one speaks for all."""
    if not ctx.server_args.enable_metrics or ctx.tp_rank != 0:
        return None

    def make() -> SchedulerMetrics:
        from sglang_xver.engine.metrics import SchedulerMetrics

        return SchedulerMetrics(ctx.server_args.served_model_name or ctx.server_args.model_path)

    return make


def _engine(server_args: Any) -> dict[str, str]:
    """Describe the engine with the field names of the API's ``Engine``."""
    from sglang.srt.arg_groups.overrides import resolved_view

    return {
        "name": "sglang",
        "version": importlib.metadata.version("sglang"),
        "attention_backend": str(resolved_view(server_args).attention_backend),
    }


def _served_folder(ctx: Any) -> Path | None:
    from sglang_xver.engine.gate import resolve_model_folder
    from sglang_xver.errors import CheckpointError

    try:
        return resolve_model_folder(ctx.model_config.model_path, ctx.server_args.revision)
    except CheckpointError as error:
        logger.warning("xver: served checkpoint unknown, every update evicts: %s", error)
        return None


def _layout(ctx: Any, folder: Path, facts: PoolFacts) -> KvLayout:
    overrides = json.loads(ctx.server_args.json_model_override_args or "{}")
    geometry = read_geometry({**read_config(folder), **overrides})
    config = ctx.model_config
    # Overrides outside the geometry change what is computed too.
    computed_with = json.dumps(overrides, sort_keys=True)
    compute = f"{config.dtype}/{config.quantization or 'none'}/{computed_with}"
    return make_layout(geometry, facts, compute)


def _register_hooks() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_xver.engine import main_hooks, scheduler_hooks
    from sglang_xver.engine.hook_table import MANAGER, STATE, STREAMER, TOKENIZER

    around = {
        f"{MANAGER}.flush_cache_after_weight_update": scheduler_hooks.around_flush,
        f"{MANAGER}.update_weights_from_disk": scheduler_hooks.around_update,
        f"{MANAGER}.update_weights_from_ipc": scheduler_hooks.around_update,
        f"{MANAGER}.update_weights_from_tensor": scheduler_hooks.around_bucket,
        f"{MANAGER}.update_weights_from_distributed": scheduler_hooks.around_bucket,
        f"{MANAGER}.begin_weight_update": scheduler_hooks.around_begin_session,
        f"{MANAGER}.end_weight_update": scheduler_hooks.around_end_session,
        f"{MANAGER}.resume_memory_occupation": scheduler_hooks.around_resume_memory,
        f"{MANAGER}.check_weights": scheduler_hooks.around_check_weights,
        f"{STATE}.set_internal_state": scheduler_hooks.around_set_internal_state,
        f"{TOKENIZER}.set_internal_state": main_hooks.around_set_internal_state,
        f"{TOKENIZER}.update_weights_from_disk": main_hooks.around_update_from_disk,
        f"{TOKENIZER}.update_weights_from_tensor": main_hooks.around_unfingerprinted_update,
        f"{TOKENIZER}.update_weights_from_distributed": main_hooks.around_unfingerprinted_update,
        f"{TOKENIZER}.update_weights_from_ipc": main_hooks.around_unfingerprinted_update,
        f"{TOKENIZER}.update_weight_version": main_hooks.around_update_version,
        f"{STREAMER}.get_cached_tokens_details": scheduler_hooks.around_cached_tokens_details,
    }
    after = {
        f"{STATE}.get_internal_state": scheduler_hooks.after_get_internal_state,
        f"{TOKENIZER}.__init__": main_hooks.after_init,
        f"{TOKENIZER}._create_tokenized_object": main_hooks.after_create_tokenized_object,
    }
    for path, hook in around.items():
        HookRegistry.register(path, hook, HookType.AROUND)
    for path, hook in after.items():
        HookRegistry.register(path, hook, HookType.AFTER)
