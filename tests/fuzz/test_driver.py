"""The fuzzer itself: it repeats, it finds planted bugs, it shrinks them and says how to replay."""

from __future__ import annotations

import pytest

from sglang_xver.engine.tree import XverTreeCore
from tests.fuzz import pool
from tests.fuzz.driver import Outcome, Run, broken_by, run_sequence
from tests.fuzz.server import Setup
from tests.fuzz.steps import Step


def run_some(seed: str, sequences: int = 3) -> Outcome:
    outcome = Outcome()
    for number in range(sequences):
        run_sequence(f"{seed}:{number}", outcome)
        if outcome.violation is not None:
            break
    return outcome


class TestRepetition:
    def test_equal_seeds_do_the_same(self) -> None:
        first, second = run_some("a"), run_some("a")
        assert first.violation is None
        assert first.operations > 300
        assert (first.digest, first.by_name) == (second.digest, second.by_name)

    def test_other_seeds_do_something_else(self) -> None:
        assert run_some("a", 1).digest != run_some("b", 1).digest

    def test_seed_of_the_day_is_a_date_or_what_is_set(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(pool.SEED_VARIABLE, raising=False)
        assert len(pool.seed_of_the_day()) == 8
        assert pool.seed_of_the_day().isdigit()
        monkeypatch.setenv(pool.SEED_VARIABLE, "20260101")
        assert pool.seed_of_the_day() == "20260101"


class TestPlantedBug:
    def test_is_found_shrunk_and_replayed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(XverTreeCore, "foreign_overlap", lambda *_: None)
        violation = run_some("planted", 40).violation
        assert violation is not None
        assert len(violation.steps) < 30
        # Drawing the sequence again, and doing its shrunk steps, both break in the same way.
        again = run_some(violation.seed.split(":")[0], 40).violation
        assert again is not None
        assert (again.seed, again.steps) == (violation.seed, violation.steps)
        assert broken_by(violation.setup, violation.steps) is not None
        text = violation.describe()
        assert f"--replay {violation.seed}" in text
        assert violation.steps[-1].name in text
        monkeypatch.undo()
        assert broken_by(violation.setup, violation.steps) is None


class TestStep:
    def test_that_needs_a_request_does_nothing_without_one(self) -> None:
        run = Run(Setup())
        assert not run.do(Step("finish", {"number": 3, "is_published": True}))

    def test_without_effect_is_not_counted(self) -> None:
        run = Run(Setup(pages=400))
        client = ["none", None, 0]
        start = {"prompt": [[0], 1000], "client": client, "cap": None, "chunk": None, "twins": 1}
        for _ in range(6):
            assert run.do(Step("start", start))
        assert not run.do(Step("start", start))
        assert not run.do(Step("flush", {}))
        run.drain()
        assert run.do(Step("flush", {}))


class TestPool:
    def test_worker_that_dies_is_a_violation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SGLANG_XVER_MODE", "no such mode")
        monkeypatch.setattr(pool.sys, "executable", "/bin/false")
        total = pool.run("a", operations=10, workers=1)
        assert total.operations == 0
        assert "a worker ended with 1" in total.violations[0]
