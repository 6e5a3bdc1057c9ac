"""The demonstration's work folder and the real processes in it; nothing outlives the session."""

from __future__ import annotations

import shutil
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from examples.testbed.process import (
    CompatServiceProcess,
    ManagedProcess,
    SglangServer,
    upgrade_database,
)
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.identity import read_config

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLICY = "demo"
TASK_FAMILIES = ("niah",)
# Room for every arm of four documents of 2,048 tokens at once.
_POOL_TOKENS = 60_000
# A busy laptop may take longer than a server would be given.
_ASK_TIMEOUT_MS = 15_000
_START_TIMEOUT_S = 420.0
_CONFIG = """\
# What an operator writes; see SGLANG_XVER_CONFIG.
mode = "on"
service = "{service}"
policy = "{policy}"
task_families = [{families}]
timeout_ms = {timeout_ms}
# An earlier answer would hide that the service is down, and this demonstration is to show it.
last_good_max_age_s = 0.0
server_name = "demo"
"""


class Session:
    """Starts processes and stops every one of them on leaving, whatever the reason."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="xver-demo-"))
        self._clients = ExitStack()
        self._running: list[ManagedProcess] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not leave half of the processes behind. The signals stay ignored:
        # only the results are printed after this.
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._clients.close()
        for process in reversed(tuple(self._running)):
            self.stop(process)

    def stop(self, process: ManagedProcess) -> None:
        """Stop one process, once: its id may belong to somebody else afterwards."""
        if process in self._running:
            process.stop()
            self._running.remove(process)

    def remove_folder(self) -> None:
        """Delete logs and database; for a demonstration that went well."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_service(self) -> CompatServiceProcess:
        """Start the compatibility service on a fresh SQLite file."""
        database = self.folder / "compat.sqlite3"
        upgrade_database(database)
        service = CompatServiceProcess(database, self.folder / "service.log")
        self._running.append(service)
        return service.wait_ready(_START_TIMEOUT_S)

    def start_calibration_server(self, model: Path) -> SglangServer:
        """Start a server that behaves like stock SGLang: nobody judges, nobody is served."""
        return self._start_server(model, "calibration", {"SGLANG_XVER_MODE": "off"})

    def start_serving_server(self, model: Path, service: CompatServiceProcess) -> SglangServer:
        """Start the server whose hot reloads are shown."""
        config = self.folder / "xver.toml"
        config.write_text(
            _CONFIG.format(
                service=service.address,
                policy=POLICY,
                families=", ".join(f'"{family}"' for family in TASK_FAMILIES),
                timeout_ms=_ASK_TIMEOUT_MS,
            )
        )
        return self._start_server(model, "serving", {"SGLANG_XVER_CONFIG": str(config)})

    def connect(self, server: SglangServer, model: Path) -> EngineClient:
        """Return a client that is closed with the session."""
        client = EngineClient(server.url, vocab_size=int(read_config(model)["vocab_size"]))
        return self._clients.enter_context(client)

    def _start_server(self, model: Path, name: str, environment: dict[str, str]) -> SglangServer:
        server = SglangServer(
            model,
            self.folder / f"{name}.log",
            environment=environment,
            max_total_tokens=_POOL_TOKENS,
        )
        self._running.append(server)
        return server.wait_ready(_START_TIMEOUT_S)
