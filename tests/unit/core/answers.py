"""Answers of the service for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from sglang_xver.client import Action, CompatAnswer, CompatReason, CompatRule, Confidence


def rule(
    low: int,
    high: int | None,
    action: Action = Action.KEEP,
    confidence: Confidence = Confidence.PASS,
    family: str = "niah",
    code: str = "ALL_CRITERIA_PASS",
) -> CompatRule:
    return CompatRule(family, low, high, action, confidence, (CompatReason(code, "why"),))


def answer(*rules: CompatRule) -> CompatAnswer:
    return CompatAnswer(
        decision_id="dec_1",
        action=Action.KEEP,
        confidence=Confidence.PASS,
        rules=rules,
        reasons=(),
        policy="standard",
        policy_revision="r",
        evidence_revision=1,
        ttl_s=60.0,
        decided_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
