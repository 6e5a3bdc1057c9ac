"""What one weight update did to the prefix cache, for the reply, the log and ``/server_info``."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from sglang_xver.plan import EpochRule

_NO_WORD = re.compile(r"[^A-Za-z0-9_.:-]")
_MESSAGE_PATTERN = re.compile(r"\[xver (?P<body>[^\]]*)\]")


class TreeChange(NamedTuple):
    """What an update did to the tree; sizes in tokens (KV slots)."""

    kept_tokens: int
    evicted_tokens: int
    blocked_tokens: int


@dataclass(frozen=True)
class UpdateReport:
    """Outcome of one update; all sizes are KV slots (tokens).

    ``action`` is KEEP when any KV stayed visible, EVICT when there was some and none stayed, EMPTY
    when there was none, SAME when the bytes were equal, and OBSERVE when SGLang's own behaviour was
    left in charge. ``reason`` and ``decision_id`` belong to the epoch that explains the action,
    ``reasons`` has those of all epochs. ``blocked_tokens`` are invisible and wait for the requests
    that hold them.
    """

    action: str
    reason: str
    decision_id: str = ""
    detail: str = ""
    """What the reason is about, in words, such as the fingerprints that disagree."""
    kept_tokens: int = 0
    evicted_tokens: int = 0
    blocked_tokens: int = 0
    straddling_requests: int = 0
    flushed: bool = False
    apply_ms: float = 0.0
    target_key: str = ""
    update_id: str = ""
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    def to_message(self) -> str:
        """Return the suffix that is appended to the update's reply."""
        fields = (
            ("action", self.action),
            ("reason", _word(self.reason)),
            ("decision_id", _word(self.decision_id)),
            ("kept_tokens", self.kept_tokens),
            ("evicted_tokens", self.evicted_tokens),
            ("blocked_tokens", self.blocked_tokens),
            ("straddling_requests", self.straddling_requests),
        )
        return "[xver " + " ".join(f"{name}={value}" for name, value in fields) + "]"


def _action(change: TreeChange, same_weights: bool) -> str:
    if same_weights:
        return "SAME"
    if change.kept_tokens:
        return "KEEP"
    return "EVICT" if change.evicted_tokens or change.blocked_tokens else "EMPTY"


def explain(change: TreeChange, rules: dict[str, EpochRule], same_weights: bool) -> UpdateReport:
    """Say what happened and why, from what became of the tokens.

    ``rules`` are those of the epochs that were present, the current one first; there is at least
    one. The first that agrees with the action explains it.
    """
    action = _action(change, same_weights)
    rule = next(iter(rules.values()))
    if action in ("KEEP", "EVICT"):
        agreeing = [r for r in rules.values() if (r.keep_max_tokens != 0) == (action == "KEEP")]
        if agreeing:
            rule = agreeing[0]
        elif action == "EVICT":
            # Every rule keeps something and yet nothing stayed.
            rule = rule.model_copy(update={"reason": "LIMIT_BELOW_ONE_PAGE"})
    return UpdateReport(
        action=action,
        reason=rule.reason,
        decision_id=rule.decision_id,
        detail=rule.detail,
        kept_tokens=change.kept_tokens,
        evicted_tokens=change.evicted_tokens,
        blocked_tokens=change.blocked_tokens,
        reasons={key: r.reason for key, r in rules.items()},
    )


def _word(text: str) -> str:
    """Return ``text`` without what would end a field; a service's words are not trusted."""
    return _NO_WORD.sub("_", text)[:80] or "-"


def parse_message(message: str) -> dict[str, str]:
    """Return the fields of the ``[xver ...]`` part of an update's reply; empty without one."""
    match = _MESSAGE_PATTERN.search(message)
    if match is None:
        return {}
    return dict(part.split("=", 1) for part in match["body"].split() if "=" in part)
