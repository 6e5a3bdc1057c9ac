"""A mutant: one rule of the package, broken in one place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# Narrow suites that the catalogues name.
CACHE = "tests/unit/engine/test_cache.py"
CLASSES = "tests/unit/engine/test_request_classes.py"
DECISION = "tests/unit/core/test_decision.py"
EVENTS = "tests/unit/engine/test_events.py"
FAULTS = "tests/unit/engine/test_faults.py"
FAULTS_AROUND = "tests/unit/engine/test_faults_around.py"
FIDELITY = "tests/unit/core/test_fidelity.py"
GATE = "tests/unit/engine/test_gate.py"
RANKS = "tests/unit/engine/test_ranks.py"
STATE = "tests/unit/engine/test_update_state.py"
PATHS = "tests/unit/engine/test_update_paths.py"
TAGS = "tests/unit/engine/test_tags.py"
UNKNOWN = "tests/unit/core/test_unknown_weights.py"
UPDATES = "tests/unit/engine/test_updates.py"
WALKS = "tests/fuzz/test_short_walks.py"


class MutantError(Exception):
    """A mutant does not fit the source any more, or the source does not pass its own tests."""


class Mutant(NamedTuple):
    """One replacement of source text and the tests that must fail with it."""

    name: str
    path: str
    """Module, relative to the repository."""
    old: str
    """Text that occurs exactly once in the module."""
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Break the copy under ``root``; return the module's text as it was.

        Raises:
            MutantError: the old text is not there exactly once, so the mutant would be void.
        """
        module = root / self.path
        text = module.read_text()
        found = text.count(self.old)
        if found != 1:
            raise MutantError(
                f"mutant {self.name!r}: its text occurs {found} times in {self.path}, it must "
                "occur once. The code was changed: write the mutant anew for it."
            )
        module.write_text(text.replace(self.old, self.new))
        return text
