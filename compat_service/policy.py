"""Policies: the limits that evidence is judged against."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from compat_service.errors import UnknownPolicyError

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Nats = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
FamilyName = Annotated[str, Field(min_length=1, max_length=64)]


class Policy(BaseModel):
    """Criteria for reuse. Unknown keys are rejected; an instance never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    description: str = ""
    hfr_limit: Rate
    """The upper bound of the harmful flip rate must be below this."""
    confidence_level: Rate = 0.95
    """One-sided level of that bound."""
    fcd_mean_limit_nats: Nats
    """The upper bound of the mean divergence less the floor's mean must be below this."""
    fcd_p95_limit_nats: Nats | None = None
    """The 95th percentile less the floor's must be below this. Catches heavy tails."""
    min_reference_correct: Count
    """Fewest originally correct items for which a flip rate is judged."""
    min_divergence_items: Count
    """Fewest items for which a divergence is judged: a bootstrap over few items means nothing."""
    max_reference_mismatch_ratio: Share = 0.0
    """Largest share of items whose repeated reference (C against C') may differ."""
    top_k_remainder_mass_max: Share | None = None
    """Largest unseen probability mass at which a top-k lower bound may still pass; None: never."""
    require_sample_plan: bool = True
    """Runs without a sample plan are exploratory and cannot pass."""
    fidelity_only_families: frozenset[FamilyName] = frozenset()
    """Families without answers to score: judged by divergence alone when no flips are given."""

    @property
    def revision(self) -> str:
        """Digest of the content; equal revisions judge alike."""
        content = self.model_dump(mode="json", exclude={"description"})
        content["fidelity_only_families"] = sorted(self.fidelity_only_families)
        canonical = json.dumps(content, sort_keys=True)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


_FREE_TEXT_FAMILIES = frozenset({"continuation", "text"})

STRICT = Policy(
    name="strict",
    description="Harmful flips below 1 %, divergence close to the numerical floor; every family "
    "needs scored answers.",
    hfr_limit=0.01,
    fcd_mean_limit_nats=0.01,
    fcd_p95_limit_nats=0.05,
    min_reference_correct=299,
    min_divergence_items=200,
)
STANDARD = Policy(
    name="standard",
    description="Harmful flips below 2 %.",
    hfr_limit=0.02,
    fcd_mean_limit_nats=0.02,
    fcd_p95_limit_nats=0.10,
    min_reference_correct=149,
    min_divergence_items=100,
    fidelity_only_families=_FREE_TEXT_FAMILIES,
)
RELAXED = Policy(
    name="relaxed",
    description="Harmful flips below 5 %.",
    hfr_limit=0.05,
    fcd_mean_limit_nats=0.05,
    fcd_p95_limit_nats=0.25,
    min_reference_correct=59,
    min_divergence_items=50,
    max_reference_mismatch_ratio=0.02,
    top_k_remainder_mass_max=0.01,
    fidelity_only_families=_FREE_TEXT_FAMILIES,
)
DEMO = Policy(
    name="demo",
    description="For demonstrations on a laptop ONLY. It judges a handful of items at a low "
    "confidence, so a KEEP under it proves nothing about rare harm: one request in three may be "
    "damaged and the policy would not see it. Never serve users with it.",
    hfr_limit=0.35,
    confidence_level=0.80,
    fcd_mean_limit_nats=0.03,
    fcd_p95_limit_nats=0.25,
    min_reference_correct=6,
    min_divergence_items=4,
    top_k_remainder_mass_max=0.05,
    fidelity_only_families=_FREE_TEXT_FAMILIES,
)

BUILT_IN: dict[str, Policy] = {p.name: p for p in (STRICT, STANDARD, RELAXED, DEMO)}


def resolve(name: str) -> Policy:
    """Return the policy of that name.

    Raises:
        UnknownPolicyError: no such policy.
    """
    policy = BUILT_IN.get(name)
    if policy is None:
        raise UnknownPolicyError(name, sorted(BUILT_IN))
    return policy
