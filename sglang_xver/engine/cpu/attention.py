"""Register the attention backend ``xver_cpu`` with SGLang.

SGLang names ``torch_native`` literally in a few places. Those that a CPU server reaches (0.5.23)
are covered here, so that ``xver_cpu`` behaves the same in each:

* ``arg_groups.choices.ATTENTION_BACKEND_CHOICES``: the command line accepts the name;
* ``attention_hook.handle_attention_backend_compatibility``: turns graph capture off;
* ``mem_cache.allocation.get_last_loc``: takes the torch implementation instead of a Triton kernel
  (reached with a page size above 1).

``support_triton`` needs nothing: SGLang's CPU platform has no Triton for any backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sglang_xver.errors import HookError, UnsupportedError

BACKEND_NAME = "xver_cpu"
_RESOLUTION_TARGET = "sglang.srt.arg_groups.attention_hook.handle_attention_backend_compatibility"
_LAST_LOC_TARGET = "sglang.srt.mem_cache.allocation.get_last_loc"


def register_cpu_attention() -> None:
    """Make ``--attention-backend xver_cpu`` known; safe to call more than once.

    Call it from a plugin's entry point: ``load_plugins()`` applies the hook afterwards. Mutates
    SGLang's backend registry, its list of choices and the hook registry.
    """
    from sglang.srt.arg_groups.choices import (
        ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookType

    register_attention_backend(BACKEND_NAME)(create_cpu_backend)
    if BACKEND_NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND_NAME])
    _hook_once(_RESOLUTION_TARGET, after_backend_resolution, HookType.AFTER)


def create_cpu_backend(runner: Any) -> Any:
    """Build the backend for a ``ModelRunner``; SGLang calls it once per runner.

    Raises:
        UnsupportedError: the runner's device is not the CPU.
        HookError: the page allocator could not be hooked.
    """
    _require_cpu(str(runner.device))
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_xver.engine.cpu.attention_backend import NewRowsAttnBackend

    # Installed here rather than at registration: a server on another backend keeps its allocator
    # path untouched.
    _hook_once(_LAST_LOC_TARGET, last_loc_without_triton, HookType.AROUND)
    HookRegistry.apply_hooks()
    if _LAST_LOC_TARGET not in HookRegistry._patched:
        raise HookError(
            f"{BACKEND_NAME} could not hook {_LAST_LOC_TARGET}, which it needs for page sizes "
            "above 1; use --attention-backend torch_native with this SGLang version"
        )
    return NewRowsAttnBackend(runner)


def after_backend_resolution(_result: None, server_args: Any) -> None:
    """Check the launch flags for ``xver_cpu`` and turn graph capture off, as for ``torch_native``.

    Runs in the launching process, after ``handle_attention_backend_compatibility``; declares the
    resolved value on ``server_args``.

    Raises:
        UnsupportedError: the device is not the CPU, or SGLang's CPU engine is not selected.
    """
    from sglang.srt.arg_groups.overrides import (
        attention_backends_of,
        declare_resolution,
        resolved_view,
        resolving_view,
    )
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    view = resolved_view(server_args)
    if BACKEND_NAME not in attention_backends_of(view):
        return
    _require_cpu(view.device)
    _require_cpu_engine()
    if view.attention_backend != BACKEND_NAME:
        return  # a split backend keeps capture for its other half, with torch_native too
    for phase in (Phase.DECODE, Phase.PREFILL):
        # Read anew for each phase: a declaration replaces the whole config.
        config = resolving_view(server_args).cuda_graph_config
        declare_resolution(
            server_args,
            "sglang_xver.after_backend_resolution",
            cuda_graph_config=with_phase(config, phase, backend=Backend.DISABLED),
        )


def last_loc_without_triton(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Take the torch form of ``get_last_loc`` when ``xver_cpu`` serves prefill or decode."""
    from sglang.srt.mem_cache import allocation

    if BACKEND_NAME in allocation.attention_backends():
        return allocation.get_last_loc_torch(*args, **kwargs)
    return original(*args, **kwargs)


def _require_cpu(device: str) -> None:
    # A device may carry an index ("cuda:0").
    if device.partition(":")[0] != "cpu":
        raise UnsupportedError(
            f"--attention-backend {BACKEND_NAME} on device {device!r}: this backend is a CPU "
            "development aid; leave --attention-backend unset on a GPU, or pass --device cpu"
        )


def _require_cpu_engine() -> None:
    # SGLang reads the variable before it loads plugins, so it cannot be set for the user here.
    value = os.environ.get("SGLANG_USE_CPU_ENGINE", "")
    if value != "1":
        raise UnsupportedError(
            f"SGLANG_USE_CPU_ENGINE={value!r} with --attention-backend {BACKEND_NAME}: SGLang "
            "selects its CPU code paths by this variable; start the server with "
            "SGLANG_USE_CPU_ENGINE=1"
        )


def _hook_once(target: str, hook: Callable[..., Any], hook_type: Any) -> None:
    """Register ``hook`` on ``target`` unless it is registered already."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource

    registered = HookRegistry._hooks.get(target, [])
    if all(existing is not hook for _, existing, _ in registered):
        # Named here because SGLang knows the plugin only while it loads plugins.
        source = HookSource(plugin_name="xver", dist_name="sglang-xver")
        HookRegistry.register(target, hook, hook_type, source=source)
