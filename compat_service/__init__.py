"""Compatibility service: turns recorded evidence into reasoned decisions about KV reuse."""

from __future__ import annotations

__version__ = "0.1.0"
