"""What one run does: its length, its seed, and the server options that the seed picks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from examples.testbed.tiny import tiny_model, tiny_other_shape, tiny_update

UPDATE_SCALE = 0.3
"""Noise of an update relative to the weights: so large that stale KV can't pass for rounding."""
FIRST = "base"


@dataclass(frozen=True)
class Scenario:
    """Settings of one run."""

    minutes: float
    seed: int
    clients: int
    page_size: int
    overlap: bool
    pool_tokens: int
    chunk_tokens: int
    self_test_s: float

    @property
    def server_arguments(self) -> tuple[str, ...]:
        return (
            *("--page-size", str(self.page_size)),
            *("--chunked-prefill-size", str(self.chunk_tokens)),
            *(() if self.overlap else ("--disable-overlap-schedule",)),
        )


def scenario(minutes: float, seed: int, *, self_test_s: float = 15.0) -> Scenario:
    """Return the settings that ``seed`` picks: seeds 0 to 5 are all combinations."""
    rng = random.Random(seed)
    return Scenario(
        minutes=minutes,
        seed=seed,
        clients=6,
        page_size=(1, 16, 64)[seed % 3],
        overlap=seed // 3 % 2 == 0,
        # A few prompts fill it, so that something is evicted or retracted all the time.
        pool_tokens=rng.choice((2048, 2560, 3072)),
        chunk_tokens=64,
        self_test_s=self_test_s,
    )


def make_checkpoints() -> dict[str, Path]:
    """Return the checkpoints that are served, by name."""
    base = tiny_model(1)
    updates = {"good": 21, "bad": 22, "other": 23}
    return {
        FIRST: base,
        **{name: tiny_update(base, seed, UPDATE_SCALE) for name, seed in updates.items()},
    }


def make_broken() -> tuple[Path, ...]:
    """Return what every update must refuse: a path to nothing, and other shapes."""
    return (Path("/nonexistent/checkpoint"), tiny_other_shape())
