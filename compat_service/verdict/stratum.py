"""Verdict of one stratum: a task family, a bucket of prefix lengths and one way of reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.policy import Policy
from compat_service.verdict import criteria
from compat_service.verdict.evidence import (
    StratumEvidence,
    by_task,
    pool_divergence,
    pool_flips,
)
from compat_service.verdict.reasons import reason, worst


class StratumVerdict(NamedTuple):
    """How well the evidence supports reuse in one stratum."""

    confidence: common.Confidence
    reasons: tuple[compat.Reason, ...]


def judge_stratum(
    strata: Sequence[StratumEvidence], policy: Policy, task_family: str
) -> StratumVerdict:
    """Judge all evidence of one stratum; the worst finding decides.

    Measurements outrank publications: a publication is heard only where nothing was measured, and
    then it can object but not allow.
    """
    measured = [s for s in strata if not s.is_published]
    if measured:
        pools = [pool for group in by_task(measured) for pool in _pools(group, policy)]
        return _worst_of([_judge_pool(pool, policy, task_family) for pool in pools])
    return _judge_published(strata, policy, task_family)


def _pools(group: Sequence[StratumEvidence], policy: Policy) -> list[list[StratumEvidence]]:
    """Return the pools of one task that must each pass.

    All runs count. Where a plan is required the planned runs must pass alone as well, so that
    exploratory runs cannot supply the items that are missing.
    """
    everything = list(group)
    planned = [s for s in group if not s.is_exploratory]
    if policy.require_sample_plan and planned and len(planned) < len(everything):
        return [planned, everything]
    return [everything]


def _judge_pool(
    strata: Sequence[StratumEvidence], policy: Policy, task_family: str
) -> StratumVerdict:
    divergence = pool_divergence(strata)
    findings = [
        criteria.judge_reference(strata, policy),
        criteria.judge_plan(strata, policy),
        criteria.judge_hfr(pool_flips(strata), strata, policy, task_family),
        criteria.judge_fcd(divergence, strata, policy),
        criteria.judge_fcd_tail(divergence, strata, policy),
    ]
    confidence = worst(f.confidence for f in findings)
    # The deciding reasons stand first; those of passed criteria follow as context.
    ordered = sorted(findings, key=lambda f: (f.confidence != confidence, _is_pass(f.confidence)))
    return StratumVerdict(confidence, tuple(f.reason for f in ordered if f.reason is not None))


def _judge_published(
    strata: Sequence[StratumEvidence], policy: Policy, task_family: str
) -> StratumVerdict:
    flips, divergence = pool_flips(strata), pool_divergence(strata)
    findings = [
        criteria.judge_hfr(flips, strata, policy, task_family),
        criteria.judge_fcd(divergence, strata, policy),
        criteria.judge_fcd_tail(divergence, strata, policy),
    ]
    objections = [f for f in findings if f.confidence == common.CONFIDENCE_FAIL]
    note = reason(
        common.REASON_CODE_PUBLISHED_ONLY,
        "known from a publication only; a calibration on this server is needed to allow reuse",
        run_ids=[s.run_id for s in strata],
    )
    confidence = common.CONFIDENCE_FAIL if objections else common.CONFIDENCE_INCONCLUSIVE
    reasons = [f.reason for f in objections if f.reason is not None]
    return StratumVerdict(confidence, (*reasons, note))


def _worst_of(verdicts: Sequence[StratumVerdict]) -> StratumVerdict:
    confidence = worst(v.confidence for v in verdicts)
    reasons = [r for v in verdicts if v.confidence == confidence for r in v.reasons]
    return StratumVerdict(confidence, tuple(reasons))


def _is_pass(confidence: common.Confidence) -> bool:
    return confidence == common.CONFIDENCE_PASS
