"""Keeps, remaps or evicts an SGLang server's prefix cache across weight updates, by evidence."""

from __future__ import annotations

__version__ = "0.1.0"
