"""What one weight update did to the prefix cache, for the reply, the log and ``/server_info``."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

_MESSAGE_PATTERN = re.compile(r"\[xver (?P<body>[^\]]*)\]")


@dataclass(frozen=True)
class UpdateReport:
    """Outcome of one update; all sizes are KV slots (tokens).

    ``action`` is KEEP when any old KV stayed visible, EVICT when none did, SAME when the bytes were
    equal, and OFF or OBSERVE when SGLang's own behaviour was left in charge. ``blocked_tokens`` are
    invisible and wait for the requests that hold them.
    """

    action: str
    reason: str
    decision_id: str = ""
    kept_tokens: int = 0
    evicted_tokens: int = 0
    blocked_tokens: int = 0
    straddling_requests: int = 0
    flushed: bool = False
    apply_ms: float = 0.0
    target_key: str = ""
    update_id: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    def to_message(self) -> str:
        """Return the suffix that is appended to the update's reply."""
        fields = (
            ("action", self.action),
            ("reason", self.reason),
            ("decision_id", self.decision_id or "-"),
            ("kept_tokens", self.kept_tokens),
            ("evicted_tokens", self.evicted_tokens),
            ("blocked_tokens", self.blocked_tokens),
            ("straddling_requests", self.straddling_requests),
        )
        return "[xver " + " ".join(f"{name}={value}" for name, value in fields) + "]"


def parse_message(message: str) -> dict[str, str]:
    """Return the fields of the ``[xver ...]`` part of an update's reply; empty without one."""
    match = _MESSAGE_PATTERN.search(message)
    if match is None:
        return {}
    return dict(part.split("=", 1) for part in match["body"].split() if "=" in part)
