"""From answers of the service to the plan of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sglang_xver.client import Action, CompatAnswer, CompatRule, Confidence
from sglang_xver.decision import (
    PlanRequest,
    SourceEpoch,
    age_after_update,
    family_limit,
    make_plan,
    rule_from_answer,
)
from sglang_xver.errors import PlanError, ServiceError, ServiceUnavailableError
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import Plan, plan_from_wire
from tests.unit.core.answers import answer, rule

A = SourceEpoch("initial", "sha256:a", 0)
B = SourceEpoch("sha256:b", "sha256:b", 1)


EVICT_LONG = rule(512, None, Action.EVICT, Confidence.NO_EVIDENCE, code="BEYOND_MEASURED_PREFIX")


class TestFamilyLimit:
    def test_buckets_follow_each_other(self) -> None:
        limit = family_limit(answer(rule(0, 256), rule(256, 512), EVICT_LONG), "niah")
        assert limit.keep_max_tokens == 512
        assert limit.reason == "ALL_CRITERIA_PASS"

    def test_order_of_rules_does_not_matter(self) -> None:
        limit = family_limit(answer(EVICT_LONG, rule(256, 512), rule(0, 256)), "niah")
        assert limit.keep_max_tokens == 512

    def test_failed_shallow_bucket_keeps_nothing(self) -> None:
        bad = rule(0, 256, Action.EVICT, Confidence.FAIL, code="HFR_TOO_HIGH")
        limit = family_limit(answer(bad, rule(256, 512)), "niah")
        assert (limit.keep_max_tokens, limit.reason) == (0, "HFR_TOO_HIGH")

    def test_gap_ends_the_reuse(self) -> None:
        limit = family_limit(answer(rule(0, 256), rule(300, 512)), "niah")
        assert limit.keep_max_tokens == 256

    @pytest.mark.parametrize("confidence", [c for c in Confidence if c is not Confidence.PASS])
    def test_only_pass_keeps(self, confidence: Confidence) -> None:
        limit = family_limit(answer(rule(0, None, confidence=confidence)), "niah")
        assert limit.keep_max_tokens == 0

    def test_remap_is_not_keep(self) -> None:
        limit = family_limit(answer(rule(0, 512, Action.REMAP)), "niah")
        assert (limit.keep_max_tokens, limit.reason) == (0, "REMAP_UNSUPPORTED")

    def test_unmeasured_family(self) -> None:
        limit = family_limit(answer(rule(0, None, family="qa")), "niah")
        assert (limit.keep_max_tokens, limit.reason) == (0, "FAMILY_NOT_MEASURED")

    @pytest.mark.parametrize(
        "rules, expected",
        [
            ([rule(0, None, family="*"), rule(0, 4096, Action.EVICT)], 0),
            ([rule(0, 4096, Action.EVICT), rule(0, None, family="*")], 0),
            ([rule(0, 4096), rule(1024, 2048, Action.EVICT)], 1024),
            ([rule(0, None), rule(1024, 2048, Action.EVICT)], 1024),
            ([rule(0, 512), rule(100, 256)], 512),
            ([rule(0, 512), rule(100, 256), rule(512, None)], UNLIMITED),
        ],
    )
    def test_overlapping_rules(self, rules: list[CompatRule], expected: int) -> None:
        assert family_limit(answer(*rules), "niah").keep_max_tokens == expected

    def test_rule_for_every_family(self) -> None:
        assert family_limit(answer(rule(0, None, family="*")), "niah").keep_max_tokens == UNLIMITED


def test_the_tree_keeps_what_one_family_may_reuse() -> None:
    both = answer(rule(0, 512), rule(0, 128, family="qa"))
    decided = rule_from_answer(both, ("qa", "niah"))
    assert decided.keep_max_tokens == 512
    assert decided.families == {"qa": 128, "niah": 512}
    assert decided.detail.startswith("niah")
    assert decided.decision_id == "dec_1"


def request(*sources: SourceEpoch) -> PlanRequest:
    return PlanRequest(
        update_id="u",
        model_path="/m",
        target_key="sha256:c",
        target_fingerprint="sha256:c",
        sources=sources,
        task_families=("niah",),
        max_age_updates=3,
    )


def refuse(error: Exception) -> Callable[[SourceEpoch], CompatAnswer]:
    def ask(_: SourceEpoch) -> CompatAnswer:
        raise error

    return ask


def never(_: SourceEpoch) -> CompatAnswer:
    raise AssertionError("the service must not be asked")


class TestMakePlan:
    def test_each_epoch_is_judged_against_the_target(self) -> None:
        asked = []

        def ask(source: SourceEpoch) -> CompatAnswer:
            asked.append(source.fingerprint)
            return answer(rule(0, 512 if source is A else 64))

        plan = make_plan(request(A, B), ask)
        assert asked == ["sha256:a", "sha256:b"]
        assert plan.keep_max_tokens("initial") == 512
        assert plan.keep_max_tokens("sha256:b") == 64
        assert plan.keep_max_tokens("never seen") == 0

    def test_same_content_needs_no_evidence(self) -> None:
        same = SourceEpoch("sha256:c", "sha256:c", 0)
        plan = make_plan(request(same), never)
        assert plan.keep_max_tokens("sha256:c") == UNLIMITED
        assert plan.rules["sha256:c"].reason == "SAME_FINGERPRINT"

    def test_equal_samples_of_other_files_are_not_the_same(self) -> None:
        sampled = SourceEpoch("sampled:c@1", "sampled:c", 0)
        other = replace(request(sampled), target_key="sampled:c@2", target_fingerprint="sampled:c")
        plan = make_plan(other, never)
        assert plan.keep_max_tokens("sampled:c@1") == 0
        assert plan.rules["sampled:c@1"].reason == "SAMPLED_NOT_EXACT"

    @pytest.mark.parametrize(
        "changes, source, reason",
        [
            ({}, SourceEpoch("unknown:1", "", 0), "UNKNOWN_VERSION"),
            ({"target_fingerprint": ""}, A, "UNKNOWN_VERSION"),
            ({"geometry_differences": ("rope_theta: 1 != 2",)}, A, "GEOMETRY_MISMATCH"),
            ({"task_families": ()}, A, "NO_TASK_FAMILY"),
            ({"label_conflict": "label v1 named other bytes"}, A, "LABEL_REUSED"),
            ({}, replace(A, age_updates=3), "MAX_AGE"),
        ],
    )
    def test_evicts_without_asking(
        self, changes: dict[str, object], source: SourceEpoch, reason: str
    ) -> None:
        plan = make_plan(replace(request(source), **changes), never)  # type: ignore[arg-type]
        assert plan.rules[source.key].reason == reason
        assert plan.keep_max_tokens(source.key) == 0

    def test_two_unknown_contents_are_not_the_same(self) -> None:
        unknown = SourceEpoch("unknown:1", "", 0)
        plan = make_plan(replace(request(unknown), target_fingerprint=""), never)
        assert plan.keep_max_tokens("unknown:1") == 0

    def test_service_down_is_asked_once(self) -> None:
        calls = []

        def ask(source: SourceEpoch) -> CompatAnswer:
            calls.append(source)
            raise ServiceUnavailableError("down")

        plan = make_plan(request(A, B), ask)
        assert len(calls) == 1
        assert {r.reason for r in plan.rules.values()} == {"SERVICE_UNAVAILABLE"}

    def test_refused_question_evicts(self) -> None:
        plan = make_plan(request(A), refuse(ServiceError("refused")))
        assert plan.rules["initial"].reason == "SERVICE_ERROR"
        assert plan.keep_max_tokens("initial") == 0


def test_age_counts_updates_survived() -> None:
    ages = age_after_update({}, ["a", "b"], "b")
    assert ages == {"a": 1, "b": 0}
    ages = age_after_update(ages, ["a", "b", "c"], "c")
    assert ages == {"a": 2, "b": 1, "c": 0}
    assert age_after_update(ages, ["b", "c"], "c") == {"b": 2, "c": 0}


class TestWire:
    def test_round_trip(self) -> None:
        plan = make_plan(request(A), lambda _: answer(rule(0, 512)))
        assert plan_from_wire(plan.to_wire()) == plan

    @pytest.mark.parametrize(
        "key",
        [
            "other:{}",
            "xver_plan:",
            "xver_plan:{",
            "xver_plan:[]",
            'xver_plan:{"update_id":"u"}',
            'xver_plan:{"update_id":"u","target_key":"t","model_path":"m","extra":1}',
            (
                'xver_plan:{"update_id":"u","target_key":"t","model_path":"m",'
                '"rules":{"a":{"keep_max_tokens":-2,"reason":"r"}}}'
            ),
            'xver_plan:{"version":2,"update_id":"u","target_key":"t","model_path":"m"}',
            "xver_plan:" + " " * 300_000,
            "xver_plan:" + "[" * 100_000,
            "xver_plan:" + "9" * 5000,
            (
                'xver_plan:{"update_id":"u","target_key":"t","model_path":"m",'
                '"rules":{"a":{"keep_max_tokens":true,"reason":"r"}}}'
            ),
            (
                'xver_plan:{"update_id":"u","target_key":"t","model_path":"m",'
                '"rules":{"a":{"keep_max_tokens":"-1","reason":"r"}}}'
            ),
        ],
    )
    def test_malformed_plans_are_refused(self, key: str) -> None:
        with pytest.raises(PlanError):
            plan_from_wire(key)

    def test_plan_without_rules_keeps_nothing(self) -> None:
        assert Plan(update_id="u", target_key="t", model_path="m").keep_max_tokens("a") == 0
