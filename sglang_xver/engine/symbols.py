"""How the table of SGLang's attributes is written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Use = Literal["hook", "override", "call", "field"]

SRT = "sglang.srt"
MEM = f"{SRT}.mem_cache"


@dataclass(frozen=True)
class Symbol:
    """One attribute that the package relies on.

    ``hook`` and ``override`` need exactly ``parameters`` (both may be called with any of them);
    ``call`` needs at least them; a ``field`` has to exist, on the class or set by its methods.
    """

    path: str
    use: Use
    parameters: tuple[str, ...] = ()


def symbols(use: Use, owner: str, table: dict[str, str]) -> list[Symbol]:
    """Return one symbol for each name in ``table``, whose values are the parameters."""
    return [Symbol(f"{owner}.{name}", use, tuple(p.split())) for name, p in table.items()]


def fields(owner: str, names: str) -> list[Symbol]:
    """Return one field of ``owner`` for each of ``names``."""
    return [Symbol(f"{owner}.{name}", "field") for name in names.split()]
