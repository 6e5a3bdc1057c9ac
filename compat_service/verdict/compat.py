"""Verdict of a pair: identity, geometry and conditions first, then family by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.policy import Policy
from compat_service.verdict.evidence import (
    Conditions,
    RunEvidence,
    StratumEvidence,
    conditions_of,
    strata_of,
)
from compat_service.verdict.family import evict_rule, family_rules
from compat_service.verdict.reasons import reason, worst

EVERY_FAMILY = "*"
UNKNOWN_SCHEME = "unknown:"


@dataclass(frozen=True)
class PairQuestion:
    """May KV written by ``source`` be read by ``target`` on this server?"""

    source: common.ModelVersion
    target: common.ModelVersion
    source_layout: common.CacheLayout
    target_layout: common.CacheLayout
    engine: common.Engine
    task_families: tuple[str, ...] = ()
    """Families to judge; empty means all with evidence."""

    @property
    def conditions(self) -> Conditions:
        """Conditions that evidence must match."""
        return conditions_of(self.source_layout, self.engine)


class Verdict(NamedTuple):
    """Answer for a pair."""

    action: common.Action
    confidence: common.Confidence
    rules: tuple[compat.Rule, ...]
    reasons: tuple[compat.Reason, ...]
    used_run_ids: tuple[str, ...]
    """Runs whose figures were judged."""


def judge_pair(question: PairQuestion, runs: Sequence[RunEvidence], policy: Policy) -> Verdict:
    """Judge a pair from all of its recorded runs. Equal arguments give equal answers.

    Args:
        runs: every run from exactly this source to exactly this target. Evidence is never
            chained: runs of other pairs say nothing.
    """
    unfit = _judge_identity(question)
    if unfit is not None:
        return unfit
    if not runs:
        why = reason(
            common.REASON_CODE_NO_EVIDENCE,
            "no run is recorded from "
            f"{question.source.fingerprint} to {question.target.fingerprint}",
        )
        return _whole_pair_evicted(question, common.CONFIDENCE_NO_EVIDENCE, [why])
    matching = [r for r in runs if r.is_published or r.conditions == question.conditions]
    mismatch = _layout_mismatch(question, runs)
    if not matching:
        return _whole_pair_evicted(question, common.CONFIDENCE_NO_EVIDENCE, [mismatch])
    only_published = all(r.is_published for r in matching)
    pair_reasons = [mismatch] if only_published and len(matching) < len(runs) else []
    return _judge_families(question, matching, policy, pair_reasons)


def _judge_identity(question: PairQuestion) -> Verdict | None:
    """Return the verdict where no evidence is needed, else None."""
    if question.source_layout.digest != question.target_layout.digest:
        why = reason(
            common.REASON_CODE_GEOMETRY_MISMATCH,
            "source and target need different caches "
            f"(layout {question.source_layout.digest} against {question.target_layout.digest})",
        )
        return _whole_pair_evicted(question, common.CONFIDENCE_FAIL, [why])
    unknown = [
        reason(
            common.REASON_CODE_UNKNOWN_VERSION,
            f"the {side} has no known fingerprint ({version.fingerprint or 'empty'})",
        )
        for side, version in (("source", question.source), ("target", question.target))
        if is_unknown(version.fingerprint)
    ]
    if unknown:
        return _whole_pair_evicted(question, common.CONFIDENCE_NO_EVIDENCE, unknown)
    if question.source.fingerprint == question.target.fingerprint:
        return _same_weights(question)
    return None


def is_unknown(fingerprint: str) -> bool:
    """Return True for a fingerprint that identifies nothing."""
    return not fingerprint or fingerprint.startswith(UNKNOWN_SCHEME)


def _same_weights(question: PairQuestion) -> Verdict:
    why = reason(
        common.REASON_CODE_SAME_FINGERPRINT,
        f"source and target are the same weights ({question.source.fingerprint})",
    )
    rules = tuple(
        compat.Rule(
            task_family=family,
            action=common.ACTION_KEEP,
            confidence=common.CONFIDENCE_PASS,
            reasons=[why],
        )
        for family in _named_families(question)
    )
    return Verdict(common.ACTION_KEEP, common.CONFIDENCE_PASS, rules, (why,), ())


def _whole_pair_evicted(
    question: PairQuestion, confidence: common.Confidence, why: Sequence[compat.Reason]
) -> Verdict:
    rules = tuple(evict_rule(f, confidence, why[0]) for f in _named_families(question))
    return Verdict(common.ACTION_EVICT, confidence, rules, tuple(why), ())


def _named_families(question: PairQuestion) -> tuple[str, ...]:
    return tuple(sorted(set(question.task_families))) or (EVERY_FAMILY,)


def _layout_mismatch(question: PairQuestion, runs: Sequence[RunEvidence]) -> compat.Reason:
    asked = question.conditions
    others = sorted({r.conditions for r in runs if not r.is_published})
    known = ", ".join(f"layout {c.layout_digest} on {_engine(c)}" for c in others[:3])
    return reason(
        common.REASON_CODE_LAYOUT_MISMATCH,
        f"asked for layout {asked.layout_digest} on {_engine(asked)}; "
        f"runs exist only for {known}" + (" and others" if len(others) > 3 else ""),
        run_ids=[r.run_id for r in runs if not r.is_published],
    )


def _engine(conditions: Conditions) -> str:
    return f"{conditions.engine_name} {conditions.engine_release}"


def _judge_families(
    question: PairQuestion,
    runs: Sequence[RunEvidence],
    policy: Policy,
    pair_reasons: Sequence[compat.Reason],
) -> Verdict:
    by_family: dict[str, list[StratumEvidence]] = {}
    for stratum in strata_of(runs):
        by_family.setdefault(stratum.result.task_family, []).append(stratum)
    families = sorted(set(question.task_families) or by_family)
    rules: list[compat.Rule] = []
    for family in families:
        rules.extend(family_rules(family, by_family.get(family, []), policy))
    used = sorted({s.run_id for f in families for s in by_family.get(f, [])})
    allowed = [rule for rule in rules if rule.action != common.ACTION_EVICT]
    if allowed:
        # One action stands for the pair; each rule says its own.
        action = min(rule.action for rule in allowed)
        why = [*pair_reasons, _allowed_reason(allowed, families, used)]
        return Verdict(action, common.CONFIDENCE_PASS, tuple(rules), tuple(why), tuple(used))
    confidence = worst(rule.confidence for rule in rules)
    why = [*pair_reasons, *_first_objections(rules, confidence)]
    return Verdict(common.ACTION_EVICT, confidence, tuple(rules), tuple(why), tuple(used))


def _allowed_reason(
    allowed: Sequence[compat.Rule], families: Sequence[str], run_ids: Sequence[str]
) -> compat.Reason:
    depths: dict[str, int] = {}
    for rule in allowed:
        depths[rule.task_family] = max(depths.get(rule.task_family, 0), rule.prefix_tokens_max)
    listed = ", ".join(f"{family} up to {depth} tokens" for family, depth in depths.items())
    return reason(
        common.REASON_CODE_ALL_CRITERIA_PASS,
        f"reuse is allowed for {len(depths)} of {len(families)} task families: {listed}",
        run_ids=run_ids,
    )


def _first_objections(
    rules: Sequence[compat.Rule], confidence: common.Confidence
) -> list[compat.Reason]:
    """Return the deciding reason of the shallowest objecting bucket of each family."""
    chosen: dict[str, compat.Reason] = {}
    for rule in rules:
        if rule.confidence == confidence and rule.reasons:
            chosen.setdefault(rule.task_family, rule.reasons[0])
    return list(chosen.values())
