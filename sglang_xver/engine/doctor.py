"""Checks of this machine's SGLang: the same as when a server loads the plugin."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

import torch

from sglang_xver.doctor.findings import Finding, run_check
from sglang_xver.engine import hook_table
from sglang_xver.engine.cpu.kernel_stub import ensure_sgl_kernel

_CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"


def engine_findings() -> list[Finding]:
    """Check engine, kernels, hook table and plugin. Loads the plugin into this process."""
    findings = [
        *run_check("sglang", _version),
        *run_check("torch", _torch),
        *run_check("engine", _engine),
        *run_check("kernels", _kernels),
    ]
    table = run_check("hook table", _hook_table)
    findings += table
    if any(finding.status == "fail" for finding in table):
        findings.append(Finding("plugin", "skipped", "the hook table does not fit"))
    else:
        findings += run_check("plugin", _plugin)
    return findings


def _version() -> Iterator[Finding]:
    version, wanted = hook_table.installed_version(), hook_table.SGLANG_RANGE
    if hook_table.is_supported_version(version):
        yield Finding("sglang", "ok", f"{version}, supported: {wanted}")
    else:
        remedy = f"pip install 'sglang{wanted}'"
        yield Finding("sglang", "fail", f"{version} is outside {wanted}", remedy)


def _torch() -> Iterator[Finding]:
    yield Finding("torch", "ok", torch.__version__)


def _engine() -> Iterator[Finding]:
    asked_for_cpu = os.environ.get(_CPU_ENGINE_VARIABLE) == "1"
    if torch.accelerator.is_available() and not asked_for_cpu:
        kind = torch.accelerator.current_accelerator()
        count = torch.accelerator.device_count()
        yield Finding(
            "engine",
            "warn",
            f"{count} x {kind}; this version was tested on the CPU engine only",
            "Compare a few answers with and without the backend before you rely on it.",
        )
    elif asked_for_cpu:
        yield Finding("engine", "ok", f"CPU, {_CPU_ENGINE_VARIABLE}=1")
    else:
        remedy = f"Set {_CPU_ENGINE_VARIABLE}=1 to serve on the CPU."
        yield Finding("engine", "warn", "no accelerator, and the CPU engine isn't chosen", remedy)


def _kernels() -> Iterator[Finding]:
    reason = ""
    try:
        importlib.import_module("sgl_kernel")
    except (ImportError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if ensure_sgl_kernel():
        yield Finding(
            "kernels",
            "warn",
            f"the stand-in for sgl_kernel is in use: {reason or 'it was chosen before'}",
            "Enough for dense models on the CPU. Elsewhere install a sglang-kernel that loads.",
        )
    elif reason:
        remedy = "Install a sglang-kernel build that loads on this machine."
        yield Finding("kernels", "fail", f"sgl_kernel can't be imported: {reason}", remedy)
    else:
        yield Finding("kernels", "ok", "sgl_kernel is the real package")


def _hook_table() -> Iterator[Finding]:
    problems = hook_table.mismatches()
    remedy = f"pip install 'sglang{hook_table.SGLANG_RANGE}'"
    for problem in problems:
        yield Finding("hook table", "fail", problem, remedy)
    if not problems:
        yield Finding("hook table", "ok", f"{len(hook_table.SYMBOLS)} attributes of SGLang fit")


def _plugin() -> Iterator[Finding]:
    from sglang.srt.mem_cache.registry import registered_radix_cache_backends
    from sglang.srt.plugins import load_plugins

    from sglang_xver.engine.plugin import BACKEND_NAME

    load_plugins()
    hook_table.require_applied_hooks()
    if BACKEND_NAME in registered_radix_cache_backends():
        detail = f"loaded by SGLang, {len(hook_table.HOOKED_PATHS)} hooks applied"
        yield Finding("plugin", "ok", detail)
    else:
        remedy = "Look for 'Failed to execute general plugin: xver' on stderr."
        yield Finding("plugin", "fail", f"backend {BACKEND_NAME!r} is not registered", remedy)
