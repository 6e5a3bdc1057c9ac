"""Which operations there are, how often each comes, and how its arguments are drawn.

The arguments of a step are plain JSON values, so that a failing run can be printed and replayed.
The same draws serve the plain random driver and hypothesis, which shrinks towards 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from sglang_xver.lineage import UNLIMITED
from tests.fuzz.faults import POINTS
from tests.fuzz.server import HINTS, MAX_RUNNING, Setup
from tests.fuzz.truth import FAMILIES
from tests.fuzz.world import World

T = TypeVar("T")


class Source(Protocol):
    """Where choices come from."""

    def below(self, count: int) -> int:
        """Return a number from 0 to ``count`` - 1; 0 is the simplest."""
        ...


class RandomSource:
    """Choices of a seeded generator."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)


class Step(NamedTuple):
    """One operation: the ``World`` method ``do_<name>`` and its arguments."""

    name: str
    arguments: dict[str, Any]


Draw = Callable[[World, Source], dict[str, Any]]


class Kind(NamedTuple):
    """A kind of step. ``weight`` is its share of all draws."""

    name: str
    weight: int
    draw: Draw
    needs_running: bool = False


POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
CLIENT_KEYS = (*[None] * 12, "lora-1", "lora-1", "xver:qa|", "xver:native|lora-1")
"""Namespaces of clients; the last two imitate the cache's own."""


def one_of(source: Source, options: Sequence[T]) -> T:
    return options[source.below(len(options))]


