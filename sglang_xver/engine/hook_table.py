"""Every SGLang attribute in use, checked against the installed version before any is hooked."""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sglang_xver.errors import HookError

SGLANG_RANGE = ">=0.5.23,<0.5.24"

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

Use = Literal["hook", "override", "call"]


@dataclass(frozen=True)
class Symbol:
    """One attribute that the plugin relies on.

    ``hook`` and ``override`` need exactly ``parameters`` (an override may be called with any of
    them); ``call`` needs at least them.
    """

    path: str
    use: Use
    parameters: tuple[str, ...]


def _symbols(use: Use, owner: str, table: dict[str, str]) -> list[Symbol]:
    return [Symbol(f"{owner}.{name}", use, tuple(p.split())) for name, p in table.items()]


SYMBOLS: tuple[Symbol, ...] = (
    *_symbols(
        "hook",
        MANAGER,
        {
            "flush_cache_after_weight_update": "self recv_req success message",
            "update_weights_from_disk": "self recv_req",
            "update_weights_from_ipc": "self recv_req",
            "update_weights_from_tensor": "self recv_req",
            "update_weights_from_distributed": "self recv_req",
            "end_weight_update": "self recv_req",
            "resume_memory_occupation": "self recv_req",
            "check_weights": "self recv_req",
        },
    ),
    *_symbols(
        "hook",
        STATE,
        {"set_internal_state": "self recv_req", "get_internal_state": "self recv_req"},
    ),
    *_symbols(
        "hook",
        TOKENIZER,
        {
            "update_weights_from_disk": "self obj request",
            "set_internal_state": "self obj",
        },
    ),
    *_symbols(
        "override",
        _CORE,
        {
            "reset": "self",
            "_new_node": "self priority",
            "_add_new_node": "self parent key value priority session_id rotation_base",
            "_split_node": "self key child split_len",
            "_unevict_node_on_insert": "self node fresh_value session_id",
            "_unregister_node": "self node",
            "match_prefix": "self params",
        },
    ),
    *_symbols(
        "override",
        _CACHE,
        {"insert": "self params", "dec_lock_ref": "self node_id params skip_swa"},
    ),
    *_symbols(
        "call",
        _CORE,
        {
            "_release_all_component_layers": (
                "node medium tracker device_frees host_frees cache_actions"
            ),
            "_remove_leaf_from_parent": "node",
            "_update_evictable_leaf_sets": "node",
        },
    ),
    *_symbols(
        "call",
        _CACHE,
        {"_apply_eviction_result": "result", "_apply_cache_actions": "actions"},
    ),
    *_symbols(
        "call",
        _SCHEDULER,
        {
            "flush_cache": "empty_cache",
            "is_fully_idle": "ignore_waiting",
            "collect_inflight_reqs": "",
        },
    ),
    Symbol("sglang.srt.mem_cache.registry.create_unified_radix_cache", "call", ("cache_class",)),
    Symbol("sglang.srt.mem_cache.registry.register_radix_cache_backend", "call", ("name",)),
)

HOOKED_PATHS: frozenset[str] = frozenset(s.path for s in SYMBOLS if s.use == "hook") | {
    f"{TOKENIZER}.__init__"
}


def _parameters(target: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(inspect.unwrap(target)).parameters)


def mismatches() -> list[str]:
    """Return one sentence for every symbol that the installed SGLang lacks or shapes otherwise."""
    found = []
    for symbol in SYMBOLS:
        try:
            actual = _parameters(pkgutil.resolve_name(symbol.path))
        except (ImportError, AttributeError) as error:
            found.append(f"{symbol.path} ({symbol.use}): missing ({error})")
            continue
        wanted = symbol.parameters
        fits = set(wanted) <= set(actual) if symbol.use == "call" else wanted == actual
        if not fits:
            found.append(
                f"{symbol.path} ({symbol.use}): parameters are ({', '.join(actual)}), "
                f"needed ({', '.join(wanted)})"
            )
    return found


def require_matching_sglang() -> None:
    """Raise :class:`HookError` with all mismatches at once if the installed SGLang doesn't fit."""
    problems = mismatches()
    if problems:
        raise HookError(
            f"SGLang {importlib.metadata.version('sglang')} does not offer what sglang-xver hooks "
            f"into: {'; '.join(problems)}. Install sglang{SGLANG_RANGE}."
        )


def require_applied_hooks() -> None:
    """Raise :class:`HookError` unless every hook of the table was applied in this process.

    SGLang logs a hook that failed and goes on. A cache backend without its hooks would serve
    stale KV in silence, so the server must not start.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = sorted(HOOKED_PATHS - HookRegistry._patched)
    if missing:
        raise HookError(
            f"hooks were not applied: {', '.join(missing)}. The server must not start without "
            f"them; see the log above for the cause, and install sglang{SGLANG_RANGE}."
        )
