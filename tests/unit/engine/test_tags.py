"""Tags and blocks of single nodes, in the cases that only rare interleavings reach."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_xver.lineage import UNLIMITED, Lineage
from tests.unit.engine.tree_harness import Harness, plan

PREFIX = tuple(range(1000, 1064))


def nodes(h: Harness) -> list[Any]:
    return list(h.core.subtree(h.core.root_node)[1:])


def test_node_restored_from_fresh_kv_keeps_the_bits_of_what_was_there() -> None:
    """Its descendants were computed on the earlier content, and a host copy may hold it still."""
    h = Harness()
    h.run(PREFIX)
    h.update(plan("B", initial=UNLIMITED))
    node = nodes(h)[0]
    data = node.component_data[ComponentType.FULL]
    slots, data.value = data.value, None
    h.core._unevict_node_on_insert(node, slots)
    assert node.xver_lineage == Lineage(own=1, mask=0b11)
    assert torch.equal(data.value, slots)


def test_split_of_a_blocked_node_blocks_both_halves() -> None:
    h = Harness()
    h.run(PREFIX)
    running = h.start((*PREFIX, 1))
    h.update(plan("B"))
    node = nodes(h)[0]
    h.core._split_node(node.key, node, 40)
    assert len(nodes(h)) == 2
    assert set(h.core.blocked) == {node.id for node in nodes(h)}
    assert h.cache.blocked_tokens() == len(PREFIX)
    assert h.reads(PREFIX) == []
    h.finish(running)
    assert nodes(h) == []
    h.check_slots()


def test_split_keeps_the_tag_on_both_halves() -> None:
    h = Harness()
    h.run(PREFIX)
    h.update(plan("B", initial=UNLIMITED))
    h.run((*PREFIX[:40], 1, 2))
    tags = {len(node.key): node.xver_lineage for node in nodes(h)}
    assert tags == {40: Lineage(0, 0b01), 24: Lineage(0, 0b01), 2: Lineage(1, 0b11)}


def test_reset_forgets_blocks() -> None:
    h = Harness()
    h.run(PREFIX)
    h.start((*PREFIX, 1))
    h.update(plan("B"))
    assert h.core.blocked
    h.cache.reset()
    assert h.core.blocked == {}
    assert h.cache.blocked_tokens() == 0


def test_last_resort_hides_everything_and_knows_no_weights() -> None:
    h = Harness()
    h.run(PREFIX)
    epoch = h.epoch
    h.core.block_all()
    assert h.reads(PREFIX) == []
    assert h.epoch != epoch
    assert h.cache.blocked_tokens() == len(PREFIX)
    fresh = h.start(PREFIX)
    assert fresh.matched == 0
    h.finish(fresh, publish=False)
    assert nodes(h) == []
    h.check_slots()


def test_suspended_cache_neither_shows_nor_takes_anything() -> None:
    """Where even hiding the tree failed, the suspension alone stands before old KV."""
    h = Harness()
    h.run(PREFIX)
    h.cache.is_suspended = True
    assert h.reads(PREFIX) == []
    other = h.run(tuple(range(20)))
    assert other.req.kv.cache_protected_len == 0
    assert h.cache.declined_inserts == 1
    h.check_slots()
    h.cache.is_suspended = False
    assert len(h.reads(PREFIX)) == len(PREFIX)
    assert h.reads(tuple(range(20))) == []
