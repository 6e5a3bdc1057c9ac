"""Everything that one demonstration found."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from typing import Any

from examples.demo import calibration, documents, show
from examples.demo.processes import POLICY
from examples.demo.walk import StepResult


@dataclass
class Outcome:
    """Figures of all phases, filled as they end; ``failures`` holds what was not as stated."""

    steps: list[StepResult] = field(default_factory=list)
    pairs: dict[str, calibration.MeasuredPair] = field(default_factory=dict)
    harm: calibration.HarmExample | None = None
    live: show.LiveAnswers = field(default_factory=show.LiveAnswers)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return all figures, JSON-ready."""
        harm = self.harm
        return {
            "passed": not self.failures,
            "failures": self.failures,
            "policy": POLICY,
            "prefix_tokens": documents.PREFIX_TOKENS,
            "machine": f"{platform.machine()}, {platform.platform()}",
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "steps": [show.step_json(step) for step in self.steps],
            "harm": None
            if harm is None
            else {
                "item": harm.item_id,
                "gold": harm.gold,
                "target_answer": harm.target_answer,
                "reuse_answer": harm.reuse_answer,
                "live": asdict(self.live),
            },
            "evidence": {n: calibration.evidence_json(pair) for n, pair in self.pairs.items()},
        }
