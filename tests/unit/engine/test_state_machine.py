"""Random interleavings of everything that happens to the cache, against a simple model.

The model knows for each computed token whether the plans applied since still allow it. After every
step: nothing that is not allowed is visible, no request's row changed under it, tags cover what was
really computed, and no slot is leaked or owned twice.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.lineage import UNLIMITED, epochs_in
from sglang_xver.plan import EpochRule, Plan
from tests.unit.engine.tree_harness import Harness, Request, SlotContent

EPOCHS = ("initial", "B", "C")
MAX_RUNNING = 6
MAX_TOKENS = 300

limits = st.one_of(
    st.just(UNLIMITED),
    st.just(UNLIMITED),
    st.sampled_from([0, 1, 15, 16, 17, 40, 64, 100]),
    st.integers(1, 150),
)
plans = st.fixed_dictionaries({"initial": limits, "B": limits}, optional={"C": limits})
# What empties the whole tree must be rare, or nothing ever gets old.
seldom = st.integers(0, 11).map(lambda number: number == 0)
sometimes = st.integers(0, 2).map(lambda number: number == 0)
# How much of the cache a request may match; 0 recomputes everything natively.
caps = st.one_of(st.none(), st.just(0), st.integers(1, 60))
# Prompts share first words, branch and stop anywhere: a path in a small tree of segments.
prompts = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=4), st.floats(0.1, 1.0), st.booleans()
)
chosen = st.integers(0, MAX_RUNNING - 1)


@dataclass(eq=False)
class Computed(SlotContent):
    """A computed token of the model; compared by identity."""

    is_allowed: bool = field(default=True)


def tokens_of(prompt: tuple[list[int], float, bool]) -> tuple[int, ...]:
    branches, share, is_whole = prompt
    tokens: list[int] = []
    node = 0
    for branch in branches:
        node = node * 3 + branch + 1
        tokens += [node * 100 + offset for offset in range((7, 16, 20, 33)[node * 7 % 4])]
    return tuple(tokens if is_whole else tokens[: max(1, int(len(tokens) * share))])


class ModelHarness(Harness):
    """The harness, with contents that the model can disallow."""

    def __init__(self, page_size: int, size: int) -> None:
        super().__init__(page_size, size)
        self.computed: list[Computed] = []
        self.rows_seen: dict[int, list[Computed]] = {}

    def has_room(self, tokens: int) -> bool:
        free = self.allocator.available_size() + self.cache.evictable_size()
        return bool(free >= tokens + 2 * self.page_size)

    def contents(self, request: Request) -> list[Computed]:
        return [self.content[slot] for slot in request.row[: len(request.tokens)]]  # type: ignore[misc]

    def _compute(self, request: Request) -> None:
        self._fill(request, request.matched)

    def extend(self, request: Request, more: tuple[int, ...]) -> None:
        """Decode ``more`` tokens."""
        start = len(request.tokens)
        request.tokens += more
        request.req.full_untruncated_fill_ids = array("q", request.tokens)
        self._fill(request, start)

    def _fill(self, request: Request, start: int) -> None:
        end, have = len(request.tokens), len(request.row)
        if end > have:
            request.row += self._allocate(have, end, -1)
        before = [self.content[slot] for slot in request.row[:start]]
        epochs = frozenset[str]().union({self.epoch}, *(c.epochs for c in before))
        is_allowed = all(c.is_allowed for c in before)  # type: ignore[attr-defined]
        for position in range(start, end):
            path = request.tokens[: position + 1]
            content = Computed(path, epochs, self.epoch, is_allowed)
            self.content[request.row[position]] = content
            self.computed.append(content)
        row = torch.tensor(request.row, dtype=torch.int32)
        self.rows.req_to_token[request.req.kv.req_pool_idx, : len(row)] = row
        self.rows_seen[id(request)] = self.contents(request)


class CacheMachine(RuleBasedStateMachine):
    """What a scheduler does to its cache, in any order."""

    @initialize(page_size=st.sampled_from([1, 4, 16]), pages=st.sampled_from([24, 48, 150, 400]))
    def build(self, page_size: int, pages: int) -> None:
        self.h = ModelHarness(page_size, max(pages * page_size, 160) // page_size * page_size)

    def request(self, number: int) -> Request:
        return self.h.running[number % len(self.h.running)]

    # ---- requests ----

    @rule(prompt=prompts, cap=caps)
    def run(self, prompt: tuple[list[int], float, bool], cap: int | None) -> None:
        """Serve a whole request."""
        running = len(self.h.running)
        self.start(prompt, cap)
        if len(self.h.running) > running:
            self.publish(running)
            self.finish(running, True)

    @rule(prompt=prompts, cap=caps)
    def start(self, prompt: tuple[list[int], float, bool], cap: int | None) -> None:
        tokens = tokens_of(prompt)
        if len(self.h.running) >= MAX_RUNNING or not self.h.has_room(len(tokens)):
            return
        most = len(tokens) - 1
        request = self.h.start(tokens, most if cap is None else min(cap, most))
        matched = self.h.contents(request)[: request.matched]
        assert all(content.is_allowed for content in matched), "matched disallowed KV"

    @precondition(lambda self: self.h.running)
    @rule(number=chosen, count=st.integers(1, 20), branch=st.integers(0, 2))
    def decode(self, number: int, count: int, branch: int) -> None:
        request = self.request(number)
        if len(request.tokens) + count > MAX_TOKENS or not self.h.has_room(count):
            return
        self.h.extend(request, tuple(range(9000 + 100 * branch, 9000 + 100 * branch + count)))

    @precondition(lambda self: self.h.running)
    @rule(number=chosen)
    def publish(self, number: int) -> None:
        request = self.request(number)
        before = self.h.rows_seen[id(request)]
        self.h.publish(request)
        after = self.h.contents(request)
        for old, new in zip(before, after, strict=True):
            assert new is old or (
                new.path == old.path
                and new.own == old.own
                and new.epochs <= old.epochs
                and new.is_allowed
            ), "trap T1: a row was switched to KV that the request did not compute"
        self.h.rows_seen[id(request)] = after

    @precondition(lambda self: self.h.running)
    @rule(number=chosen, is_published=st.booleans())
    def finish(self, number: int, is_published: bool) -> None:
        request = self.request(number)
        self.h.finish(request, publish=is_published)
        del self.h.rows_seen[id(request)]

    @rule(prompt=prompts)
    def read(self, prompt: tuple[list[int], float, bool]) -> None:
        tokens = tokens_of(prompt)
        for position, content in enumerate(self.h.reads(tokens)):
            assert content.is_allowed, "a new request would read disallowed KV"  # type: ignore[attr-defined]
            assert content.path == tokens[: position + 1]

    @rule(count=st.integers(1, 200), now=seldom)
    def evict(self, count: int, now: bool) -> None:
        if now:
            self.h.cache.evict(EvictParams(num_tokens=count))

    # ---- updates ----

    @rule(weights=st.sampled_from(EPOCHS), rules=plans, now=sometimes)
    def update(self, weights: str, rules: dict[str, int], now: bool) -> None:
        if not now:
            return
        is_same = weights == self.h.epoch
        if is_same:
            rules = {**rules, weights: UNLIMITED}
        self._disallow(rules)
        if is_same:
            self._allow_again(weights)
        change = self.h.update(
            Plan(
                update_id="u",
                target_key=weights,
                model_path="m",
                rules={k: EpochRule(keep_max_tokens=v, reason="T") for k, v in rules.items()},
            )
        )
        assert change.kept_tokens == self._visible_tokens()
        assert change.blocked_tokens == self.h.cache.blocked_tokens()

    def _disallow(self, rules: dict[str, int]) -> None:
        for content in self.h.computed:
            for epoch in content.epochs:
                limit = rules.get(epoch, 0)
                page_limit = limit - limit % self.h.page_size
                if limit != UNLIMITED and len(content.path) > page_limit:
                    content.is_allowed = False

    def _allow_again(self, target: str) -> None:
        """Rows computed by the same weights on what stays are what would be computed now."""
        for request in self.h.running:
            row = self.h.rows_seen[id(request)]
            protected = request.req.kv.cache_protected_len
            if all(content.is_allowed for content in row[:protected]):
                for content in row[protected:]:
                    content.is_allowed = content.own == target

    @rule(now=seldom)
    def lose_the_weights(self, now: bool) -> None:
        if not now:
            return
        for content in self.h.computed:
            content.is_allowed = False
        for request in self.h.running:
            request.req.skip_radix_cache_insert = True
        self.h.cache.condemn_all()
        assert self._visible_tokens() == 0

    @precondition(lambda self: not self.h.running)
    @rule(now=seldom)
    def flush(self, now: bool) -> None:
        if not now:
            return
        self.h.cache.reset()
        self.h.allocator.clear()
        for content in self.h.computed:
            content.is_allowed = False

    # ---- what must hold after every step ----

    def _visible_tokens(self) -> int:
        core = self.h.core
        nodes = core.subtree(core.root_node)[1:]
        return sum(len(node.key) for node in nodes if node.id not in core.blocked)

    @invariant()
    def no_slot_is_lost(self) -> None:
        if hasattr(self, "h"):
            self.h.check_slots()

    @invariant()
    def rows_are_stable(self) -> None:
        if hasattr(self, "h"):
            for request in self.h.running:
                now = self.h.contents(request)
                seen = self.h.rows_seen[id(request)]
                assert all(a is b for a, b in zip(now, seen, strict=True))

    @invariant()
    def tree_tells_the_truth(self) -> None:
        if not hasattr(self, "h"):
            return
        core = self.h.core
        has_foreign = False
        for node in core.subtree(core.root_node)[1:]:
            tag = node.xver_lineage
            if node.id in core.blocked:
                assert core.is_held(node) or node.children, "a condemned free leaf lingers"
                continue
            assert node.parent.id not in core.blocked, "visible below an invisible node"
            has_foreign |= tag.mask != core.epochs.current_bit
            known = {core.epochs.key(index) for index in epochs_in(tag.mask)}
            for slot in node.component_data[ComponentType.FULL].value.tolist():
                content = self.h.content[slot]
                assert content.is_allowed, "disallowed KV is visible"
                assert content.epochs <= known, "the tag hides an epoch"
                assert content.own == core.epochs.key(tag.own)
        assert core.has_foreign or not has_foreign


CacheMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("XVER_FUZZ_EXAMPLES", "60")),
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestCache = CacheMachine.TestCase
