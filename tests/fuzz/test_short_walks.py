"""A few random walks in this process, always the same ones."""

from __future__ import annotations

import pytest

from tests.fuzz.driver import Outcome, run_sequence

SEQUENCES = 60


@pytest.mark.parametrize("number", range(SEQUENCES))
def test_walk(number: int) -> None:
    outcome = Outcome()
    run_sequence(f"short:{number}", outcome)
    assert outcome.violation is None, outcome.violation.describe()
    assert outcome.operations > 0
