"""Exceptions at chosen places inside the application of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.unit.engine.tree_harness import Harness

# Owner and method, in the order in which an update reaches them.
POINTS = (
    ("core", "subtree"),
    ("core", "_split_node"),
    ("core", "is_held"),
    ("core", "_remove_leaf_from_parent"),
    ("core", "_update_evictable_leaf_sets"),
    ("core", "_release_all_component_layers"),
    ("core", "forget_dead_epochs"),
    ("cache", "_condemn"),
    ("cache", "_purge"),
    ("cache", "_remove_leaf"),
    ("cache", "_apply_eviction_result"),
)


class Fault(NamedTuple):
    """Where an exception is raised."""

    point: int
    """Index into :data:`POINTS`."""
    call: int
    """Which call raises, from 1 on."""
    is_late: bool
    """Whether the method does its work before it raises."""
    is_lasting: bool
    """Whether every later call raises too."""


class Injection:
    """One fault while it is armed."""

    def __init__(self, fault: Fault, original: Any) -> None:
        self.fault = fault
        self.has_fired = False
        self._original = original
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        is_due = self._calls == self.fault.call or (
            self.fault.is_lasting and self._calls > self.fault.call
        )
        if not is_due:
            return self._original(*args, **kwargs)
        self.has_fired = True
        if self.fault.is_late:
            self._original(*args, **kwargs)
        raise RuntimeError("injected")


@contextmanager
def injected(harness: Harness, fault: Fault) -> Iterator[Injection]:
    """Arm ``fault`` for the time of the block."""
    owner_name, method = POINTS[fault.point]
    owner = harness.core if owner_name == "core" else harness.cache
    injection = Injection(fault, getattr(owner, method))
    setattr(owner, method, injection)
    try:
        yield injection
    finally:
        delattr(owner, method)
