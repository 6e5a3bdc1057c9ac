"""Makes the shared builders importable and lets property tests run on a busy machine."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
