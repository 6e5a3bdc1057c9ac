"""Let SGLang import ``sgl_kernel`` on a machine where the real package cannot load.

The published ``sglang-kernel`` wheel links against the CUDA driver, so ``import sgl_kernel`` fails
without one. SGLang's CPU engine imports a few names from it and, for dense models without AMX,
calls none of them: a stand-in that holds the names is enough to serve.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

STUB_ROOT = Path(__file__).resolve().parent / "stub"
_PACKAGE = "sgl_kernel"
_MARKER = "__xver_stand_in__"


def ensure_sgl_kernel() -> bool:
    """Put the stand-in on ``sys.path`` if this is a CPU host whose ``sgl_kernel`` cannot load.

    Call it before anything imports ``sgl_kernel``. Child processes started by ``spawn`` inherit
    ``sys.path`` before they import SGLang, so one call in the main process covers all of them.

    Mutates ``sys.path`` and ``sys.modules``, in the failing case only. On a host with an
    accelerator nothing is imported or changed, unless ``SGLANG_USE_CPU_ENGINE=1`` asks for the CPU
    engine: there a broken kernel package must stay a visible error.

    Returns:
        True if ``sgl_kernel`` is the stand-in after the call, False if it is the real package or
        the host is not a CPU host.
    """
    if not _is_cpu_host():
        return False
    reason = _import_failure()
    if reason is None:
        return hasattr(sys.modules[_PACKAGE], _MARKER)

    _drop_half_imported()
    stub_root = str(STUB_ROOT)
    if stub_root not in sys.path:
        sys.path.insert(0, stub_root)
    importlib.import_module(_PACKAGE)
    # Spawned children inherit the decision; one line per server is enough.
    if multiprocessing.parent_process() is None:
        logger.warning(
            "sgl_kernel cannot be imported here (%s). A development stand-in from sglang-xver is "
            "in use: CPU serving of dense models works, calling a compiled kernel raises. Not for "
            "production; install a sglang-kernel build that loads on this machine to remove it.",
            reason,
        )
    return True


def _is_cpu_host() -> bool:
    """True if SGLang is told to use its CPU engine, or there is nothing else to use."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return True
    import torch

    return not torch.accelerator.is_available()


def _import_failure() -> str | None:
    """Import ``sgl_kernel``; the first line of the error if that fails, None if it works."""
    try:
        importlib.import_module(_PACKAGE)
    except (ImportError, OSError) as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def _drop_half_imported() -> None:
    """Forget the submodules that a failed import leaves behind.

    Python removes only the module that raised; a leftover ``sgl_kernel.x`` would otherwise be
    served from ``sys.modules`` next to the stand-in.
    """
    for name in [m for m in sys.modules if m == _PACKAGE or m.startswith(_PACKAGE + ".")]:
        del sys.modules[name]