def draw_setup(source: Source) -> Setup:
    """Return the options of one server."""
    page_size = one_of(source, (1, 4, 16, 64))
    tokens = one_of(source, (320, 160, 700, 320, 1600))
    return Setup(
        page_size=page_size,
        pages=max(tokens // page_size, 10),
        policy=one_of(source, POLICIES),
        has_families=source.below(4) > 0,
        events=one_of(source, ("off", "plain", "dynamo")),
    )


def draw_step(world: World, source: Source) -> Step:
    """Return a step that is possible now."""
    kinds = [kind for kind in KINDS if world.running or not kind.needs_running]
    left = source.below(sum(kind.weight for kind in kinds))
    for kind in kinds:
        left -= kind.weight
        if left < 0:
            return Step(kind.name, kind.draw(world, source))
    raise AssertionError("weights don't add up")


def _prompt(source: Source) -> list[Any]:
    branches = [source.below(2) for _ in range(1 + source.below(4))]
    return [branches, 1000 if source.below(2) else 1 + source.below(1000)]


def _client(world: World, source: Source) -> list[Any]:
    hint = "none"
    if world.setup.has_families and source.below(2):
        hint = one_of(source, tuple(HINTS))
    return [hint, one_of(source, CLIENT_KEYS), source.below(3)]


def _number(source: Source) -> int:
    return source.below(MAX_RUNNING)


def _chunk(source: Source, page_size: int) -> int | None:
    """SGLang cuts prompts at page boundaries."""
    return None if source.below(3) else page_size * (1 + source.below(2 + 32 // page_size))


def _draw_start(world: World, source: Source) -> dict[str, Any]:
    return {
        "prompt": _prompt(source),
        "client": _client(world, source),
        "cap": one_of(source, (None, None, 0, 1 + source.below(60))),
        "chunk": _chunk(source, world.setup.page_size),
        "twins": 1 + max(0, source.below(6) - 3),
    }


def _draw_run(world: World, source: Source) -> dict[str, Any]:
    return {"prompt": _prompt(source), "client": _client(world, source)}


def _draw_look(world: World, source: Source) -> dict[str, Any]:
    return {**_draw_run(world, source), "waits": source.below(3) == 0}


def _draw_prefill(world: World, source: Source) -> dict[str, Any]:
    page = world.setup.page_size
    return {"number": _number(source), "chunk": page * (1 + source.below(1 + 32 // page))}


def _draw_decode(world: World, source: Source) -> dict[str, Any]:
    return {"number": _number(source), "count": 1 + source.below(20), "branch": source.below(3)}


def _draw_number(world: World, source: Source) -> dict[str, Any]:
    return {"number": _number(source)}


def _draw_finish(world: World, source: Source) -> dict[str, Any]:
    return {"number": _number(source), "is_published": source.below(4) > 0}


def _draw_resume(world: World, source: Source) -> dict[str, Any]:
    return {"number": _number(source), "chunk": _chunk(source, world.setup.page_size)}


def _draw_evict(world: World, source: Source) -> dict[str, Any]:
    return {"count": 1 + source.below(200)}


def _draw_nothing(world: World, source: Source) -> dict[str, Any]:
    return {}


def _limit(world: World, source: Source, strictness: int) -> int:
    """Return a depth limit; of ``strictness`` + 1 one is none at all."""
    page = world.setup.page_size
    if source.below(strictness + 1) == 0:
        return UNLIMITED
    near = (0, 1, page - 1, page, page + 1, 2 * page, 40, 64, 100)
    return one_of(source, near) if source.below(2) else 1 + source.below(150)


def _rule(world: World, source: Source, strictness: int) -> list[Any]:
    """Return the most permissive limit and those of the families, as the wire has them."""
    if not world.setup.has_families or source.below(3) == 0:
        return [_limit(world, source, strictness), {}]
    limits = {family: _limit(world, source, strictness) for family in FAMILIES}
    keep = UNLIMITED if UNLIMITED in limits.values() else max(limits.values())
    return [keep, limits]


def _target(world: World, source: Source) -> str:
    """Return the next weights: new, the same bytes, an earlier version, or unknown ones."""
    earlier = ("initial", *world.present())
    kind = source.below(8)
    if kind < 4:
        return world.fresh_epoch()
    if kind == 4:
        return world.h.epoch
    if kind < 7:
        return one_of(source, earlier)
    return f"unknown:{world.fresh_epoch()}"


def _draw_update(world: World, source: Source) -> dict[str, Any]:
    target = _target(world, source)
    strictness = source.below(3)
    rules = {key: _rule(world, source, strictness) for key in world.present() if source.below(20)}
    # A plan never limits what the weights that come would compute themselves.
    if target in rules or target == world.h.epoch:
        rules[target] = [UNLIMITED, {}]
    return {"target": target, "rules": rules}


def _draw_update_often(world: World, source: Source) -> dict[str, Any]:
    return {"count": 2 + source.below(75)}


def _draw_write_weights(world: World, source: Source) -> dict[str, Any]:
    # Sessions open seldom and close soon: while one is open nothing is cached.
    is_open = world.h.cache.is_suspended
    return {"ends": is_open or source.below(32) > 0}


def _draw_fail(world: World, source: Source) -> dict[str, Any]:
    calls = 1 + source.below(1 + source.below(12))
    fault = [source.below(len(POINTS)), calls, source.below(2) == 1, source.below(2) == 1]
    return {**_draw_update(world, source), "fault": fault}


KINDS = (
    Kind("run", 120, _draw_run),
    Kind("start", 200, _draw_start),
    Kind("look", 90, _draw_look),
    Kind("prefill", 150, _draw_prefill, True),
    Kind("decode", 120, _draw_decode, True),
    Kind("publish", 90, _draw_number, True),
    Kind("finish", 160, _draw_finish, True),
    Kind("retract", 25, _draw_number, True),
    Kind("resume", 40, _draw_resume),
    Kind("evict", 8, _draw_evict),
    Kind("update", 40, _draw_update),
    Kind("update_often", 2, _draw_update_often),
    Kind("condemn", 3, _draw_nothing),
    Kind("write_weights", 40, _draw_write_weights),
    Kind("block_all", 1, _draw_nothing),
    Kind("fail", 3, _draw_fail),
    Kind("flush", 3, _draw_nothing),
)
