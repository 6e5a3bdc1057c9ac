"""The soak, bounded: ``make soak`` runs the same for as long as wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import run
from tests.soak.scenario import scenario
from tests.soak.show import show

SECONDS = 45
SEED = 5
"""Pages of 64 tokens, without the overlap schedule."""


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_nothing_stale_and_nothing_lost(tmp_path: Path) -> None:
    outcome = run(scenario(SECONDS / 60, SEED), tmp_path)
    show(outcome)
    assert outcome.problems == []
    assert outcome.judgement.violations == []
