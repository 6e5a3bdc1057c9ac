"""Starts and stops the real processes of the demo and the tests: SGLang server and service.

Each process gets a process group of its own, so that stopping it takes its children along, and
nothing else. Loopback only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

_REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_S = 0.25


class ProcessFailedError(RuntimeError):
    """A process ended or did not become ready in time; the message ends with its last log lines."""


def free_port() -> int:
    """Return a TCP port on loopback that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ManagedProcess:
    """A child process with a log file, a readiness probe and a bounded stop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, which is also its process group's id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll()

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(line[:400] for line in text.splitlines()[-lines:])

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait for ``is_ready``.

        Raises:
            ProcessFailedError: it ended first, or ``timeout_s`` passed.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise ProcessFailedError(
                    f"{self.name} ended with code {self.exit_code}:\n{self.log_tail()}"
                )
            if is_ready():
                return
            time.sleep(_POLL_S)
        raise ProcessFailedError(f"{self.name} not ready in {timeout_s} s:\n{self.log_tail()}")

    def wait_exit(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code; raises :class:`ProcessFailedError`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ProcessFailedError(
                f"{self.name} still runs after {timeout_s} s:\n{self.log_tail()}"
            ) from error

    def stop(self, grace_s: float = 10.0) -> None:
        """End the process and its children: SIGTERM, then SIGKILL after ``grace_s``."""
        if self.exit_code is None:
            self._signal_group(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        # Children may outlive the leader; the group is gone only after this.
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class SglangServer(ManagedProcess):
    """A real SGLang server on CPU with the xver backend."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        max_total_tokens: int = 20_000,
        backend: str | None = "xver",
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *(sys.executable, "-m", "sglang.launch_server"),
            *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--device", "cpu", "--attention-backend", "xver_cpu", "--sleep-on-idle"),
            *("--max-total-tokens", str(max_total_tokens), "--log-level", "info"),
            *(("--radix-cache-backend", backend) if backend else ()),
            *arguments,
        ]
        super().__init__(
            "SGLang server",
            command,
            log,
            {
                "SGLANG_USE_CPU_ENGINE": "1",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                # Threads of a matrix product wait for each other. By default they spin, which on
                # a machine that does anything else takes the very core that is waited for.
                "OMP_WAIT_POLICY": "PASSIVE",
                **(environment or {}),
            },
        )

    def is_healthy(self) -> bool:
        """Whether ``/health`` answers 200."""
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def stop(self, grace_s: float = 1.0) -> None:
        """End the server at once: it holds no state, and a polite end takes it many seconds."""
        super().stop(grace_s)

    def wait_ready(self, timeout_s: float = 240.0) -> SglangServer:
        """Wait until requests are served; raises :class:`ProcessFailedError`."""
        self.wait_until(self.is_healthy, timeout_s)
        return self


class CompatServiceProcess(ManagedProcess):
    """A real compatibility service on a SQLite file."""

    def __init__(self, database: Path, log: Path, *, arguments: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.database_url = f"sqlite:///{database}"
        command = [
            *(sys.executable, "-m", "compat_service", "serve"),
            *("--listen", self.address, "--db", self.database_url),
            *arguments,
        ]
        super().__init__("compatibility service", command, log)

    def is_listening(self) -> bool:
        """Whether its port accepts a connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def wait_ready(self, timeout_s: float = 30.0) -> CompatServiceProcess:
        """Wait until it listens; raises :class:`ProcessFailedError`."""
        self.wait_until(self.is_listening, timeout_s)
        return self


def upgrade_database(database: Path) -> None:
    """Create or migrate the SQLite file with ``xver-compat db upgrade``."""
    subprocess.run(
        [sys.executable, "-m", "compat_service", "db", "upgrade", "--db", f"sqlite:///{database}"],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=_REPOSITORY,
        timeout=60,
    )
