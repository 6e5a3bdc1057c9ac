"""Verdict of a pair: identity, conditions, and the reason codes of each criterion."""

from __future__ import annotations

import pytest
from evidence_builders import (
    ENGINE,
    LAYOUT,
    SOURCE,
    TARGET,
    make_divergence,
    make_flips,
    make_run,
    make_stratum,
)
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.policy import DEMO, RELAXED, STANDARD, STRICT
from compat_service.verdict import PairQuestion, RunEvidence, judge_pair


def ask(*runs, policy=STANDARD, families=(), **changes):
    """Judge the pair of the builders under the given runs."""
    question = PairQuestion(
        **{
            "source": SOURCE,
            "target": TARGET,
            "source_layout": LAYOUT,
            "target_layout": LAYOUT,
            "engine": ENGINE,
            "task_families": tuple(families),
            **changes,
        }
    )
    return judge_pair(question, [RunEvidence(f"run_{i}", r) for i, r in enumerate(runs)], policy)


def judge_one(*runs, policy=STANDARD, **changes):
    """Return (action, confidence, reason codes) of the first rule."""
    rule = ask(*runs, policy=policy, **changes).rules[0]
    return (
        common.Action.Name(rule.action).removeprefix("ACTION_"),
        common.Confidence.Name(rule.confidence).removeprefix("CONFIDENCE_"),
        [common.ReasonCode.Name(r.code).removeprefix("REASON_CODE_") for r in rule.reasons],
    )


def spans(verdict):
    """Return (family, min_exclusive, max, action) of every rule."""
    return [
        (
            r.task_family,
            r.prefix_tokens_min_exclusive,
            r.prefix_tokens_max,
            common.Action.Name(r.action).removeprefix("ACTION_"),
        )
        for r in verdict.rules
    ]


def version(fingerprint):
    return common.ModelVersion(fingerprint=fingerprint)


class TestIdentity:
    def test_same_weights_keep_every_asked_family_without_limit(self):
        verdict = ask(families=["qa", "niah"], target=SOURCE)
        assert spans(verdict) == [("niah", 0, 0, "KEEP"), ("qa", 0, 0, "KEEP")]
        assert verdict.reasons[0].code == common.REASON_CODE_SAME_FINGERPRINT
        assert verdict.confidence == common.CONFIDENCE_PASS

    def test_same_weights_without_families_keep_all_of_them(self):
        assert spans(ask(target=SOURCE)) == [("*", 0, 0, "KEEP")]

    def test_other_geometry_evicts_even_the_same_weights(self):
        other = common.CacheLayout(digest="layout:2")
        result = judge_one(make_run(), target=SOURCE, target_layout=other)
        assert result == ("EVICT", "FAIL", ["GEOMETRY_MISMATCH"])

    @pytest.mark.parametrize("fingerprint", ["", "unknown:broadcast"])
    @pytest.mark.parametrize("side", ["source", "target"])
    def test_an_unknown_version_evicts(self, fingerprint, side):
        result = judge_one(make_run(), **{side: version(fingerprint)})
        assert result == ("EVICT", "NO_EVIDENCE", ["UNKNOWN_VERSION"])

    def test_two_unknown_versions_are_not_the_same_weights(self):
        unknown = version("unknown:x")
        verdict = ask(source=unknown, target=unknown)
        assert verdict.action == common.ACTION_EVICT
        assert len(verdict.reasons) == 2


