"""FCD and its companions on values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sglang_xver.calibrate.divergence import (
    compare,
    compare_item,
    require_control_caught,
    summarize,
    summarize_agreement,
)
from sglang_xver.calibrate.engine_types import TopLogprobs
from sglang_xver.calibrate.errors import CalibrationError, InvalidRunError
from tests.unit.calibrate.builders import distribution, item_divergence

LN2 = math.log(2)


class TestFullVocabulary:
    def test_hand_worked_pair(self) -> None:
        found = compare(distribution([0.5, 0.25, 0.25]), distribution([0.25, 0.5, 0.25]), 3)
        # 1/2 ln(1/2 : 1/4) + 1/4 ln(1/4 : 1/2) = 1/2 ln 2 - 1/4 ln 2
        assert found.kl == pytest.approx(0.25 * LN2)
        assert found.total_variation == pytest.approx(0.25)
        # Middle is (3/8, 3/8, 1/4) for both, which are mirror images of each other.
        half = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)
        assert found.jensen_shannon == pytest.approx(half)
        assert not found.top1_agrees
        assert found.top10_overlap == 1.0
        assert found.remainder_mass == 0.0

    def test_is_zero_for_equal_distributions(self) -> None:
        p = distribution([0.7, 0.2, 0.1])
        assert compare(p, p, 3)[:3] == (0.0, 0.0, 0.0)

    def test_is_a_divergence_from_the_first_argument(self) -> None:
        p, q = distribution([0.9, 0.1]), distribution([0.5, 0.5])
        assert compare(p, q, 2).kl == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))
        assert compare(q, p, 2).kl == pytest.approx(-0.5 * math.log(1.8) - 0.5 * math.log(0.2))

    def test_order_of_the_lists_does_not_matter(self) -> None:
        p, q = distribution([0.6, 0.3, 0.1]), distribution([0.1, 0.3, 0.6])
        shuffled = TopLogprobs(q.token_ids[::-1], q.logprobs[::-1])
        assert compare(p, shuffled, 3) == compare(p, q, 3)


class TestTopK:
    def test_lumps_what_is_not_in_both_lists(self) -> None:
        p = distribution([0.5, 0.25], first_token=0)
        q = distribution([0.25, 0.5], first_token=1)
        found = compare(p, q, 100)
        # Common is token 1 alone: (1/4, rest 3/4) in both, so nothing is left to tell them apart.
        assert found.kl == pytest.approx(0.0)
        assert found.remainder_mass == pytest.approx(0.75)
        assert found.top10_overlap == pytest.approx(0.5)

    def test_never_exceeds_the_exact_divergence(self) -> None:
        rng = np.random.default_rng(1)
        for _ in range(50):
            p, q = (rng.dirichlet(np.full(40, 0.3)) + 1e-9 for _ in range(2))
            full = [distribution(list(x / x.sum())) for x in (p, q)]
            cut = [
                TopLogprobs(d.token_ids[order], d.logprobs[order])
                for d in full
                for order in [np.argsort(-d.logprobs)[:8]]
            ]
            exact, bound = compare(*full, 40), compare(*cut, 40)
            assert bound.kl <= exact.kl + 1e-12
            assert bound.jensen_shannon <= exact.jensen_shannon + 1e-12
            assert bound.total_variation <= exact.total_variation + 1e-12
            assert bound.remainder_mass > 0.0


class TestRefuses:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_values_that_are_no_numbers(self, bad: float) -> None:
        broken = TopLogprobs(np.array([0, 1]), np.array([bad, -1.0]))
        with pytest.raises(InvalidRunError, match="finite"):
            compare(broken, distribution([0.5, 0.5]), 2)

    def test_more_than_the_whole_mass(self) -> None:
        with pytest.raises(InvalidRunError, match="sum up"):
            compare(distribution([0.9, 0.9]), distribution([0.5, 0.5]), 2)

    def test_arms_of_different_length(self) -> None:
        p = distribution([0.5, 0.5])
        with pytest.raises(InvalidRunError, match="same text"):
            compare_item("d", [p, p], [p], 2)

    def test_a_summary_of_nothing(self) -> None:
        with pytest.raises(CalibrationError):
            summarize([])


class TestSummary:
    def test_is_over_items_not_positions(self) -> None:
        items = [item_divergence("a", 0.0, 0.2), item_divergence("b", 0.3)]
        found = summarize(items)
        assert found.mean == pytest.approx(0.2)  # of 0.1 and 0.3
        assert found.median == pytest.approx(0.2)
        assert found.max == pytest.approx(0.3)
        assert found.first_position_mean == pytest.approx(0.15)
        assert (found.num_items, found.num_documents, found.positions_per_item) == (2, 2, 2)
        assert found.is_full_vocabulary

    def test_percentiles_are_ordered_and_bound_is_not_below_the_mean(self) -> None:
        rng = np.random.default_rng(0)
        found = summarize([item_divergence(str(i % 7), float(rng.gamma(0.3))) for i in range(60)])
        assert found.median <= found.p95 <= found.p99 <= found.max
        assert found.mean <= found.mean_upper_bound

    def test_bound_draws_documents_so_that_copies_add_no_certainty(self) -> None:
        values = {"a": 0.0, "b": 0.1, "c": 0.2, "d": 0.4}
        once = [item_divergence(name, value) for name, value in values.items()]
        tenfold = [item for item in once for _ in range(10)]
        assert summarize(tenfold).mean_upper_bound == pytest.approx(
            summarize(once).mean_upper_bound
        )

    def test_is_repeatable(self) -> None:
        items = [item_divergence(str(i), 0.1 * i) for i in range(9)]
        assert summarize(items) == summarize(items)

    def test_agreement_is_over_positions(self) -> None:
        p, q = distribution([0.9, 0.1]), distribution([0.1, 0.9])
        found = summarize_agreement([compare_item("d", [p, p, p, p], [p, p, p, q], 2)])
        assert found.top1_agreement == pytest.approx(0.75)
        assert found.total_variation == pytest.approx(0.2)


class TestControl:
    def test_passes_when_it_is_far_from_the_floor(self) -> None:
        require_control_caught([item_divergence("a", 1.2)], [item_divergence("a", 0.002)])

    @pytest.mark.parametrize("control", [0.0, 0.001, 0.002])
    def test_one_that_looks_like_the_floor_voids_the_run(self, control: float) -> None:
        controls = [item_divergence("a", 2.0), item_divergence("b", control)]
        with pytest.raises(InvalidRunError, match="can't tell them apart"):
            require_control_caught(controls, [item_divergence("a", 0.002)])

    def test_rounding_is_no_catch_where_the_floor_is_zero(self) -> None:
        with pytest.raises(InvalidRunError, match="can't tell them apart"):
            require_control_caught([item_divergence("a", 1e-6)], [item_divergence("a", 0.0)])

    def test_must_be_measured(self) -> None:
        with pytest.raises(InvalidRunError, match="not measured"):
            require_control_caught([], [item_divergence("a", 0.0)])
