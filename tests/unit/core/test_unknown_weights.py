"""Weights whose content nobody knows are the same as no others, not even under an equal key."""

from __future__ import annotations

from sglang_xver.client.answer import CompatAnswer
from sglang_xver.decision import PlanRequest, SourceEpoch, make_plan


def never(_: SourceEpoch) -> CompatAnswer:
    raise AssertionError("the service must not be asked")


def test_equal_keys_prove_nothing_without_a_fingerprint() -> None:
    request = PlanRequest(
        update_id="u",
        model_path="/m",
        target_key="unknown:1",
        target_fingerprint="",
        sources=(SourceEpoch("unknown:1", "", 0),),
        task_families=("niah",),
        max_age_updates=3,
    )
    plan = make_plan(request, never)
    assert plan.keep_max_tokens("unknown:1") == 0
    assert plan.rules["unknown:1"].reason == "UNKNOWN_VERSION"
