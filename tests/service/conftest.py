"""A real server on a free port with a database of its own, and the same as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

from compat_service.config import Settings  # noqa: E402
from compat_service.server import CompatServer, prepare_schema  # noqa: E402
from compat_service.store import Database, open_database  # noqa: E402
from sglang_xver.client import CompatClient  # noqa: E402


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'compat.sqlite3'}"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the newest schema."""
    database = open_database(database_url)
    prepare_schema(database, lambda _line: None)
    yield database
    database.close()


@pytest.fixture
def server(database: Database, database_url: str) -> Iterator[CompatServer]:
    """A server that accepts calls."""
    settings = Settings(
        database_url=database_url, listen="127.0.0.1:0", max_message_bytes=256 * 1024
    )
    server = CompatServer(settings, database)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def channel(server: CompatServer) -> Iterator[grpc.Channel]:
    """A plain channel to the server."""
    with grpc.insecure_channel(str(server.endpoint)) as channel:
        yield channel


@pytest.fixture
def client(server: CompatServer) -> Iterator[CompatClient]:
    """The project's client, connected to the server."""
    with CompatClient(str(server.endpoint), timeout_s=30.0) as client:
        yield client


@pytest.fixture
def process_environment(tmp_path: Path) -> dict[str, str]:
    """Environment in which the command line finds this checkout and no settings of the user."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("XVER_COMPAT_")}
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "proto")))
    return {**inherited, "PYTHONPATH": paths, "XDG_DATA_HOME": str(tmp_path / "data")}


@pytest.fixture
def run_cli(process_environment: dict[str, str]):
    """Run ``python -m compat_service`` to its end; returns the completed process."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "compat_service", *arguments],
            env={**process_environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def start_serve(process_environment: dict[str, str]):
    """Start ``xver-compat serve``; returns (process, address) once it accepts calls."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "compat_service", "serve", *arguments],
            env=process_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if "serving on" in line:
                return process, line.split("serving on ")[1].split(",")[0]
        raise AssertionError(f"the server ended with status {process.wait()}")

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
