"""Harmful and beneficial flips, counted pair by pair."""

from __future__ import annotations

import pytest

from sglang_xver.calibrate.errors import InvalidRunError
from sglang_xver.calibrate.flips import FlipStats, count_flips


def test_counts_by_hand() -> None:
    reference = [True, True, True, False, False]
    arm = [True, False, False, True, False]
    found = count_flips(reference, arm)
    assert found == FlipStats(num_items=5, reference_correct=3, harmful=2, beneficial=1)
    assert found.rates.hfr == pytest.approx(2 / 3)
    assert found.rates.bfr == pytest.approx(1 / 2)
    assert found.rates.net_gain == pytest.approx(-1 / 5)


def test_a_net_gain_hides_no_harm() -> None:
    # The published run: 49 of 192 right, 13 of them broken, 24 others repaired.
    reference = [True] * 49 + [False] * 143
    arm = [False] * 13 + [True] * 36 + [True] * 24 + [False] * 119
    found = count_flips(reference, arm)
    assert sum(arm) == 60
    assert found.rates.hfr == pytest.approx(13 / 49)
    assert (found.rates.net_gain or 0) > 0


def test_no_right_answer_gives_no_rate() -> None:
    assert count_flips([False, False], [False, True]).rates.hfr is None


@pytest.mark.parametrize("reference, arm", [([], []), ([True], [True, False])])
def test_needs_both_arms_for_every_item(reference: list[bool], arm: list[bool]) -> None:
    with pytest.raises(InvalidRunError, match="both arms"):
        count_flips(reference, arm)
