"""Statistics: the exact bound, the sample sizes that follow from it, and paired counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat_service.statistics import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    flip_rates,
    harmful_flip_rate_floor,
    mcnemar_exact,
    required_items,
    split_confidence,
)

SAMPLE_SIZES = {
    0.01: {0: 299, 1: 473, 2: 628, 3: 773, 5: 1049},
    0.02: {0: 149, 1: 236, 2: 313, 3: 386, 5: 523},
    0.05: {0: 59, 1: 93, 2: 124, 3: 153, 5: 208},
}
TABLE = [(limit, k, n) for limit, row in SAMPLE_SIZES.items() for k, n in row.items()]


def probability_of_at_most(events: int, trials: int, rate: float) -> float:
    """Binomial distribution, summed by hand: independent of the code under test."""
    return math.fsum(
        math.comb(trials, i) * rate**i * (1 - rate) ** (trials - i) for i in range(events + 1)
    )


class TestUpperBound:
    def test_zero_of_149_lies_just_below_two_percent(self):
        assert clopper_pearson_upper(0, 149) == pytest.approx(0.0199048, abs=1e-7)

    @pytest.mark.parametrize("events,trials", [(0, 10), (1, 10), (8, 40), (13, 49), (199, 200)])
    def test_is_the_rate_at_which_so_few_events_have_five_percent(self, events, trials):
        bound = clopper_pearson_upper(events, trials)
        assert probability_of_at_most(events, trials, bound) == pytest.approx(0.05, rel=1e-9)

    def test_without_trials_nothing_is_excluded(self):
        assert clopper_pearson_upper(0, 0) == 1.0

    def test_only_events_give_one(self):
        assert clopper_pearson_upper(7, 7) == 1.0

    @given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.8, 0.95, 0.99]))
    def test_agrees_with_scipy(self, events, more, confidence):
        stats = pytest.importorskip("scipy.stats", reason="scipy is the reference here")
        trials = events + more
        expected = stats.beta.ppf(confidence, events + 1, trials - events)
        assert clopper_pearson_upper(events, trials, confidence) == pytest.approx(
            expected, rel=1e-9
        )

    @given(st.integers(0, 300), st.integers(1, 300))
    def test_grows_with_events_and_shrinks_with_trials(self, events, more):
        trials = events + more
        bound = clopper_pearson_upper(events, trials)
        assert events / trials < bound <= 1.0
        assert clopper_pearson_upper(events + 1, trials) > bound
        assert clopper_pearson_upper(events, trials + 1) < bound

    def test_large_counts_stay_accurate(self):
        bound = clopper_pearson_upper(500, 1_000_000)
        assert bound == pytest.approx(5.38366163e-4, rel=1e-7)

    @pytest.mark.parametrize("events,trials,level", [(-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0)])
    def test_contradicting_arguments_are_refused(self, events, trials, level):
        with pytest.raises(ValueError, match=r"need 0 <=|outside"):
            clopper_pearson_upper(events, trials, level)

    def test_lower_bound_mirrors_the_upper(self):
        assert clopper_pearson_lower(0, 20) == 0.0
        assert clopper_pearson_lower(3, 20) == pytest.approx(1 - clopper_pearson_upper(17, 20))


class TestRequiredItems:
    @pytest.mark.parametrize("limit,events,items", TABLE)
    def test_reproduces_the_published_table(self, limit, events, items):
        assert required_items(limit, events) == items

    @pytest.mark.parametrize("limit,events,items", TABLE)
    def test_one_item_fewer_is_not_enough(self, limit, events, items):
        assert clopper_pearson_upper(events, items) < limit
        assert clopper_pearson_upper(events, items - 1) >= limit

    def test_power_of_the_rule_at_half_a_percent(self):
        assert probability_of_at_most(0, 149, 0.005) == pytest.approx(0.47, abs=0.005)
        assert probability_of_at_most(5, 523, 0.005) == pytest.approx(0.95, abs=0.005)

    @pytest.mark.parametrize("limit", [0.0, 1.0, -0.1, float("nan")])
    def test_a_limit_outside_the_open_interval_is_refused(self, limit):
        with pytest.raises(ValueError, match="outside"):
            required_items(limit)


class TestMcnemar:
    @pytest.mark.parametrize("harmful,beneficial", [(13, 24), (0, 5), (1, 9), (30, 31)])
    def test_is_the_doubled_smaller_tail(self, harmful, beneficial):
        pairs = harmful + beneficial
        tail = probability_of_at_most(min(harmful, beneficial), pairs, 0.5)
        assert mcnemar_exact(harmful, beneficial) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)

    def test_no_discordant_pair_says_nothing(self):
        assert mcnemar_exact(0, 0) == 1.0

    def test_negative_counts_are_refused(self):
        with pytest.raises(ValueError, match="counts of 0 or more"):
            mcnemar_exact(-1, 2)


class TestRates:
    def test_a_net_gain_does_not_hide_the_harm(self):
        rates = flip_rates(num_items=192, reference_correct=49, harmful=13, beneficial=24)
        assert rates.hfr == pytest.approx(13 / 49)
        assert rates.bfr == pytest.approx(24 / 143)
        assert rates.net_gain == pytest.approx(11 / 192)
        assert rates.flip_ratio == pytest.approx(37 / 192)

    def test_a_missing_denominator_gives_no_rate(self):
        assert flip_rates(5, 0, 0, 2).hfr is None
        assert flip_rates(5, 5, 1, 0).bfr is None
        assert flip_rates(0, 0, 0, 0).net_gain is None

    @pytest.mark.parametrize("counts", [(5, 6, 0, 0), (5, 3, 4, 0), (5, 3, 0, 3)])
    def test_contradicting_counts_are_refused(self, counts):
        with pytest.raises(ValueError, match="outside"):
            flip_rates(*counts)

    def test_two_accuracies_bound_the_harm_from_below(self):
        assert harmful_flip_rate_floor(0.55, 0.13) == pytest.approx(42 / 55)
        assert harmful_flip_rate_floor(0.5, 0.6) == 0.0
        assert harmful_flip_rate_floor(0.0, 0.0) is None

    def test_looks_share_the_error(self):
        assert split_confidence(0.95, 1) == pytest.approx(0.95)
        assert split_confidence(0.95, 2) == pytest.approx(0.975)
