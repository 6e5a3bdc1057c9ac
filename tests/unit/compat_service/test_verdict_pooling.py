"""Verdict: what is pooled, how buckets and ways of reuse combine, and that it is monotone."""

from __future__ import annotations

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
from hypothesis import given
from hypothesis import strategies as st
from xver.compat.v1 import common_pb2 as common

from compat_service.policy import STANDARD
from compat_service.verdict import PairQuestion, RunEvidence, judge_pair

QUESTION = PairQuestion(SOURCE, TARGET, LAYOUT, LAYOUT, ENGINE)
BAD = {"flips": make_flips(100, 90)}


def rules_for(*runs):
    evidence = [RunEvidence(f"run_{i}", run) for i, run in enumerate(runs)]
    return judge_pair(QUESTION, evidence, STANDARD).rules


def spans(rules):
    return [
        (
            r.prefix_tokens_min_exclusive,
            r.prefix_tokens_max,
            common.Action.Name(r.action).removeprefix("ACTION_"),
            r.mapper.sha256,
        )
        for r in rules
    ]


def remapped(sha256="m1", **changes):
    return make_stratum(
        action=common.ACTION_REMAP, mapper=common.MapperRef(sha256=sha256), **changes
    )


class TestPooling:
    def test_counts_of_equal_runs_are_summed(self):
        half = make_run(make_stratum(flips=make_flips(80)))
        assert rules_for(half)[0].action == common.ACTION_EVICT
        both = rules_for(half, half)[0]
        assert both.action == common.ACTION_KEEP
        assert both.reasons[0].num_items == 160
        assert list(both.reasons[0].run_ids) == ["run_0", "run_1"]

    def test_every_run_counts_so_a_bad_one_cannot_be_outvoted_by_choice(self):
        bad = make_run(make_stratum(flips=make_flips(300, 12)))
        assert rules_for(make_run(), bad)[0].action == common.ACTION_EVICT

    def test_the_worst_divergence_decides(self):
        bad = make_run(make_stratum(divergence=make_divergence(0.2)))
        rule = rules_for(make_run(), make_run(), bad)[0]
        assert rule.reasons[0].code == common.REASON_CODE_FCD_TOO_HIGH

    def test_other_task_versions_are_judged_apart_and_both_must_pass(self):
        other = make_stratum(task="niah_single@2", flips=make_flips(80))
        rule = rules_for(make_run(), make_run(other))[0]
        assert rule.action == common.ACTION_EVICT
        assert rule.reasons[0].num_items == 80

    def test_exploratory_runs_cannot_supply_the_missing_items(self):
        planned = make_run(make_stratum(flips=make_flips(80)))
        exploratory = make_run(sample_plan=None)
        assert rules_for(planned, exploratory)[0].action == common.ACTION_EVICT

    def test_exploratory_harm_counts_against_planned_runs(self):
        exploratory = make_run(make_stratum(**BAD), sample_plan=None)
        assert rules_for(make_run(), exploratory)[0].confidence == common.CONFIDENCE_FAIL


class TestBuckets:
    def test_ranges_follow_each_other_up_to_the_longest(self):
        run = make_run(
            make_stratum(prefix_tokens_max=4096, prefix_tokens_min=0),
            make_stratum(prefix_tokens_max=1024, prefix_tokens_min=0),
        )
        assert spans(rules_for(run)) == [
            (0, 1024, "KEEP", ""),
            (1024, 4096, "KEEP", ""),
            (4096, 0, "EVICT", ""),
        ]

    def test_a_deep_failure_leaves_the_shallow_part(self):
        run = make_run(
            make_stratum(prefix_tokens_max=1024, prefix_tokens_min=0),
            make_stratum(prefix_tokens_max=4096, **BAD),
        )
        assert [s[2] for s in spans(rules_for(run))] == ["KEEP", "EVICT", "EVICT"]

    def test_a_shallow_failure_takes_the_deep_part_with_it(self):
        run = make_run(
            make_stratum(prefix_tokens_max=1024, prefix_tokens_min=0, **BAD),
            make_stratum(prefix_tokens_max=4096),
        )
        deep = rules_for(run)[1]
        assert deep.action == common.ACTION_EVICT
        assert deep.confidence == common.CONFIDENCE_FAIL
        assert deep.reasons[0].code == common.REASON_CODE_SHALLOWER_BUCKET_FAILED


class TestWaysOfReuse:
    def test_keeping_is_preferred_when_both_pass(self):
        assert spans(rules_for(make_run(make_stratum(), remapped())))[0] == (0, 2048, "KEEP", "")

    def test_a_mapper_helps_where_plain_reuse_fails(self):
        run = make_run(make_stratum(**BAD), remapped())
        assert spans(rules_for(run))[0] == (0, 2048, "REMAP", "m1")

    def test_the_way_that_reaches_deeper_holds_for_the_whole_branch(self):
        run = make_run(
            make_stratum(prefix_tokens_max=1024, prefix_tokens_min=0),
            make_stratum(prefix_tokens_max=2048, **BAD),
            remapped(prefix_tokens_max=1024, prefix_tokens_min=0),
            remapped(prefix_tokens_max=2048),
        )
        assert spans(rules_for(run))[:2] == [
            (0, 1024, "REMAP", "m1"),
            (1024, 2048, "REMAP", "m1"),
        ]

    def test_mappers_are_not_pooled(self):
        run = make_run(remapped("m1", flips=make_flips(80)), remapped("m2", flips=make_flips(80)))
        assert rules_for(run)[0].action == common.ACTION_EVICT


strata = st.builds(
    lambda length, correct, harmful, mean: make_stratum(
        prefix_tokens_max=length,
        prefix_tokens_min=0,
        flips=make_flips(correct, min(harmful, correct)),
        divergence=make_divergence(mean),
    ),
    st.sampled_from([512, 1024, 2048]),
    st.integers(0, 600),
    st.integers(0, 12),
    st.floats(0.0, 0.05),
)


class TestProperties:
    @given(st.lists(strata, min_size=1, max_size=4), st.integers(0, 3))
    def test_more_harm_never_turns_evict_into_keep(self, measured, index):
        runs = [make_run(s) for s in measured]
        before = {s[:2]: s[2] for s in spans(rules_for(*runs))}
        worse = runs[index % len(runs)].strata[0].flips
        if worse.harmful == worse.reference_correct:
            return
        worse.harmful += 1
        for span in spans(rules_for(*runs)):
            assert not (span[2] == "KEEP" and before[span[:2]] == "EVICT")

    @given(st.lists(strata, min_size=1, max_size=5))
    def test_rules_cover_all_lengths_once_and_keep_only_from_the_shallow_end(self, measured):
        rules = rules_for(*[make_run(s) for s in measured])
        position, may_keep = 0, True
        for rule in rules:
            assert rule.prefix_tokens_min_exclusive == position
            position = rule.prefix_tokens_max
            may_keep = may_keep and rule.action == common.ACTION_KEEP
            assert (rule.action == common.ACTION_KEEP) == may_keep
            assert (rule.confidence == common.CONFIDENCE_PASS) == may_keep
        assert position == 0

    @given(st.lists(strata, min_size=1, max_size=4))
    def test_the_order_of_runs_does_not_matter(self, measured):
        runs = [make_run(s) for s in measured]
        assert spans(rules_for(*runs)) == spans(rules_for(*reversed(runs)))
