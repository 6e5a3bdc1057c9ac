"""``python -m compat_service`` is ``xver-compat``."""

from __future__ import annotations

from compat_service.cli import main

if __name__ == "__main__":
    main()
