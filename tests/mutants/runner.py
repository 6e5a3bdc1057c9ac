"""Copies the repository, breaks the copy and runs the tests there. Never touches the work tree."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.mutants.fork_server import ForkServer
from tests.mutants.mutant import Mutant, MutantError

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("sglang_xver", "compat_service", "migrations", "proto", "tests", "examples")
FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE")
LIMIT_S = 120.0
_KILLER = re.compile(r"^(?:FAILED|ERROR) \S*?([^/\s]+::\S+)", re.MULTILINE)


class Verdict(NamedTuple):
    """What became of one mutant."""

    mutant: Mutant
    is_killed: bool
    by: str
    """Test that failed first, or what else ended the run."""
    seconds: float


class Bench(NamedTuple):
    """A copy of the repository and the process that runs its tests."""

    copy: Path
    server: ForkServer


@contextmanager
def benches(count: int) -> Iterator[list[Bench]]:
    """Set up ``count`` benches."""
    with TemporaryDirectory(prefix="xver-mutants-") as folder:
        copies = [Path(folder) / str(number) for number in range(count)]
        ignore = shutil.ignore_patterns("__pycache__", ".*", "*.log", "*.db")
        for copy in copies:
            for part in PARTS:
                shutil.copytree(ROOT / part, copy / part, ignore=ignore)
            for file in FILES:
                shutil.copy2(ROOT / file, copy / file)
        servers = [ForkServer(copy) for copy in copies]
        try:
            yield [Bench(*pair) for pair in zip(copies, servers, strict=True)]
        finally:
            for server in servers:
                server.close()


def check_source(bench: Bench, mutants: Sequence[Mutant]) -> None:
    """See that the unbroken copy passes.

    Raises:
        MutantError: a mutant does not fit, or a test fails without any mutant, so that its failure
            would prove nothing.
    """
    for mutant in mutants:
        (bench.copy / mutant.path).write_text(mutant.apply(bench.copy))
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    run = bench.server.run(tests, LIMIT_S)
    if run.status != 0:
        raise MutantError(
            f"the tests fail without any mutant (status {run.status}):\n{run.text[-3000:]}"
        )


def try_mutant(bench: Bench, mutant: Mutant) -> Verdict:
    """Break the copy, run the mutant's tests one file after the other, and mend it.

    Raises:
        MutantError: the mutant cannot be applied, or its tests cannot run.
    """
    started = time.monotonic()
    original = mutant.apply(bench.copy)
    try:
        for test in mutant.tests:
            run = bench.server.run([test], LIMIT_S)
            if run.status is None:
                by = f"{test}: over {LIMIT_S:.0f} s"
                return Verdict(mutant, True, by, time.monotonic() - started)
            if run.status == 1:
                killer = _KILLER.search(run.text)
                by = killer[1] if killer else test
                return Verdict(mutant, True, by, time.monotonic() - started)
            if run.status != 0:
                raise MutantError(
                    f"mutant {mutant.name!r}: {test} did not run (status {run.status}):\n"
                    f"{run.text[-2000:]}"
                )
    finally:
        (bench.copy / mutant.path).write_text(original)
    return Verdict(mutant, False, "", time.monotonic() - started)


def try_all(mutants: Sequence[Mutant], workers: int) -> Iterator[Verdict]:
    """Yield a verdict per mutant, in the order in which they come in."""
    with benches(workers) as all_benches, ThreadPoolExecutor(workers) as pool:
        check_source(all_benches[0], mutants)
        free: Queue[Bench] = Queue()
        for bench in all_benches:
            free.put(bench)

        def work(mutant: Mutant) -> Verdict:
            bench = free.get()
            try:
                return try_mutant(bench, mutant)
            finally:
                free.put(bench)

        futures = [pool.submit(work, mutant) for mutant in mutants]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
