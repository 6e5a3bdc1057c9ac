"""Runnable examples; importable from the repository root, not part of the wheel."""
