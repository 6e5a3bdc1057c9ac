"""One server for all scenarios: three versions that may follow each other, and a harmful one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer
from examples.testbed.tiny import tiny_model, tiny_update
from sglang_xver.client import CompatClient
from tests.cases.case import Case
from tests.e2e.driver import Driver
from tests.e2e.evidence import record
from tests.e2e.support import server_environment

MAX_AGE_UPDATES = 3


class Versions(NamedTuple):
    """``base``, ``second`` and ``third`` were measured as safe after each other, both ways.

    KV of ``base`` under ``harmful`` was measured as harmful, KV of ``second`` as safe; nothing was
    measured from ``harmful`` to any of them.
    """

    base: Path
    second: Path
    third: Path
    harmful: Path


@pytest.fixture(scope="session")
def versions() -> Versions:
    base = tiny_model(1)
    return Versions(
        base,
        tiny_update(base, seed=2, scale=0.02),
        tiny_update(base, seed=4, scale=0.02),
        tiny_update(base, seed=3, scale=0.05),
    )


@pytest.fixture(scope="session")
def server(
    versions: Versions, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SglangServer, Driver]]:
    folder = tmp_path_factory.mktemp("cases")
    database, log = folder / "compat.db", folder / "service.log"
    with CompatServiceProcess(database, log) as service:
        service.wait_ready()
        environment = server_environment(service.address, MAX_AGE_UPDATES=str(MAX_AGE_UPDATES))
        process = SglangServer(
            versions.base,
            folder / "server.log",
            arguments=("--enable-cache-report",),
            environment=environment,
        )
        with process, CompatClient(service.address) as client:
            driver = Driver(process.wait_ready().url)
            status = driver.status()
            safe = versions[:3]
            for source in safe:
                for target in safe:
                    if source != target:
                        record(client, status, source, target)
            record(client, status, versions.base, versions.harmful, harmful=120)
            record(client, status, versions.second, versions.harmful)
            yield process, driver


@pytest.fixture
def case(server: tuple[SglangServer, Driver], versions: Versions) -> Case:
    process, driver = server
    driver.reset_to(versions.base)
    return Case(driver, process)
