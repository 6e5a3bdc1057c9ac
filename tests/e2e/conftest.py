"""Real processes, shared by the tests of a module; tiny random models keep them fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer, upgrade_database
from examples.testbed.tiny import tiny_model, tiny_other_shape, tiny_update
from sglang_xver.client import CompatClient

sys.path.insert(0, str(Path(__file__).parent))
from driver import Driver
from evidence import FAMILY

pytestmark = pytest.mark.e2e


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


@pytest.fixture(scope="session")
def models() -> Models:
    base = tiny_model(1)
    return Models(
        base,
        tiny_update(base, seed=2, scale=0.02),
        tiny_update(base, seed=3, scale=0.05),
        tiny_other_shape(),
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompatServiceProcess]:
    folder = tmp_path_factory.mktemp("service")
    upgrade_database(folder / "compat.db")
    process = CompatServiceProcess(folder / "compat.db", folder / "service.log")
    with process:
        yield process.wait_ready()


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
