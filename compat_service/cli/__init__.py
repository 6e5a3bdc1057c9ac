"""Command line ``xver-compat``."""

from __future__ import annotations

from compat_service.cli.app import app, main

__all__ = ["app", "main"]
