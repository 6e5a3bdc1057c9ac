"""Spreads a run over several processes and adds up what they report. Imports no engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
SEED_VARIABLE = "XVER_FUZZ_SEED"
OPERATIONS_VARIABLE = "XVER_FUZZ_OPERATIONS"
DEFAULT_OPERATIONS = 200_000


def seed_of_the_day() -> str:
    """Return the seed that everybody has today; ``XVER_FUZZ_SEED`` overrides it."""
    return os.environ.get(SEED_VARIABLE) or f"{datetime.now(UTC):%Y%m%d}"


@dataclass
class Total:
    """What all processes did together."""

    operations: int = 0
    sequences: int = 0
    by_name: Counter[str] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """Violations, and processes that died without a result."""

    def to_text(self, seconds: float) -> str:
        """Return one line for a person."""
        rate = self.operations / seconds if seconds else 0.0
        return (
            f"{self.operations:,} operations in {self.sequences:,} sequences, {seconds:.0f} s, "
            f"{rate:,.0f} operations/s, {len(self.violations)} violations"
        )


class _Worker:
    """One process and its last report."""

    def __init__(self, arguments: list[str]) -> None:
        self.report: dict[str, Any] = {}
        self._errors: list[str] = []
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_reports, args=(self.process.stdout,)),
            threading.Thread(target=self._read_errors, args=(self.process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def _read_reports(self, stream: IO[str]) -> None:
        for line in stream:
            # Libraries print here, too.
            if line.startswith('{"operations"'):
                self.report = json.loads(line)

    def _read_errors(self, stream: IO[str]) -> None:
        for line in stream:
            self._errors = [*self._errors[-30:], line]

    def wait(self) -> str | None:
        """Wait for the end; return what went wrong, if anything did."""
        self.process.wait()
        for reader in self._readers:
            reader.join()
        if self.report.get("violation"):
            return str(self.report["violation"])
        if self.process.returncode or not self.report.get("is_over"):
            return f"a worker ended with {self.process.returncode}:\n{''.join(self._errors)}"
        return None


def _add_up(workers: list[_Worker]) -> Total:
    total = Total()
    for report in (worker.report for worker in workers if worker.report):
        total.operations += report["operations"]
        total.sequences += report["sequences"]
        total.by_name.update(report["by_name"])
        total.digests.append(report["digest"])
    return total


def run(
    seed: str,
    *,
    operations: int = 0,
    seconds: float = 0.0,
    workers: int = 2,
    report: Callable[[str], None] | None = None,
    report_every_s: float = 60.0,
) -> Total:
    """Run ``operations`` in all, or for ``seconds``; the first violation ends it.

    Seed, number of operations and number of workers decide what is run.
    """
    started = time.monotonic()
    share = -(-operations // workers)
    crew = [
        _Worker([seed, str(first), str(workers), str(share), str(seconds)])
        for first in range(workers)
    ]
    reported = started
    try:
        while any(worker.process.poll() is None for worker in crew):
            time.sleep(0.2)
            if any(worker.report.get("violation") for worker in crew):
                break
            now = time.monotonic()
            if report is not None and now - reported >= report_every_s:
                reported = now
                report(_add_up(crew).to_text(now - started))
    finally:
        is_cut_short = any(worker.process.poll() is None for worker in crew)
        for worker in crew:
            worker.process.terminate()
        problems = [problem for worker in crew if (problem := worker.wait()) is not None]
    total = _add_up(crew)
    # Workers that had to stop because another one found something are no problem of their own.
    if is_cut_short:
        problems = [problem for problem in problems if problem.startswith("violation")] or problems
    total.violations = problems
    return total
