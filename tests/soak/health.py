"""Leaks and losses: slots, memory, and what the server's log admits."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.driver import Driver

MAX_GROWTH_BYTES = 48 * 2**20
"""How much any process may grow from the middle of a run to its end."""

_ALARMS = re.compile(
    r"Traceback \(most recent|AssertionError|leak detected|double free|use-after-free"
    r"|Scheduler hit an exception|failures=|xver: applying the plan failed"
    r"|xver: eviction failed"
)


class Memory(NamedTuple):
    """Resident bytes of the server's processes at one moment."""

    at_s: float
    main_bytes: int
    scheduler_bytes: int


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * 4096


def scheduler_pid(main_pid: int) -> int:
    """Return the process of the server's group that calls itself a scheduler.

    Raises:
        LookupError: there is none.
    """
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            group = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[2])
            command = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if group == main_pid and command.startswith("sglang::scheduler"):
            return int(folder.name)
    raise LookupError(f"process group {main_pid} has no scheduler")


class HealthWatch:
    """Samples memory and checks what must hold while nothing runs."""

    def __init__(self, driver: Driver, main_pid: int, log: Path) -> None:
        self.driver = driver
        self.log = log
        self.samples: list[Memory] = []
        self.leaked_slots = 0
        self.problems: list[str] = []
        self.idle_checks = 0
        self._main_pid = main_pid
        self._scheduler_pid = scheduler_pid(main_pid)

    def sample(self, at_s: float) -> None:
        self.samples.append(
            Memory(at_s, resident_bytes(self._main_pid), resident_bytes(self._scheduler_pid))
        )

    def check_idle(self, known_epochs: frozenset[str], *, flush: bool) -> None:
        """Check an idle server; with ``flush`` also that nothing is left after one."""
        self.idle_checks += 1
        self.driver.wait_until(self.driver.is_idle, "the server becomes idle", 60.0)
        used = self.driver.load("num_used_tokens")
        self.leaked_slots += used
        status = self.driver.status()
        tokens = status["tokens_by_epoch"]
        capacity = self.driver.load("max_total_num_tokens")
        foreign = [key for key in tokens if key not in known_epochs and "unknown" not in key]
        self._note(
            (used, f"{used} slots neither free nor in the tree"),
            (status["blocked_tokens"], f"{status['blocked_tokens']} tokens still blocked"),
            (status["failures"], f"failures {status['failures']}"),
            (foreign, f"epochs that were never served: {foreign}"),
            (sum(tokens.values()) > capacity, f"{tokens} in a pool of {capacity}"),
        )
        if flush:
            self._check_empty_after_flush()

    def _check_empty_after_flush(self) -> None:
        flushed = self.driver.try_flush()
        left = self.driver.status()["tokens_by_epoch"]
        self._note((not flushed, "an idle flush was refused"), (left, f"after a flush: {left}"))

    def check_log(self) -> None:
        """Take every line of the log that tells of a leak, an assertion or an exception."""
        text = self.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if _ALARMS.search(line)]
        self.problems.extend(f"log: {line[:300]}" for line in lines[:20])

    def check_growth(self) -> None:
        """Compare the middle of the run with its end."""
        for name in ("main_bytes", "scheduler_bytes"):
            growth = self.growth_bytes(name)
            self._note((growth > MAX_GROWTH_BYTES, f"{name} grew by {growth / 2**20:.0f} MiB"))

    def growth_bytes(self, name: str) -> int:
        """Return the growth from the fifth to the last sixth of the samples."""
        values = [getattr(sample, name) for sample in self.samples]
        half, sixth = len(values) // 2, max(1, len(values) // 6)
        return int(_median(values[-sixth:]) - _median(values[half : half + sixth]))

    def _note(self, *findings: tuple[Any, str]) -> None:
        self.problems.extend(text for is_wrong, text in findings if is_wrong)


def _median(values: Sequence[int]) -> float:
    return statistics.median(values)
