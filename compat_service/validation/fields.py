"""Checks of single fields, collected so that one answer names all violations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from compat_service.errors import FieldViolation, InvalidRequestError

MAX_NAME_CHARS = 128
MAX_ID_CHARS = 200
MAX_DIGEST_CHARS = 200
MAX_NOTE_CHARS = 4096
MAX_VIOLATIONS = 100
MAX_COUNT = 2**31 - 1
_SHOWN_CHARS = 60
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_FINGERPRINT = re.compile(r"[a-z][a-z0-9._+-]*:[^\s]+")
_FAMILY = re.compile(r"[a-z0-9][a-z0-9._-]*")


class Violations:
    """Collects violations; nothing is raised before ``raise_if_any``."""

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []

    def add(self, field: str, reason: str, description: str) -> None:
        """Note one violation. Beyond a limit further ones are dropped: the answer stays small."""
        if len(self._found) < MAX_VIOLATIONS:
            self._found.append(FieldViolation(field, reason, description))

    def raise_if_any(self) -> None:
        """Raise one error for all violations.

        Raises:
            InvalidRequestError: at least one was noted.
        """
        if self._found:
            raise InvalidRequestError(self._found)

    def require(self, field: str, value: str, remedy: str) -> bool:
        """Note an empty string; returns True when it is filled."""
        if value:
            return True
        self.add(field, "REQUIRED", f"is empty; {remedy}")
        return False

    def text(self, field: str, value: str, max_chars: int, *, multiline: bool = False) -> bool:
        """Check the length and the characters of a string."""
        if len(value) > max_chars:
            self.add(
                field,
                "TOO_LONG",
                f"has {len(value)} characters, at most {max_chars} are allowed; shorten it",
            )
            return False
        checked = value.replace("\n", "").replace("\t", "") if multiline else value
        if _CONTROL_CHARACTERS.search(checked):
            self.add(
                field, "BAD_CHARACTER", f"{shown(value)} holds control characters; remove them"
            )
            return False
        return True

    def fingerprint(self, field: str, value: str) -> None:
        """Check the form ``<scheme>:<digest>`` of a filled fingerprint."""
        if self.text(field, value, MAX_DIGEST_CHARS) and not _FINGERPRINT.fullmatch(value):
            self.add(
                field,
                "BAD_FORMAT",
                f"{shown(value)} is not <scheme>:<digest>, for example sha256:9f86d0...; "
                "give the content fingerprint, not a label",
            )

    def family(self, field: str, value: str) -> None:
        """Check the name of a task family."""
        if not self.require(field, value, "name the task family, for example niah"):
            return
        if self.text(field, value, 64) and not _FAMILY.fullmatch(value):
            self.add(
                field,
                "BAD_FORMAT",
                f"{shown(value)} must be lower-case letters, digits, '.', '_' or '-'",
            )

    def list_size(self, field: str, values: Sequence[object], max_items: int) -> bool:
        """Check the length of a list; returns True when its items are worth checking."""
        if len(values) > max_items:
            self.add(
                field,
                "TOO_MANY",
                f"has {len(values)} items, at most {max_items} are allowed; split the request",
            )
            return False
        return True

    def count(self, field: str, value: int, low: int, high: int, rule: str) -> bool:
        """Check an integer against inclusive limits; ``rule`` says where they come from."""
        if low <= value <= high:
            return True
        self.add(field, "OUT_OF_RANGE", f"{value} is outside {low}..{high}; {rule}")
        return False

    def share(self, field: str, value: float) -> bool:
        """Check a rate: finite and within 0..1."""
        if not self.finite(field, value):
            return False
        if 0.0 <= value <= 1.0:
            return True
        self.add(
            field, "OUT_OF_RANGE", f"{value:g} is outside 0..1; give a share, not a percentage"
        )
        return False

    def open_share(self, field: str, value: float) -> None:
        """Check a level or limit: within (0, 1), both ends excluded."""
        if self.share(field, value) and value in (0.0, 1.0):
            self.add(field, "OUT_OF_RANGE", f"{value:g} must lie between 0 and 1, both excluded")

    def non_negative(self, field: str, value: float, unit: str) -> bool:
        """Check a finite figure of 0 or more."""
        if not self.finite(field, value):
            return False
        if value >= 0.0:
            return True
        self.add(field, "OUT_OF_RANGE", f"{value:g} {unit} is negative; it must be 0 or more")
        return False

    def finite(self, field: str, value: float) -> bool:
        """Check that a figure is a number."""
        if math.isfinite(value):
            return True
        self.add(
            field,
            "NOT_FINITE",
            f"{value} is not a finite number; leave the field unset if it was not measured",
        )
        return False

    def ordered(self, field: str, value: float, upper_field: str, upper: float) -> None:
        """Check ``value <= upper`` for two figures of one message."""
        if math.isfinite(value) and math.isfinite(upper) and value > upper:
            self.add(
                field,
                "BAD_ORDER",
                f"{value:g} is greater than {upper_field} {upper:g}; check how both were computed",
            )


def shown(value: str) -> str:
    """Return a value that came from outside, quoted and cut for a message."""
    cut = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
    return repr(cut)
