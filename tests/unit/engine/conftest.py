"""Engine tests run the real SGLang classes; the plugin brings the stand-in for compiled kernels."""

from __future__ import annotations

from sglang.srt.plugins import load_plugins

load_plugins()
