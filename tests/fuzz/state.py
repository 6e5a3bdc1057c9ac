"""A server, its requests, and what the model knows about both."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_xver.engine.census import take_census
from tests.fuzz.events import EventConsumer
from tests.fuzz.server import FuzzHarness, Setup
from tests.fuzz.tree_view import TreeView
from tests.unit.engine.tree_harness import Request


class State:
    """What steps and invariants look at."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.h = FuzzHarness(setup)
        self.truth = self.h.truth
        self.seen: dict[Request, NDArray[np.int64]] = {}
        self.waiting: list[tuple[tuple[int, ...], Any]] = []
        """Prompt and SGLang's view of each request that waits or was retracted."""
        self.lost = np.zeros(0, np.int64)
        """Slots that faults leaked."""
        self.has_failed = False
        """Whether a fault was injected; SGLang's own bookkeeping may be off since then."""
        self.are_events_exact = True
        """False once everything was blocked in an emergency, which announces nothing."""
        self.is_lingering = False
        """Whether blocked nodes may wait for the next release although nobody holds them."""
        self.fresh_epochs = 0
        self.counts: dict[str, int] = {}
        self.events = EventConsumer(setup.page_size) if setup.events != "off" else None

    @property
    def running(self) -> list[Request]:
        return self.h.running

    def request(self, number: int) -> Request:
        return self.running[number % len(self.running)]

    def has_room(self, tokens: int) -> bool:
        """Whether ``tokens`` more can surely be computed.

        After a fault SGLang may count nodes as evictable that it does not find, so room is made
        first, and what is not found is not counted.
        """
        needed = tokens + 2 * self.h.page_size
        free = self.h.allocator.available_size()
        if not self.has_failed:
            return bool(free + self.h.cache.evictable_size() >= needed)
        if free < needed:
            self.h.cache.evict(EvictParams(num_tokens=needed - free))
        return bool(self.h.allocator.available_size() >= needed)

    def count(self, what: str, number: int = 1) -> None:
        """Add to the figures that a run reports."""
        self.counts[what] = self.counts.get(what, 0) + number

    def present(self) -> list[str]:
        """Return the epochs that a plan must have a rule for."""
        return take_census(self.h.core).epochs_present

    def fresh_epoch(self) -> str:
        self.fresh_epochs += 1
        return f"fresh{self.fresh_epochs}"

    def owners(self, view: TreeView) -> NDArray[np.int64]:
        """Return how many owners each slot has, of the free list, the tree and the requests."""
        own = [np.array(r.row[self.h.owned_from(r) :], np.int64) for r in self.running]
        owned = np.concatenate([self.free_slots(), view.slots, *own])
        owners = np.bincount(owned, minlength=self.h.size + self.h.page_size)
        # Page 0 takes the writes of padded tokens and belongs to nobody.
        page = self.h.page_size
        assert not owners[:page].any(), "the padding page has an owner"
        owners[:page] = 1
        return owners

    def free_slots(self) -> NDArray[np.int64]:
        page, allocator = self.h.page_size, self.h.allocator
        if page == 1:
            return np.concatenate([allocator.free_pages.numpy(), allocator.release_pages.numpy()])
        pages = allocator.get_all_free_pages().numpy()
        return (pages[:, None] * page + np.arange(page)).ravel()
