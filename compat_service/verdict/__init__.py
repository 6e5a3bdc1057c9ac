"""Pure functions from recorded evidence and a policy to rules with reasons."""

from __future__ import annotations

from compat_service.verdict.compat import PairQuestion, Verdict, judge_pair
from compat_service.verdict.evidence import RunEvidence

__all__ = ["PairQuestion", "RunEvidence", "Verdict", "judge_pair"]