class TestConditions:
    def test_no_run_evicts(self):
        assert judge_one() == ("EVICT", "NO_EVIDENCE", ["NO_EVIDENCE"])

    @pytest.mark.parametrize(
        "change",
        [
            {"layout": common.CacheLayout(digest="layout:9")},
            {"engine": common.Engine(name="sglang", version="0.6.0")},
            {"engine": common.Engine(name="other", version="0.5.23")},
        ],
    )
    def test_runs_of_another_server_do_not_count(self, change):
        result = judge_one(make_run(**change))
        assert result == ("EVICT", "NO_EVIDENCE", ["LAYOUT_MISMATCH"])

    def test_the_patch_version_of_the_engine_does_not_matter(self):
        run = make_run(engine=common.Engine(name="sglang", version="0.5.99"))
        assert judge_one(run)[0] == "KEEP"

    def test_an_unmeasured_family_gets_a_rule_of_its_own(self):
        verdict = ask(make_run(), families=["niah", "qa"])
        assert spans(verdict) == [
            ("niah", 0, 2048, "KEEP"),
            ("niah", 2048, 0, "EVICT"),
            ("qa", 0, 0, "EVICT"),
        ]
        assert verdict.rules[2].reasons[0].code == common.REASON_CODE_FAMILY_NOT_MEASURED
        assert verdict.action == common.ACTION_KEEP

    def test_beyond_the_longest_measured_prefix_evicts(self):
        last = ask(make_run()).rules[-1]
        assert last.reasons[0].code == common.REASON_CODE_BEYOND_MEASURED_PREFIX
        assert (last.prefix_tokens_min_exclusive, last.prefix_tokens_max) == (2048, 0)


class TestHarmfulFlips:
    def test_a_bound_below_the_limit_keeps(self):
        assert judge_one(make_run(make_stratum(flips=make_flips(149)))) == (
            "KEEP",
            "PASS",
            ["ALL_CRITERIA_PASS", "ALL_CRITERIA_PASS"],
        )

    def test_a_rate_at_the_limit_fails(self):
        action, confidence, codes = judge_one(make_run(make_stratum(flips=make_flips(300, 6))))
        assert (action, confidence, codes[0]) == ("EVICT", "FAIL", "HFR_TOO_HIGH")

    def test_a_rate_below_and_a_bound_above_the_limit_is_marginal(self):
        action, confidence, codes = judge_one(make_run(make_stratum(flips=make_flips(300, 3))))
        assert (action, confidence, codes[0]) == ("EVICT", "MARGINAL", "HFR_BOUND_TOO_HIGH")

    @pytest.mark.parametrize("correct", [0, 148])
    def test_too_few_correct_items_decide_nothing(self, correct):
        action, confidence, codes = judge_one(make_run(make_stratum(flips=make_flips(correct))))
        assert (action, confidence, codes[0]) == ("EVICT", "INCONCLUSIVE", "TOO_FEW_ITEMS")

    def test_the_message_states_the_figures(self):
        verdict = ask(make_run(make_stratum(flips=make_flips(40, 8, beneficial=9))))
        reason = verdict.rules[0].reasons[0]
        assert reason.message == (
            "harmful flips 8/40, upper bound 33.2 % >= limit 2 % (repaired 9, net gain +2 %)"
        )
        assert (reason.metric, reason.value, reason.threshold) == ("hfr", 0.2, 0.02)
        assert reason.bound == pytest.approx(0.33203, abs=1e-5)
        assert (reason.num_items, list(reason.run_ids)) == (40, ["run_0"])

    def test_more_planned_looks_need_a_tighter_bound(self):
        plan = evidence.SamplePlan(
            planned_items=20, planned_looks=3, hfr_limit=0.02, confidence_level=0.95
        )
        stratum = make_stratum(flips=make_flips(160))
        assert judge_one(make_run(stratum))[0] == "KEEP"
        assert judge_one(make_run(stratum, sample_plan=plan))[0] == "EVICT"

    def test_a_family_without_answers_needs_the_policy_to_say_so(self):
        stratum = make_stratum(task_family="continuation", flips=None)
        assert judge_one(make_run(stratum), policy=STANDARD)[0] == "KEEP"
        assert judge_one(make_run(make_stratum(flips=None)))[2][0] == "CRITERION_NOT_MEASURED"
        assert judge_one(make_run(stratum), policy=STRICT)[2][0] == "CRITERION_NOT_MEASURED"

    def test_answers_of_a_fidelity_family_count_when_they_are_given(self):
        stratum = make_stratum(task_family="continuation", flips=make_flips(300, 60))
        assert judge_one(make_run(stratum))[2][0] == "HFR_TOO_HIGH"


