"""Answers of the service as plain values. What is not understood reads as EVICT."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

EVERY_FAMILY = "*"


class Action(StrEnum):
    """What happens to a branch of the prefix cache."""

    KEEP = "KEEP"
    REMAP = "REMAP"
    EVICT = "EVICT"


class Confidence(StrEnum):
    """How well the evidence supports an action; only PASS goes with KEEP or REMAP."""

    PASS = "PASS"  # noqa: S105 - no password
    MARGINAL = "MARGINAL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_EVIDENCE = "NO_EVIDENCE"
    FAIL = "FAIL"


@dataclass(frozen=True)
class CompatReason:
    """One figure or fact behind an action; figures that do not exist are None."""

    code: str
    """Reason code without prefix, for example ``HFR_TOO_HIGH``."""
    message: str
    """One sentence for a person."""
    metric: str = ""
    value: float | None = None
    bound: float | None = None
    threshold: float | None = None
    num_items: int = 0
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompatRule:
    """Action for prefixes of (prefix_tokens_min_exclusive, prefix_tokens_max] tokens."""

    task_family: str
    """``*`` stands for every family."""
    prefix_tokens_min_exclusive: int
    prefix_tokens_max: int | None
    """None means without limit."""
    action: Action
    confidence: Confidence
    reasons: tuple[CompatReason, ...]
    mapper_sha256: str = ""
    """Mapper of REMAP."""


@dataclass(frozen=True)
class CompatAnswer:
    """The whole plan for one pair of versions."""

    decision_id: str
    action: Action
    """KEEP or REMAP when at least one rule allows it, else EVICT."""
    confidence: Confidence
    rules: tuple[CompatRule, ...]
    reasons: tuple[CompatReason, ...]
    policy: str
    policy_revision: str
    evidence_revision: int
    ttl_s: float
    """How long the answer may be reused."""
    decided_at: datetime


@dataclass(frozen=True)
class RecordedRun:
    """Outcome of recording a run."""

    run_id: str
    """Empty for a run that was only validated."""
    evidence_revision: int
    already_recorded: bool


def answer_from_message(message: compat.CheckCompatResponse) -> CompatAnswer:
    """Convert a response."""
    return CompatAnswer(
        decision_id=message.decision_id,
        action=_action(message.action),
        confidence=_confidence(message.confidence),
        rules=tuple(_rule(rule) for rule in message.rules),
        reasons=tuple(_reason(reason) for reason in message.reasons),
        policy=message.policy,
        policy_revision=message.policy_revision,
        evidence_revision=message.evidence_revision,
        ttl_s=message.ttl.ToTimedelta().total_seconds(),
        decided_at=message.decided_at.ToDatetime(tzinfo=UTC),
    )


def _rule(rule: compat.Rule) -> CompatRule:
    return CompatRule(
        task_family=rule.task_family,
        prefix_tokens_min_exclusive=rule.prefix_tokens_min_exclusive,
        prefix_tokens_max=rule.prefix_tokens_max or None,
        action=_action(rule.action),
        confidence=_confidence(rule.confidence),
        reasons=tuple(_reason(reason) for reason in rule.reasons),
        mapper_sha256=rule.mapper.sha256,
    )


def _reason(reason: compat.Reason) -> CompatReason:
    return CompatReason(
        code=_reason_code(reason.code),
        message=reason.message,
        metric=reason.metric,
        value=reason.value if reason.HasField("value") else None,
        bound=reason.bound if reason.HasField("bound") else None,
        threshold=reason.threshold if reason.HasField("threshold") else None,
        num_items=reason.num_items,
        run_ids=tuple(reason.run_ids),
    )


def _action(number: int) -> Action:
    known: dict[int, Action] = {
        common.ACTION_KEEP: Action.KEEP,
        common.ACTION_REMAP: Action.REMAP,
    }
    return known.get(number, Action.EVICT)


def _confidence(number: int) -> Confidence:
    known: dict[int, Confidence] = {
        common.CONFIDENCE_PASS: Confidence.PASS,
        common.CONFIDENCE_MARGINAL: Confidence.MARGINAL,
        common.CONFIDENCE_INCONCLUSIVE: Confidence.INCONCLUSIVE,
        common.CONFIDENCE_FAIL: Confidence.FAIL,
    }
    return known.get(number, Confidence.NO_EVIDENCE)


def _reason_code(number: common.ReasonCode) -> str:
    try:
        return common.ReasonCode.Name(number).removeprefix("REASON_CODE_")
    except ValueError:
        # A newer service knows more reasons than this client.
        return f"CODE_{number}"
