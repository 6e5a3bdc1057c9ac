"""What commands share: consoles, exit statuses, names of enum values."""

from __future__ import annotations

from rich.console import Console
from xver.compat.v1 import common_pb2 as common

ALLOWED_EXIT = 0
ERROR_EXIT = 1
EVICT_EXIT = 3
UNDECIDED_EXIT = 4

_UNDECIDED = (common.CONFIDENCE_INCONCLUSIVE, common.CONFIDENCE_NO_EVIDENCE)


def console() -> Console:
    """Return the console for results. Lines are not folded where no person reads them."""
    return Console(highlight=False, soft_wrap=True)


def error_console() -> Console:
    """Return the console for errors and progress."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def exit_status(action: common.Action, confidence: common.Confidence) -> int:
    """Return 0 for reuse, 3 for evict, 4 where the evidence cannot decide."""
    if action in (common.ACTION_KEEP, common.ACTION_REMAP):
        return ALLOWED_EXIT
    return UNDECIDED_EXIT if confidence in _UNDECIDED else EVICT_EXIT


def action_name(action: common.Action) -> str:
    """Return ``KEEP``, ``REMAP`` or ``EVICT``."""
    return common.Action.Name(action).removeprefix("ACTION_")


def confidence_name(confidence: common.Confidence) -> str:
    """Return the confidence without its prefix, for example ``PASS``."""
    return common.Confidence.Name(confidence).removeprefix("CONFIDENCE_")


def reason_name(code: common.ReasonCode) -> str:
    """Return the reason code without its prefix, for example ``NO_EVIDENCE``."""
    return common.ReasonCode.Name(code).removeprefix("REASON_CODE_")
