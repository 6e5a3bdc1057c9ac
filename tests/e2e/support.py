"""What the end-to-end tests share: models, a running stack, the plugin's test settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from examples.testbed.process import CompatServiceProcess, SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver
from tests.e2e.evidence import FAMILY


class Models(NamedTuple):
    """Tiny checkpoints: a base, two updates of it, and one of another shape."""

    base: Path
    good: Path
    bad: Path
    other_shape: Path


class Stack(NamedTuple):
    """A server, its service, and clients of both."""

    server: SglangServer
    service: CompatServiceProcess
    driver: Driver
    client: CompatClient


def server_environment(service_address: str, **settings: str) -> dict[str, str]:
    """Return the plugin's environment for a test server."""
    values = {
        "SERVICE": service_address,
        "TASK_FAMILIES": FAMILY,
        "TIMEOUT_MS": "5000",
        "LAST_GOOD_MAX_AGE_S": "0",
        **settings,
    }
    return {f"SGLANG_XVER_{name}": value for name, value in values.items()}
