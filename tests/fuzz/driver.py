"""Runs sequences of random steps: counts, reports, shrinks and replays."""

from __future__ import annotations

import hashlib
import json
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fuzz.invariants import Checker
from tests.fuzz.server import Setup
from tests.fuzz.steps import RandomSource, Step, draw_setup, draw_step
from tests.fuzz.world import World

STEPS_PER_SEQUENCE = 300
MAX_SHRINK_ATTEMPTS = 1000


@dataclass
class Violation:
    """A broken invariant: where, and the shortest list of steps that was found to break it."""

    seed: str
    message: str
    setup: Setup
    steps: list[Step]

    def describe(self) -> str:
        """Return what a person needs to see it again."""
        lines = [f"violation in sequence {self.seed}: {self.message}", f"  {self.setup}"]
        lines += [f"  {step.name} {json.dumps(step.arguments)}" for step in self.steps]
        return "\n".join([*lines, f"replay: python -m tests.fuzz --replay {self.seed}"])


@dataclass
class Outcome:
    """What a number of sequences came to."""

    operations: int = 0
    sequences: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    violation: Violation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a form for the process that asked for it."""
        violation = None if self.violation is None else self.violation.describe()
        return {**asdict(self), "violation": violation}


class Run:
    """One world and what was done in it so far."""

    def __init__(self, setup: Setup) -> None:
        self.world = World(setup)
        self.checker = Checker(self.world)
        self.done: list[Step] = []

    def do(self, step: Step) -> bool:
        """Do one step and check everything; False when it had no effect.

        Raises:
            Exception: whatever the cache raised, or an invariant that is broken.
        """
        self.done.append(step)
        if not self.world.running and step.arguments.get("number") is not None:
            return False
        has_effect = bool(getattr(self.world, f"do_{step.name}")(**step.arguments))
        if has_effect:
            self.checker.check()
        return has_effect

    def drain(self) -> None:
        """End every request and evict everything: nothing may be left."""
        while self.world.running:
            self.do(Step("finish", {"number": 0, "is_published": len(self.done) % 2 == 0}))
        self.do(Step("evict", {"count": self.world.h.size}))
        left = self.world.h.cache.evictable_size() + self.world.h.cache.protected_size()
        assert left == 0 or self.world.has_failed, f"{left} tokens can't be evicted"


def run_sequence(seed: str, outcome: Outcome) -> None:
    """Run one sequence, adding to ``outcome``; a violation is shrunk and kept there."""
    source = RandomSource(seed)
    setup = draw_setup(source)
    run = Run(setup)
    digest = hashlib.sha256(outcome.digest.encode())
    try:
        for _ in range(STEPS_PER_SEQUENCE):
            step = draw_step(run.world, source)
            if run.do(step):
                outcome.operations += 1
                outcome.by_name[step.name] = outcome.by_name.get(step.name, 0) + 1
        run.drain()
    except Exception as error:  # noqa: BLE001 - any exception out of the cache is a violation
        message = traceback.format_exc(limit=-3).strip()
        steps = shrink(setup, run.done, signature(error))
        outcome.violation = Violation(seed, message, setup, steps)
    for name, count in run.world.counts.items():
        outcome.by_name[name] = outcome.by_name.get(name, 0) + count
    digest.update(json.dumps(run.done).encode())
    digest.update(run.world.truth.is_kept.tobytes())
    outcome.digest = digest.hexdigest()
    outcome.sequences += 1


def signature(error: BaseException) -> tuple[str, str, int]:
    """Return what two runs into the same violation have in common: kind, file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, frame.filename, frame.lineno or 0


def broken_by(setup: Setup, steps: list[Step]) -> tuple[str, str, int] | None:
    """Do ``steps`` in a fresh world; return the signature of what broke, if anything did."""
    run = Run(setup)
    try:
        for step in steps:
            run.do(step)
        run.drain()
    except Exception as error:  # noqa: BLE001 - any exception out of the cache is a violation
        return signature(error)
    return None


def shrink(setup: Setup, steps: list[Step], wanted: tuple[str, str, int]) -> list[Step]:
    """Return a shorter list that breaks in the same place: halves first, single steps last."""
    attempts = MAX_SHRINK_ATTEMPTS
    size = len(steps) // 2
    while size >= 1:
        start = 0
        while start < len(steps) and attempts > 0:
            attempts -= 1
            shorter = steps[:start] + steps[start + size :]
            if broken_by(setup, shorter) == wanted:
                steps = shorter
            else:
                start += size
        size //= 2
    return steps
