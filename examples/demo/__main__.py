"""Entry point of ``python -m examples.demo``."""

from __future__ import annotations

from examples.demo.app import main

raise SystemExit(main())
