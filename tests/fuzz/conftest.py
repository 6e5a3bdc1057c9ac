"""The model runs on the real SGLang classes; the plugin registers the tree core."""

from __future__ import annotations

from sglang.srt.plugins import load_plugins

load_plugins()
