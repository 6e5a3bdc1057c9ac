"""Runs pytest in forks of a process that has imported SGLang already.

Importing the engine takes longer than the narrow tests of one mutant. The forks import the broken
package themselves; the server never keeps a module of it.

``python -m tests.mutants.fork_server`` takes one JSON request per line and answers each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MARK = "fork-server: "
_OURS = ("sglang_xver", "compat_service", "tests", "xver", "examples")


class TestRun(NamedTuple):
    """Outcome of one pytest run."""

    __test__ = False

    status: int | None
    """pytest's exit status; None when it took too long."""
    text: str


class ForkServer:
    """A process that runs tests in one copy of the repository."""

    def __init__(self, copy: Path) -> None:
        path = os.pathsep.join([str(copy), str(copy / "proto")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.fork_server"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, tests: Sequence[str], limit_s: float) -> TestRun:
        """Run ``tests``, stopping at the first failure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tests": list(tests), "limit_s": limit_s}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Libraries print here, too.
            if line.startswith(_MARK):
                return TestRun(**json.loads(line.removeprefix(_MARK)))
        raise RuntimeError(f"the process that runs tests ended with {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _preload() -> None:
    """Import what all engine tests need, then forget every module of the copy."""
    from sglang_xver.engine.cpu.kernel_stub import ensure_sgl_kernel

    ensure_sgl_kernel()
    import hypothesis
    import sglang.srt.entrypoints.http_server
    import sglang.srt.mem_cache.unified_radix_cache

    del hypothesis, sglang
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]


def _run_tests(tests: list[str], output: int) -> None:
    """Become a pytest run; never returns."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    import pytest

    status = pytest.main(["-x", "-q", "--disable-warnings", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status))


def _answer(tests: list[str], limit_s: float) -> TestRun:
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            _run_tests(tests, output.fileno())
        deadline = time.monotonic() + limit_s
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TestRun(None, "")
        output.seek(0)
        return TestRun(os.waitstatus_to_exitcode(status), output.read())


def main() -> None:
    """Serve until stdin ends."""
    if (Path.cwd() / "sglang_xver" / "engine").is_dir():
        _preload()
    for line in sys.stdin:
        request = json.loads(line)
        run = _answer(request["tests"], request["limit_s"])
        print(_MARK + json.dumps(run._asdict()), flush=True)


if __name__ == "__main__":
    main()
