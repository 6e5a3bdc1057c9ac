"""Engine tests run the real SGLang classes; the plugin brings the stand-in for compiled kernels."""

from __future__ import annotations

import sys
from pathlib import Path

from sglang.srt.plugins import load_plugins

sys.path.insert(0, str(Path(__file__).parent))
load_plugins()
