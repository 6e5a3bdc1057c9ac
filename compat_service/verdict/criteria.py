"""The criteria of one pool of strata: reference, plan, harmful flips, divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.policy import Policy
from compat_service.statistics import (
    clopper_pearson_upper,
    flip_rates,
    required_items,
    split_confidence,
)
from compat_service.verdict.evidence import (
    DivergencePool,
    FlipPool,
    StratumEvidence,
    items_of,
    planned_sample_of,
)
from compat_service.verdict.reasons import nats, percent, reason


class Finding(NamedTuple):
    """Outcome of one criterion."""

    confidence: common.Confidence
    reason: compat.Reason | None
    """Why; None where nothing is worth saying."""


PASSED = Finding(common.CONFIDENCE_PASS, None)


def judge_reference(strata: Sequence[StratumEvidence], policy: Policy) -> Finding:
    """Judge whether the reference (arm C) was repeated (C') and came out the same."""
    run_ids = [s.run_id for s in strata]
    unchecked = [s for s in strata if not s.result.HasField("reference_mismatches")]
    if unchecked:
        return Finding(
            common.CONFIDENCE_INCONCLUSIVE,
            reason(
                common.REASON_CODE_CRITERION_NOT_MEASURED,
                "the reference was not repeated (no C' arm), so its stability is unknown",
                metric="reference_mismatch",
                threshold=policy.max_reference_mismatch_ratio,
                run_ids=[s.run_id for s in unchecked],
            ),
        )
    mismatches = sum(s.result.reference_mismatches for s in strata)
    items = sum(items_of(s.result) for s in strata)
    ratio = mismatches / items if items else 0.0
    if ratio <= policy.max_reference_mismatch_ratio:
        return PASSED
    return Finding(
        common.CONFIDENCE_INCONCLUSIVE,
        reason(
            common.REASON_CODE_REFERENCE_UNSTABLE,
            f"the repeated reference differed in {mismatches}/{items} items "
            f"({percent(ratio)} > allowed {percent(policy.max_reference_mismatch_ratio)})",
            metric="reference_mismatch",
            value=ratio,
            threshold=policy.max_reference_mismatch_ratio,
            num_items=items,
            run_ids=run_ids,
        ),
    )


def judge_plan(strata: Sequence[StratumEvidence], policy: Policy) -> Finding:
    """Judge whether the sample sizes were fixed beforehand and reached."""
    if not policy.require_sample_plan:
        return PASSED
    if all(s.is_exploratory for s in strata):
        return Finding(
            common.CONFIDENCE_INCONCLUSIVE,
            reason(
                common.REASON_CODE_EXPLORATORY,
                "no run has a sample plan; exploratory figures cannot allow reuse",
                run_ids=[s.run_id for s in strata],
            ),
        )
    for stratum in strata:
        items = planned_sample_of(stratum.result)
        if stratum.plan is not None and items < stratum.plan.planned_items:
            return Finding(
                common.CONFIDENCE_INCONCLUSIVE,
                reason(
                    common.REASON_CODE_PLAN_NOT_COMPLETED,
                    f"the run ended after {items} of {stratum.plan.planned_items} planned items",
                    metric="planned_items",
                    value=items,
                    threshold=stratum.plan.planned_items,
                    num_items=items,
                    run_ids=[stratum.run_id],
                ),
            )
    return PASSED


def judge_hfr(
    pool: FlipPool | None, strata: Sequence[StratumEvidence], policy: Policy, task_family: str
) -> Finding:
    """Judge the harmful flip rate by its exact upper bound."""
    run_ids = [s.run_id for s in strata if s.result.HasField("flips")]
    if pool is None:
        if task_family in policy.fidelity_only_families:
            return PASSED
        return Finding(
            common.CONFIDENCE_INCONCLUSIVE,
            reason(
                common.REASON_CODE_CRITERION_NOT_MEASURED,
                f"no answers were scored for {task_family!r}, harmful flips are unknown",
                metric="hfr",
                threshold=policy.hfr_limit,
                run_ids=[s.run_id for s in strata],
            ),
        )
    confidence_level = _confidence_level(strata, policy)
    rate = flip_rates(pool.num_items, pool.reference_correct, pool.harmful, pool.beneficial).hfr
    bound = clopper_pearson_upper(pool.harmful, pool.reference_correct, confidence_level)
    needed = max(
        required_items(policy.hfr_limit, 0, confidence_level), policy.min_reference_correct
    )
    if rate is not None and rate >= policy.hfr_limit:
        code, confidence = common.REASON_CODE_HFR_TOO_HIGH, common.CONFIDENCE_FAIL
    elif pool.reference_correct < needed:
        code, confidence = common.REASON_CODE_TOO_FEW_ITEMS, common.CONFIDENCE_INCONCLUSIVE
    elif bound >= policy.hfr_limit:
        code, confidence = common.REASON_CODE_HFR_BOUND_TOO_HIGH, common.CONFIDENCE_MARGINAL
    else:
        code, confidence = common.REASON_CODE_ALL_CRITERIA_PASS, common.CONFIDENCE_PASS
    message = _hfr_message(pool, bound, policy.hfr_limit)
    if code == common.REASON_CODE_TOO_FEW_ITEMS:
        message += f"; {needed} originally correct items are needed"
    return Finding(
        confidence,
        reason(
            code,
            message,
            metric="hfr",
            value=rate,
            bound=bound,
            threshold=policy.hfr_limit,
            num_items=pool.reference_correct,
            run_ids=run_ids,
        ),
    )


def judge_fcd(
    pool: DivergencePool | None, strata: Sequence[StratumEvidence], policy: Policy
) -> Finding:
    """Judge the divergence above its noise floor by the upper bound of its mean."""
    run_ids = [s.run_id for s in strata if s.result.HasField("divergence")]
    limit = policy.fcd_mean_limit_nats
    if pool is None:
        return Finding(
            common.CONFIDENCE_INCONCLUSIVE,
            reason(
                common.REASON_CODE_CRITERION_NOT_MEASURED,
                "no divergence was measured, fidelity is unknown",
                metric="fcd",
                threshold=limit,
                run_ids=[s.run_id for s in strata],
            ),
        )
    # Written as "not below", so that a figure that is not a number can never pass.
    if not pool.excess_mean < limit:
        code, confidence = common.REASON_CODE_FCD_TOO_HIGH, common.CONFIDENCE_FAIL
    elif not pool.floor_mean_max < limit:
        # Below a floor as high as the limit, harm and noise cannot be told apart.
        code, confidence = common.REASON_CODE_REFERENCE_UNSTABLE, common.CONFIDENCE_INCONCLUSIVE
    elif _is_unusable_lower_bound(pool, policy):
        code = common.REASON_CODE_DIVERGENCE_LOWER_BOUND_ONLY
        confidence = common.CONFIDENCE_INCONCLUSIVE
    elif pool.num_items < policy.min_divergence_items:
        code, confidence = common.REASON_CODE_TOO_FEW_ITEMS, common.CONFIDENCE_INCONCLUSIVE
    elif not pool.excess_bound < limit:
        code, confidence = common.REASON_CODE_FCD_BOUND_TOO_HIGH, common.CONFIDENCE_MARGINAL
    else:
        code, confidence = common.REASON_CODE_ALL_CRITERIA_PASS, common.CONFIDENCE_PASS
    floor = "not measured" if pool.floor_mean is None else nats(pool.floor_mean)
    message = (
        f"divergence above the floor {nats(pool.excess_mean)}, upper bound "
        f"{nats(pool.excess_bound)} {_comparison(pool.excess_bound, limit)} limit {nats(limit)}"
        f" (floor {floor}, {pool.num_items} items)"
    )
    message += {
        common.REASON_CODE_REFERENCE_UNSTABLE: (
            f"; a floor of {nats(pool.floor_mean_max)} hides what the limit is about"
        ),
        common.REASON_CODE_DIVERGENCE_LOWER_BOUND_ONLY: (
            "; it comes from top-k log-probabilities and is only a lower bound"
        ),
        common.REASON_CODE_TOO_FEW_ITEMS: f"; {policy.min_divergence_items} items are needed",
    }.get(code, "")
    return Finding(
        confidence,
        reason(
            code,
            message,
            metric="fcd",
            value=pool.excess_mean,
            bound=pool.excess_bound,
            threshold=limit,
            num_items=pool.num_items,
            run_ids=run_ids,
        ),
    )


def judge_fcd_tail(
    pool: DivergencePool | None, strata: Sequence[StratumEvidence], policy: Policy
) -> Finding:
    """Judge the 95th percentile above its floor: a small mean can hide a heavy tail."""
    limit = policy.fcd_p95_limit_nats
    if limit is None or pool is None or pool.excess_p95 < limit:
        return PASSED
    return Finding(
        common.CONFIDENCE_FAIL,
        reason(
            common.REASON_CODE_FCD_TOO_HIGH,
            f"95th percentile of the divergence above the floor {nats(pool.excess_p95)} >= "
            f"limit {nats(limit)} ({pool.num_items} items)",
            metric="fcd_p95",
            value=pool.excess_p95,
            threshold=limit,
            num_items=pool.num_items,
            run_ids=[s.run_id for s in strata if s.result.HasField("divergence")],
        ),
    )


def _confidence_level(strata: Sequence[StratumEvidence], policy: Policy) -> float:
    looks = max((s.plan.planned_looks for s in strata if s.plan is not None), default=1)
    return split_confidence(policy.confidence_level, max(looks, 1))


def _is_unusable_lower_bound(pool: DivergencePool, policy: Policy) -> bool:
    if not pool.lower_bound_runs:
        return False
    allowed = policy.top_k_remainder_mass_max
    return allowed is None or pool.remainder_mass is None or pool.remainder_mass > allowed


def _hfr_message(pool: FlipPool, bound: float, limit: float) -> str:
    message = (
        f"harmful flips {pool.harmful}/{pool.reference_correct}, upper bound {percent(bound)} "
        f"{_comparison(bound, limit)} limit {percent(limit)}"
    )
    extras = []
    if pool.beneficial:
        gain = (pool.beneficial - pool.harmful) / pool.num_items
        extras.append(f"repaired {pool.beneficial}, net gain {gain * 100:+.3g} %")
    if pool.floor_reference_correct:
        extras.append(f"floor {pool.floor_harmful}/{pool.floor_reference_correct}")
    return message + (f" ({'; '.join(extras)})" if extras else "")


def _comparison(bound: float, limit: float) -> str:
    return ">=" if bound >= limit else "<"
