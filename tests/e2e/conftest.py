"""Real processes, shared by the tests of a module; tiny random models keep them fast."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.testbed.process import CompatServiceProcess, upgrade_database
from examples.testbed.tiny import tiny_model, tiny_other_shape, tiny_update
from tests.e2e.support import Models


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