class TestDivergence:
    def test_is_judged_above_its_floor(self):
        noisy = {"divergence": make_divergence(0.02), "floor_divergence": make_divergence(0.015)}
        assert judge_one(make_run(make_stratum(**noisy)))[0] == "KEEP"
        without_floor = make_stratum(divergence=make_divergence(0.02), floor_divergence=None)
        assert judge_one(make_run(without_floor))[2][0] == "FCD_TOO_HIGH"

    def test_a_floor_as_high_as_the_limit_decides_nothing(self):
        noise = {"divergence": make_divergence(0.5), "floor_divergence": make_divergence(0.6)}
        action, confidence, codes = judge_one(make_run(make_stratum(**noise)))
        assert (action, confidence, codes[0]) == ("EVICT", "INCONCLUSIVE", "REFERENCE_UNSTABLE")

    def test_a_mean_above_the_limit_fails_although_no_answer_flips(self):
        result = judge_one(make_run(make_stratum(divergence=make_divergence(0.1))))
        assert result[:2] == ("EVICT", "FAIL")
        assert result[2][0] == "FCD_TOO_HIGH"

    def test_a_bound_above_the_limit_is_marginal(self):
        stratum = make_stratum(divergence=make_divergence(0.01, mean_upper_bound=0.03))
        action, confidence, codes = judge_one(make_run(stratum))
        assert (action, confidence, codes[0]) == ("EVICT", "MARGINAL", "FCD_BOUND_TOO_HIGH")

    def test_a_heavy_tail_fails_behind_a_small_mean(self):
        stratum = make_stratum(divergence=make_divergence(p95=4.4, p99=5.0, max=6.0))
        verdict = ask(make_run(stratum))
        assert verdict.rules[0].reasons[0].metric == "fcd_p95"
        assert verdict.confidence == common.CONFIDENCE_FAIL

    def test_without_a_divergence_nothing_is_kept(self):
        action, confidence, codes = judge_one(make_run(make_stratum(divergence=None)))
        assert (action, confidence, codes[0]) == (
            "EVICT",
            "INCONCLUSIVE",
            "CRITERION_NOT_MEASURED",
        )

    def test_few_items_decide_nothing(self):
        stratum = make_stratum(divergence=make_divergence(num_items=99))
        assert judge_one(make_run(stratum))[2][0] == "TOO_FEW_ITEMS"

    @pytest.mark.parametrize(
        "policy,remainder_mass,action",
        [
            (STANDARD, 0.0, "EVICT"),
            (RELAXED, None, "EVICT"),
            (RELAXED, 0.02, "EVICT"),
            (RELAXED, 0.005, "KEEP"),
        ],
    )
    def test_a_top_k_lower_bound_passes_only_where_hardly_anything_is_unseen(
        self, policy, remainder_mass, action
    ):
        divergence = make_divergence(
            method=evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND, remainder_mass=remainder_mass
        )
        result = judge_one(make_run(make_stratum(divergence=divergence)), policy=policy)
        assert result[0] == action
        if action == "EVICT":
            assert result[2][0] == "DIVERGENCE_LOWER_BOUND_ONLY"

    def test_a_lower_bound_above_the_limit_is_harm_enough(self):
        divergence = make_divergence(0.5, method=evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND)
        result = judge_one(make_run(make_stratum(divergence=divergence)))
        assert result[1:] == ("FAIL", ["FCD_TOO_HIGH", "FCD_TOO_HIGH", "ALL_CRITERIA_PASS"])

    @pytest.mark.parametrize("field", ["mean", "mean_upper_bound"])
    def test_what_is_not_a_number_never_passes(self, field):
        divergence = make_divergence(**{field: float("nan")})
        assert judge_one(make_run(make_stratum(divergence=divergence)))[0] == "EVICT"


