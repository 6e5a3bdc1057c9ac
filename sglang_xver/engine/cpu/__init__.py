"""CPU development kit: serve a small model on a machine that has no accelerator.

Two independent parts, both inert on a GPU host:

* :mod:`~sglang_xver.engine.cpu.kernel_stub` lets SGLang import ``sgl_kernel`` where its wheel
  cannot load (no CUDA driver);
* :mod:`~sglang_xver.engine.cpu.attention` registers the attention backend ``xver_cpu``, whose
  prefill after a prefix hit computes the new rows only.

Importing this package imports neither torch nor SGLang.
"""

from __future__ import annotations

from sglang_xver.engine.cpu.attention import register_cpu_attention
from sglang_xver.engine.cpu.kernel_stub import ensure_sgl_kernel

__all__ = ["ensure_sgl_kernel", "register_cpu_attention"]
