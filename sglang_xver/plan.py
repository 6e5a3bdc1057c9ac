"""The plan of one weight update: per source epoch, how deep its KV may stay.

A plan is made once in the main process and travels to every scheduler inside the ordered control
stream. SGLang's control message carries numbers only, so the plan's JSON rides in the key. Pure
module: no engine.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sglang_xver.errors import PlanError
from sglang_xver.fidelity import NATIVE, STRICTEST
from sglang_xver.lineage import UNLIMITED, strictest

PLAN_KEY_PREFIX = "xver_plan:"
MAX_PLAN_BYTES = 256 * 1024


class EpochRule(BaseModel):
    """What happens to KV of one source epoch under the target weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keep_max_tokens: int = Field(ge=UNLIMITED)
    """Deepest prefix position that stays, in tokens; 0 evicts all, -1 keeps all."""
    families: dict[str, Annotated[int, Field(ge=UNLIMITED)]] = Field(default_factory=dict)
    """How deep each task family may reuse, in tokens; empty: all as ``keep_max_tokens``."""
    reason: str
    """Reason code behind the rule, for example ``ALL_CRITERIA_PASS``."""
    decision_id: str = ""
    """Decision of the compatibility service; empty when it was not asked."""
    detail: str = ""
    """One sentence for a person."""


class Plan(BaseModel):
    """Decision for one update. Epochs without a rule are evicted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    update_id: str
    target_key: str
    """Epoch key of the new weights; ``unknown:...`` when their content is not known."""
    model_path: str
    """Checkpoint that the update must load; another one voids the plan."""
    rules: dict[str, EpochRule] = Field(default_factory=dict)

    def keep_max_tokens(self, epoch_key: str, class_name: str | None = None) -> int:
        """Depth limit for ``epoch_key`` in tokens; 0 when the plan does not name it.

        Args:
            epoch_key: the epoch that is judged.
            class_name: class of the requests that read it (see :mod:`sglang_xver.fidelity`);
                None for what the tree keeps, which is what the most permissive family may reuse.
        """
        rule = self.rules.get(epoch_key)
        if rule is None:
            return 0
        if class_name == NATIVE:
            return rule.keep_max_tokens if epoch_key == self.target_key else 0
        if class_name is None or not rule.families:
            return rule.keep_max_tokens
        if class_name == STRICTEST:
            return strictest(rule.families.values())
        return rule.families.get(class_name, 0)

    def classes(self) -> tuple[str, ...]:
        """Classes whose limits may differ from what the tree keeps, in a fixed order."""
        families = {name for rule in self.rules.values() for name in rule.families}
        return (NATIVE, STRICTEST, *sorted(families))

    def to_wire(self) -> str:
        """Return the control-message key that carries this plan."""
        return PLAN_KEY_PREFIX + self.model_dump_json()


def plan_from_wire(key: str) -> Plan:
    """Parse a control-message key.

    Raises:
        PlanError: not a plan, too large, or a field is missing, unknown or out of range.
    """
    if not key.startswith(PLAN_KEY_PREFIX):
        raise PlanError(f"control key {key[:40]!r} is no plan: expected prefix {PLAN_KEY_PREFIX!r}")
    if len(key) > MAX_PLAN_BYTES:
        raise PlanError(f"plan of {len(key)} bytes exceeds the limit of {MAX_PLAN_BYTES} bytes")
    try:
        return Plan.model_validate(json.loads(key[len(PLAN_KEY_PREFIX) :]))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"malformed plan: {error}") from error
