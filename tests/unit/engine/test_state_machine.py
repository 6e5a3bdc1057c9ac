"""Random interleavings of everything that happens to the cache, against a simple model.

The steps, the model and the invariants are those of :mod:`tests.fuzz`. After every step: nothing
that is not allowed is visible to anybody, no request's row changed under it, tags cover what was
really computed, KV events name exact blocks only, and no slot is leaked or owned twice.
"""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.fuzz import pool
from tests.fuzz.driver import Run
from tests.fuzz.steps import KINDS, draw_setup, draw_step

OPERATIONS = int(os.environ.get(pool.OPERATIONS_VARIABLE) or pool.DEFAULT_OPERATIONS)


class HypothesisSource:
    """Choices of hypothesis, which shrinks them towards 0."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, count: int) -> int:
        return self._data.draw(st.integers(0, count - 1))


class CacheMachine(RuleBasedStateMachine):
    """What a scheduler does to its cache, in any order; short runs that shrink well."""

    run: Run | None = None

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.run = Run(draw_setup(HypothesisSource(data)))

    @precondition(lambda self: self.run is not None)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        assert self.run is not None
        self.run.do(draw_step(self.run.world, HypothesisSource(data)))

    def teardown(self) -> None:
        if self.run is not None:
            self.run.drain()


CacheMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("XVER_FUZZ_EXAMPLES", "40")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestCache = CacheMachine.TestCase


class TestSeedOfTheDay:
    @pytest.mark.timeout(1800)
    def test_no_violation(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``XVER_FUZZ_SEED`` repeats a day, ``XVER_FUZZ_OPERATIONS`` makes it shorter."""
        seed, started = pool.seed_of_the_day(), time.monotonic()
        total = pool.run(seed, operations=OPERATIONS)
        with capsys.disabled():
            print(f"\n[fuzz] seed {seed}: {total.to_text(time.monotonic() - started)}")
        assert not total.violations, "\n".join(total.violations)
        assert total.operations >= OPERATIONS
        rare = {kind.name for kind in KINDS} | {"matched", "declined", "kept", "fault"}
        missing = rare - set(total.by_name)
        assert not missing or OPERATIONS < 20_000, f"never happened: {missing}"
