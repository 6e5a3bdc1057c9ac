"""Result of one check of ``sglang-xver doctor``, and how a check is run without ever raising."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from sglang_xver.errors import XverError

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found; ``remedy`` says what to do about it and is empty where nothing is."""

    check: str
    status: Status
    detail: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return a JSON-ready mapping."""
        return asdict(self)


def run_check(check: str, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what ``judge`` finds; an error becomes a failed finding that names it.

    Errors of this project carry their remedy in the message.
    """
    try:
        return list(judge())
    except XverError as error:
        return [Finding(check, "fail", str(error))]
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        remedy = "The check itself broke: report it with this line."
        return [Finding(check, "fail", f"{type(error).__name__}: {error}", remedy)]
