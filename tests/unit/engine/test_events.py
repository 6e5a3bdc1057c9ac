"""KV events: what is announced is exact, and every announcement is withdrawn once."""

from __future__ import annotations

import pytest
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from sglang_xver.lineage import UNLIMITED
from tests.unit.engine.tree_harness import Harness, plan

PREFIX = tuple(range(1000, 1064))
SUFFIX = tuple(range(32))


class Consumer:
    """Believes what the events say, as a router does."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.known: set[int] = set()

    def tokens(self) -> int:
        """Take the new events and return how many tokens are believed to be there."""
        for event in self.h.core.kv_events.take():
            if isinstance(event, AllBlocksCleared):
                self.known.clear()
                continue
            hashes = set(event.block_hashes)
            if isinstance(event, BlockStored):
                assert not hashes & self.known, "announced twice"
                self.known |= hashes
            else:
                assert isinstance(event, BlockRemoved)
                assert hashes <= self.known, "withdrew what was not announced"
                self.known -= hashes
        return len(self.known) * self.h.page_size


@pytest.fixture(params=[1, 16])
def h(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param, enable_kv_cache_events=True)


@pytest.fixture
def consumer(h: Harness) -> Consumer:
    return Consumer(h)


def test_kept_old_blocks_are_withdrawn(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    assert consumer.tokens() == 64
    h.update(plan("B", initial=UNLIMITED))
    assert len(h.reads(PREFIX)) == 64
    assert consumer.tokens() == 0


def test_hybrid_blocks_are_not_announced(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    h.update(plan("B", initial=UNLIMITED))
    h.run(PREFIX + SUFFIX)
    h.run(SUFFIX)
    assert consumer.tokens() == 32


def test_same_weights_change_nothing(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    h.update(plan("initial", initial=UNLIMITED))
    assert consumer.tokens() == 64


def test_rollback_announces_again_what_is_exact_again(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    h.update(plan("B", initial=UNLIMITED))
    h.run(PREFIX + SUFFIX)
    assert consumer.tokens() == 0
    h.update(plan("initial", initial=UNLIMITED, B=UNLIMITED))
    assert len(h.reads(PREFIX + SUFFIX)) == 96
    assert consumer.tokens() == 64


def test_evicted_and_blocked_blocks_are_withdrawn_once(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    held = h.start(PREFIX + SUFFIX)
    h.run(SUFFIX)
    assert consumer.tokens() == 96
    h.update(plan("B"))
    assert h.cache.blocked_tokens() == 64
    assert consumer.tokens() == 0
    h.finish(held)
    assert consumer.tokens() == 0
    h.check_slots()


def test_depth_cut_and_split_keep_account(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    h.update(plan("B", initial=32))
    assert consumer.tokens() == 0
    h.run(PREFIX[:16] + SUFFIX)
    h.update(plan("initial", initial=UNLIMITED))
    assert consumer.tokens() == 32


def test_healed_branch_is_announced(h: Harness, consumer: Consumer) -> None:
    h.run(PREFIX)
    h.update(plan("B", initial=UNLIMITED))
    h.run(PREFIX, max_match=0)
    assert consumer.tokens() == 64
