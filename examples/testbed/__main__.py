"""Entry point of ``python -m examples.testbed``."""

from __future__ import annotations

from examples.testbed.cli import main

raise SystemExit(main())
