"""Makes steps of an update fail, and says what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pytest
import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.plan import EpochRule
from tests.unit.engine.manager_world import PLAN, PREFIX, ManagerWorld

When = Literal["before", "after"]
Times = Literal["once", "always"]

CUT_TOKENS = 50
HELD = (*PREFIX, 1, 2)
CUT = PLAN.model_copy(
    update={"rules": {"initial": EpochRule(keep_max_tokens=CUT_TOKENS, reason="OK")}}
)


class Step(NamedTuple):
    """One function on the way of an update, and whose attribute it is."""

    owner: Callable[[ManagerWorld], Any]
    name: str


def cache_of(world: ManagerWorld) -> Any:
    return world.harness.cache


def core_of(world: ManagerWorld) -> Any:
    return world.harness.core


def epochs_of(world: ManagerWorld) -> Any:
    return world.harness.core.epochs


def controller_of(world: ManagerWorld) -> Any:
    return world.controller


def step_name(step: object) -> str:
    return step.name if isinstance(step, Step) else str(step)


@contextmanager
def fault(world: ManagerWorld, step: Step, when: When, times: Times) -> Iterator[list[str]]:
    """Make ``step`` raise; yields the list of the times that it did."""
    owner = step.owner(world)
    original = getattr(owner, step.name)
    hits: list[str] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        if hits and times == "once":
            return original(*args, **kwargs)
        if when == "after":
            original(*args, **kwargs)
        hits.append(step.name)
        raise RuntimeError(f"injected into {step.name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, step.name, broken)
        yield hits


def assert_no_slot_is_in_two_places(world: ManagerWorld) -> None:
    """Nothing is free twice, nor free and in the tree; slots may be lost."""
    allocator = world.harness.allocator
    free = allocator.alloc(allocator.available_size()).tolist()
    tree = [
        int(slot)
        for node in world.harness.core.subtree(world.harness.core.root_node)[1:]
        for slot in node.component_data[ComponentType.FULL].value
    ]
    owned = [slot for request in world.harness.running for slot in request.row[len(PREFIX) :]]
    everything = free + tree + owned
    assert len(set(everything)) == len(everything)
    allocator.free(torch.tensor(free, dtype=torch.int64))


def assert_next_update_works(world: ManagerWorld) -> None:
    """An update without a fault sets all right; the one after it keeps what it may."""
    assert world.disk(update_id=None).success
    assert not world.journal.status()["is_suspended"]
    fresh = tuple(range(3000, 3050))
    world.harness.run(fresh)
    assert world.cached_tokens(fresh) == len(fresh)
    rules = {world.harness.epoch: EpochRule(keep_max_tokens=-1, reason="OK")}
    plan = PLAN.model_copy(update={"update_id": "next", "target_key": "C", "rules": rules})
    assert world.push(plan.to_wire())
    assert "action=KEEP" in world.disk(update_id="next").message
    assert world.cached_tokens(fresh) == len(fresh)
    assert world.cached_tokens() == 0
