"""Turns answers of the compatibility service into the plan of one update. Pure module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sglang_xver.client.answer import EVERY_FAMILY, Action, CompatAnswer, CompatRule, Confidence
from sglang_xver.errors import ServiceError, ServiceUnavailableError
from sglang_xver.lineage import UNLIMITED, most_permissive
from sglang_xver.plan import EpochRule, Plan


@dataclass(frozen=True)
class SourceEpoch:
    """An epoch whose KV is in the tree. ``fingerprint`` is empty when its content is unknown."""

    key: str
    fingerprint: str
    age_updates: int


class FamilyLimit(NamedTuple):
    """How deep one family may reuse, and the rule that ends it."""

    keep_max_tokens: int
    reason: str
    detail: str


Ask = Callable[[SourceEpoch], CompatAnswer]


def _first_reason(rule: CompatRule) -> tuple[str, str]:
    """Return the code and the sentence of the reason that comes first."""
    if rule.action is Action.REMAP:
        return "REMAP_UNSUPPORTED", "this version of the plugin can't remap"
    if not rule.reasons:
        return ("ALL_CRITERIA_PASS" if rule.action is Action.KEEP else "NO_REASON_GIVEN"), ""
    return rule.reasons[0].code, rule.reasons[0].message


def _keeps(rule: CompatRule) -> bool:
    return rule.action is Action.KEEP and rule.confidence is Confidence.PASS


def family_limit(answer: CompatAnswer, family: str) -> FamilyLimit:
    """Return the depth in tokens down to which every bucket of ``family`` says KEEP with PASS.

    Buckets must follow each other without a gap from 0; what comes after the first that is not
    KEEP is not reached, because a branch is cut from its deep end. Rules may overlap, as one for
    every family does with one for this family: a refusal wins.
    """
    rules = sorted(
        (rule for rule in answer.rules if rule.task_family in (family, EVERY_FAMILY)),
        key=lambda rule: rule.prefix_tokens_min_exclusive,
    )
    reach: float = 0
    reason, detail = _pair_reason(answer)
    for rule in rules:
        if rule.prefix_tokens_min_exclusive > reach:
            break
        if not _keeps(rule):
            reach = rule.prefix_tokens_min_exclusive
            if reach == 0:
                reason, detail = _first_reason(rule)
            break
        reach = max(reach, math.inf if rule.prefix_tokens_max is None else rule.prefix_tokens_max)
        reason, detail = _first_reason(rule)
    return FamilyLimit(UNLIMITED if reach == math.inf else int(reach), reason, detail)


def _pair_reason(answer: CompatAnswer) -> tuple[str, str]:
    if not answer.reasons:
        return "FAMILY_NOT_MEASURED", ""
    return answer.reasons[0].code, answer.reasons[0].message


def rule_from_answer(answer: CompatAnswer, families: Sequence[str]) -> EpochRule:
    """Return the rule of one epoch: the tree keeps what at least one family may reuse.

    ``families`` holds at least one name. The limits of all are in the rule, because requests of
    a stricter family must not see what is kept for the others.
    """
    limits = {family: family_limit(answer, family) for family in families}
    depth = most_permissive(limit.keep_max_tokens for limit in limits.values())
    family, deciding = next(
        (name, limit) for name, limit in limits.items() if limit.keep_max_tokens == depth
    )
    return EpochRule(
        keep_max_tokens=depth,
        families={name: limit.keep_max_tokens for name, limit in limits.items()},
        reason=deciding.reason,
        decision_id=answer.decision_id,
        detail=f"{family}: {deciding.detail}" if deciding.detail else family,
    )


def _evict(reason: str, detail: str) -> EpochRule:
    return EpochRule(keep_max_tokens=0, reason=reason, detail=detail)


@dataclass(frozen=True)
class PlanRequest:
    """All that a plan depends on."""

    update_id: str
    model_path: str
    target_key: str
    target_fingerprint: str
    sources: tuple[SourceEpoch, ...]
    task_families: tuple[str, ...]
    max_age_updates: int
    geometry_differences: tuple[str, ...] = ()
    label_conflict: str = ""
    """Sentence about a label that named other bytes before; empty when there is no conflict."""


def _rule_without_service(request: PlanRequest, source: SourceEpoch) -> EpochRule | None:
    """Return the rule that needs no evidence, or None when the service must be asked."""
    if source.fingerprint and source.key == request.target_key:
        return EpochRule(keep_max_tokens=UNLIMITED, reason="SAME_FINGERPRINT")
    if source.fingerprint and source.fingerprint == request.target_fingerprint:
        return _evict("SAMPLED_NOT_EXACT", "equal samples, other files: equality is not proven")
    if request.label_conflict:
        return _evict("LABEL_REUSED", request.label_conflict)
    if not source.fingerprint or not request.target_fingerprint:
        return _evict("UNKNOWN_VERSION", "the content of the weights has no fingerprint")
    if request.geometry_differences:
        return _evict("GEOMETRY_MISMATCH", "; ".join(request.geometry_differences[:3]))
    if not request.task_families:
        return _evict("NO_TASK_FAMILY", "set task_families in the xver configuration")
    if source.age_updates >= request.max_age_updates:
        return _evict("MAX_AGE", f"survived {source.age_updates} updates")
    return None


def make_plan(request: PlanRequest, ask: Ask) -> Plan:
    """Decide for every source epoch; each is judged directly against the target, never chained.

    ``ask`` raises :class:`ServiceError` on failure; after the first time that the service is out
    of reach it is not asked again for this update. Any failure evicts.
    """
    rules: dict[str, EpochRule] = {}
    unavailable: str | None = None
    for source in request.sources:
        rule = _rule_without_service(request, source)
        if rule is None and unavailable is not None:
            rule = _evict("SERVICE_UNAVAILABLE", unavailable)
        if rule is None:
            try:
                rule = rule_from_answer(ask(source), request.task_families)
            except ServiceUnavailableError as error:
                unavailable = str(error)
                rule = _evict("SERVICE_UNAVAILABLE", unavailable)
            except ServiceError as error:
                rule = _evict("SERVICE_ERROR", str(error))
        rules[source.key] = rule
    return Plan(
        update_id=request.update_id,
        target_key=request.target_key,
        model_path=request.model_path,
        rules=rules,
    )


def age_after_update(ages: dict[str, int], epochs: Iterable[str], current: str) -> dict[str, int]:
    """Return, once another update has been applied, how many each epoch has survived.

    The age counts from when the epoch's weights were last the served ones: under them its KV is
    exact, however old it is.
    """
    return {key: 0 if key == current else ages.get(key, 0) + 1 for key in epochs}