class TestReferenceAndPlan:
    def test_a_reference_that_differs_from_itself_decides_nothing(self):
        result = judge_one(make_run(make_stratum(reference_mismatches=1)))
        assert result[1:] == ("INCONCLUSIVE", ["REFERENCE_UNSTABLE"] + ["ALL_CRITERIA_PASS"] * 2)

    def test_a_reference_that_was_not_repeated_decides_nothing(self):
        action, confidence, codes = judge_one(make_run(make_stratum(reference_mismatches=None)))
        assert (action, confidence, codes[0]) == (
            "EVICT",
            "INCONCLUSIVE",
            "CRITERION_NOT_MEASURED",
        )

    def test_a_policy_may_tolerate_a_few_mismatches(self):
        run = make_run(make_stratum(reference_mismatches=3))
        assert judge_one(run, policy=RELAXED)[0] == "KEEP"

    def test_a_run_without_a_plan_is_exploratory(self):
        action, confidence, codes = judge_one(make_run(sample_plan=None))
        assert (action, confidence, codes[0]) == ("EVICT", "INCONCLUSIVE", "EXPLORATORY")

    def test_a_policy_may_do_without_a_plan(self):
        lenient = STANDARD.model_copy(update={"require_sample_plan": False})
        assert judge_one(make_run(sample_plan=None), policy=lenient)[0] == "KEEP"

    def test_a_run_that_stopped_early_decides_nothing(self):
        plan = evidence.SamplePlan(
            planned_items=5000, planned_looks=1, hfr_limit=0.02, confidence_level=0.95
        )
        assert judge_one(make_run(sample_plan=plan))[2][0] == "PLAN_NOT_COMPLETED"

    def test_a_plan_counts_scored_items_not_those_of_the_divergence(self):
        stratum = make_stratum(flips=make_flips(190), divergence=make_divergence(num_items=400))
        plan = evidence.SamplePlan(
            planned_items=300, planned_looks=1, hfr_limit=0.02, confidence_level=0.95
        )
        assert judge_one(make_run(stratum, sample_plan=plan))[2][0] == "PLAN_NOT_COMPLETED"

    def test_harm_is_harm_without_a_plan_too(self):
        run = make_run(make_stratum(flips=make_flips(40, 35)), sample_plan=None)
        assert judge_one(run)[1] == "FAIL"


class TestPublished:
    def published(self, **changes):
        return make_run(
            make_stratum(**changes),
            provenance=evidence.PROVENANCE_PUBLISHED,
            layout=None,
            engine=None,
        )

    def test_good_figures_never_pass(self):
        result = judge_one(self.published())
        assert result == ("EVICT", "INCONCLUSIVE", ["PUBLISHED_ONLY"])

    def test_bad_figures_object_on_every_layout(self):
        flips = evidence.FlipCounts(num_items=192, reference_correct=49, harmful=13, beneficial=24)
        verdict = ask(self.published(flips=flips, divergence=None, prefix_tokens_max=32768))
        assert verdict.confidence == common.CONFIDENCE_FAIL
        message = verdict.reasons[0].message
        assert "13/49" in message
        assert "net gain +5.73 %" in message

    def test_a_measurement_here_outranks_them(self):
        harm = self.published(flips=make_flips(40, 35))
        assert judge_one(make_run(), harm)[0] == "KEEP"
        shorter = self.published(flips=make_flips(40, 35), prefix_tokens_max=512)
        assert spans(ask(make_run(), shorter))[0] == ("niah", 0, 2048, "KEEP")

    def test_runs_of_another_layout_are_mentioned_beside_them(self):
        other = make_run(layout=common.CacheLayout(digest="layout:9"))
        codes = [r.code for r in ask(self.published(), other).reasons]
        assert codes == [
            common.REASON_CODE_LAYOUT_MISMATCH,
            common.REASON_CODE_PUBLISHED_ONLY,
        ]


class TestDemoPolicy:
    def test_judges_a_handful_of_items(self):
        stratum = make_stratum(flips=make_flips(8), divergence=make_divergence(num_items=8))
        plan = evidence.SamplePlan(
            planned_items=8, planned_looks=1, hfr_limit=0.25, confidence_level=0.8
        )
        assert judge_one(make_run(stratum, sample_plan=plan), policy=DEMO)[0] == "KEEP"
        assert judge_one(make_run(stratum, sample_plan=plan), policy=RELAXED)[0] == "EVICT"
