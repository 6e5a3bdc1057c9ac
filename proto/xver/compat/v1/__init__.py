"""Generated stubs of ``xver.compat.v1``; regenerate with ``python proto/generate.py``."""
