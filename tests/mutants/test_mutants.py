"""The mutants fit the source, and the tool says what became of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import runner
from tests.mutants.catalogue import MUTANTS
from tests.mutants.fork_server import ForkServer
from tests.mutants.mutant import Mutant, MutantError

ROOT = Path(__file__).resolve().parents[2]
SUITE = "test_sign.py"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[runner.Bench]:
    """A tiny package with a test of its own, beside this tool."""
    shutil.copytree(ROOT / "tests" / "mutants", tmp_path / "tests" / "mutants")
    (tmp_path / "sign.py").write_text("def sign(x):\n    return -1 if x < 0 else 1\n")
    test = "from sign import sign\n\ndef test_sign():\n    assert sign(-2) == -1\n"
    (tmp_path / SUITE).write_text(test)
    server = ForkServer(tmp_path)
    yield runner.Bench(tmp_path, server)
    server.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_source(mutant: Mutant) -> None:
    """A refactoring must not void a mutant silently."""
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    assert all((ROOT / test).is_file() for test in mutant.tests)


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


class TestVerdict:
    def test_killed(self, bench: runner.Bench) -> None:
        before = (bench.copy / "sign.py").read_text()
        verdict = runner.try_mutant(bench, Mutant("flip", "sign.py", "-1 if", "1 if", (SUITE,)))
        assert verdict.is_killed
        assert verdict.by == f"{SUITE}::test_sign"
        assert (bench.copy / "sign.py").read_text() == before

    def test_survived(self, bench: runner.Bench) -> None:
        verdict = runner.try_mutant(bench, Mutant("equal", "sign.py", "x < 0", "x <= 0", (SUITE,)))
        assert not verdict.is_killed

    def test_endless_run_is_killed(
        self, bench: runner.Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner, "LIMIT_S", 3.0)
        endless = Mutant(
            "loop", "sign.py", "    return", "    while True: pass\n    return", (SUITE,)
        )
        verdict = runner.try_mutant(bench, endless)
        assert verdict.is_killed
        assert "over 3 s" in verdict.by

    @pytest.mark.parametrize("old", ["no such text", "1"])
    def test_text_that_is_not_there_once(self, bench: runner.Bench, old: str) -> None:
        with pytest.raises(MutantError, match="must occur once"):
            runner.try_mutant(bench, Mutant("void", "sign.py", old, "2", (SUITE,)))

    def test_source_that_does_not_parse_is_no_kill(self, bench: runner.Bench) -> None:
        broken = Mutant("broken", "sign.py", "def sign", "def", (SUITE,))
        with pytest.raises(MutantError, match="did not run"):
            runner.try_mutant(bench, broken)
        assert "def sign" in (bench.copy / "sign.py").read_text()

    def test_source_that_fails_without_a_mutant(self, bench: runner.Bench) -> None:
        (bench.copy / "sign.py").write_text("def sign(x):\n    return 1 if x < 0 else -1\n")
        with pytest.raises(MutantError, match="fail without any mutant"):
            runner.check_source(bench, [Mutant("flip", "sign.py", "x < 0", "x > 0", (SUITE,))])
