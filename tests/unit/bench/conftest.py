"""The benchmark runs the real SGLang classes, as the engine tests do."""

from __future__ import annotations

from sglang.srt.plugins import load_plugins

load_plugins()
