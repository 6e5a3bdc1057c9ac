"""Development stand-in for ``sgl_kernel``: holds every name, computes nothing.

Put on ``sys.path`` by ``sglang_xver.engine.cpu.kernel_stub`` where the real package cannot load.
It has no submodules on purpose: SGLang guards ``import sgl_kernel.<part>`` on the CPU path with
``except ImportError`` and then turns the feature off, which is the right outcome here.
"""

from __future__ import annotations

from typing import Any, NoReturn

__version__ = "0.0.0+xver.stand.in"
__xver_stand_in__ = True

_REMEDY = (
    "this is the sglang-xver development stand-in, which holds names only; use a model and flags "
    "that need no compiled kernel (dense model, --attention-backend xver_cpu) or install a "
    "sglang-kernel build that loads on this machine"
)


class MissingKernel:
    """A name that can be imported and stored, and raises when it is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self.__name__} cannot run: {_REMEDY}")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"sgl_kernel.{self.__name__}.{name} does not exist: {_REMEDY}")

    def __repr__(self) -> str:
        return f"<missing kernel sgl_kernel.{self.__name__}>"


def __getattr__(name: str) -> MissingKernel:
    # Private and dunder names are probes by the import system and by tools, not kernels.
    if name.startswith("_"):
        raise AttributeError(f"module 'sgl_kernel' (stand-in) has no attribute {name!r}")
    kernel = MissingKernel(name)
    globals()[name] = kernel
    return kernel
