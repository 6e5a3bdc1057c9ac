"""What is asked: documents with several questions each, and the task that scores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sglang_xver.calibrate.errors import CalibrationError


@dataclass(frozen=True)
class Task:
    """One kind of question."""

    name: str
    """Name and version, for example ``niah_single@1``."""
    family: str
    """Task family that a verdict is given for, for example ``niah``."""
    max_new_tokens: int
    forced_positions: int
    """Positions of W's own greedy answer at which distributions are compared."""
    is_correct: Callable[[str, str], bool] | None
    """Scores (answer, gold); None judges fidelity alone."""
    is_synthetic: bool = True
    """True when items are generated rather than taken from a data set."""

    def __post_init__(self) -> None:
        if not 1 <= self.forced_positions <= self.max_new_tokens:
            raise CalibrationError(
                f"task {self.name!r}: forced_positions={self.forced_positions} is outside "
                f"1..max_new_tokens={self.max_new_tokens}; lower it or generate more tokens"
            )


@dataclass(frozen=True)
class Item:
    """One question on a document; the prompt is the document's prefix and then ``question_ids``."""

    item_id: str
    task: Task
    question_ids: tuple[int, ...]
    gold: str = ""
    question: str = ""
    """For a person; the measurement uses the ids."""
    is_scored_for_divergence: bool = True
    """Whole-vocabulary distributions are heavy, so a plan may take them for part of the items."""


@dataclass(frozen=True)
class Document:
    """A shared prefix; every arm prefills it once."""

    document_id: str
    prefix_ids: tuple[int, ...]
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        if not self.prefix_ids or not self.items:
            raise CalibrationError(
                f"document {self.document_id!r} needs a prefix and at least one item"
            )
