"""Policies: built-ins, their order, and what a revision stands for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from compat_service.errors import UnknownPolicyError
from compat_service.policy import BUILT_IN, DEMO, RELAXED, STANDARD, STRICT, Policy, resolve
from compat_service.statistics import required_items


class TestBuiltIn:
    def test_each_step_is_looser_than_the_one_before(self):
        for tighter, looser in ((STRICT, STANDARD), (STANDARD, RELAXED)):
            assert tighter.hfr_limit < looser.hfr_limit
            assert tighter.fcd_mean_limit_nats < looser.fcd_mean_limit_nats
            assert tighter.fcd_p95_limit_nats < looser.fcd_p95_limit_nats
            assert tighter.min_reference_correct > looser.min_reference_correct
            assert tighter.fidelity_only_families <= looser.fidelity_only_families

    @pytest.mark.parametrize("policy", [STRICT, STANDARD, RELAXED])
    def test_fewest_items_are_those_that_the_limit_needs(self, policy):
        assert policy.min_reference_correct == required_items(policy.hfr_limit)

    def test_demo_says_that_it_proves_nothing(self):
        assert "ONLY" in DEMO.description
        assert "proves nothing" in DEMO.description

    def test_every_policy_demands_a_plan_and_a_stable_reference(self):
        assert all(p.require_sample_plan for p in BUILT_IN.values())
        assert all(p.max_reference_mismatch_ratio <= 0.02 for p in BUILT_IN.values())

    def test_resolve_finds_them_by_name(self):
        assert resolve("strict") is STRICT

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(UnknownPolicyError, match="demo, relaxed, standard, strict"):
            resolve("lenient")


class TestModel:
    def test_unknown_keys_are_rejected(self):
        with pytest.raises(ValidationError, match="hfr_limits"):
            Policy(**STANDARD.model_dump(), hfr_limits=0.5)

    @pytest.mark.parametrize(
        "change",
        [
            {"hfr_limit": 2.0},
            {"hfr_limit": 0.0},
            {"fcd_mean_limit_nats": float("nan")},
            {"fcd_mean_limit_nats": float("inf")},
            {"confidence_level": 1.0},
            {"min_reference_correct": 0},
            {"name": "No Spaces"},
        ],
    )
    def test_values_outside_their_range_are_rejected(self, change):
        with pytest.raises(ValidationError):
            Policy(**{**STANDARD.model_dump(), **change})

    def test_an_instance_cannot_be_changed(self):
        with pytest.raises(ValidationError, match="frozen"):
            STANDARD.hfr_limit = 0.5


class TestRevision:
    def test_all_built_ins_differ(self):
        assert len({p.revision for p in BUILT_IN.values()}) == len(BUILT_IN)

    def test_follows_the_limits_and_not_the_wording(self):
        reworded = STANDARD.model_copy(update={"description": "other words"})
        moved = STANDARD.model_copy(update={"hfr_limit": 0.021})
        assert reworded.revision == STANDARD.revision
        assert moved.revision != STANDARD.revision

    def test_does_not_depend_on_the_order_of_families(self):
        one = STANDARD.model_copy(update={"fidelity_only_families": frozenset(["a", "b", "c"])})
        two = STANDARD.model_copy(update={"fidelity_only_families": frozenset(["c", "b", "a"])})
        assert one.revision == two.revision
