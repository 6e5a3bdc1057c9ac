"""FullOnlyTreeCore does what SGLang's Python core does, operation by operation."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    get_tree_core_factory,
    register_tree_core_backend,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_xver.engine.full_only import FullOnlyTreeCore
from sglang_xver.engine.full_only_node import BytesKey, FullOnlyNode
from sglang_xver.errors import UnsupportedError

BACKEND = "full-only-under-test"
POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
OPERATIONS = 300


class Frees:
    """Stands in for the allocator and notes what is given back, call by call."""

    device = "cpu"
    page_size = 1

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def free_segment(self, indices: torch.Tensor, *, start_pos: int) -> None:
        self.calls.append(indices.tolist())


class Tree:
    """A cache over one core, with results that can be compared between cores."""

    def __init__(self, backend: str, page_size: int, policy: str, with_events: bool) -> None:
        self.frees = Frees()
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.frees,
                page_size=page_size,
                eviction_policy=policy,
                eviction_policy_config={"threshold": 4 * page_size} if policy == "tlru" else None,
                enable_kv_cache_events=with_events,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=backend,
            )
        )
        self.locks: list[Any] = []

    @property
    def core(self) -> Any:
        return self.cache.tree_core

    def place(self, node_id: int | None) -> Any:
        """Name a node by its path, because ids differ between two trees."""
        if node_id is None:
            return None
        tokens: list[int] = []
        node = self.core.node_by_id(node_id)
        namespace = (node.key.extra_key, node.key.cache_salt)
        while node is not self.core.root_node:
            tokens[:0] = node.key.token_ids
            node = node.parent
        return (*namespace, tuple(tokens))

    def match(self, key: RadixKey) -> Any:
        result = self.cache.match_prefix(MatchPrefixParams(key=key))
        nodes = ("last_device_node", "last_host_node", "best_match_node", "last_visited_node_id")
        found = result._asdict() | {name: self.place(getattr(result, name)) for name in nodes}
        slots = self.cache.path_device_indices(result.last_device_node).tolist()
        return result.last_device_node, found, slots

    def insert(self, **params: Any) -> Any:
        result = self.cache.insert(InsertParams(**params))
        return vars(result) | {"last_device_node": self.place(result.last_device_node)}

    def lock(self, node_id: int, skipped: tuple[ComponentType, ...]) -> Any:
        result = self.cache.inc_lock_ref(node_id, skipped)
        self.locks.append((node_id, result.to_dec_params()))
        return vars(result) | {"node_id": self.place(result.node_id)}

    def unlock(self, position: int) -> None:
        self.cache.dec_lock_ref(*self.locks.pop(position))

    def drop_all(self) -> None:
        self.locks.clear()
        self.cache.reset()

    def nodes(self) -> Iterator[Any]:
        """Yield every node below the root, parents first, children in their order."""
        stack = list(self.core.root_node.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def order(self, attribute: str) -> list[Any]:
        nodes = [self.core.root_node, *self.nodes()]
        return [self.place(n.id) for n in sorted(nodes, key=lambda n: getattr(n, attribute))]

    def state(self) -> dict[str, Any]:
        """Return all that can be observed of the tree."""
        leaves = self.core.evictable_device_leaves
        return {
            "nodes": [
                (
                    self.place(node.id),
                    len(node.key),
                    node.key.is_bigram,
                    node.component_data[0].value.tolist(),
                    node.component_data[0].lock_ref,
                    node.hit_count,
                    node.priority,
                    node.hash_value,
                    node.event_hash_value,
                    node.rotation_base,
                    node._tlru_cached_prefix_len,
                    node._tlru_history_len,
                    node in leaves,
                )
                for node in self.nodes()
            ],
            "root": (self.core.root_node.priority, self.core.root_node.component_data[0].lock_ref),
            "recency": self.order("last_access_time"),
            "age": self.order("creation_time"),
            "sizes": (self.cache.evictable_size(), self.cache.protected_size()),
            "num_leaves": len(leaves),
            "num_host_leaves": len(self.core.evictable_host_leaves),
            "ids": sorted(self.core._node_arena)
            == sorted([self.core.root_node.id, *(node.id for node in self.nodes())]),
            "frees": self.frees.calls,
        }


class Twins:
    """Drives SGLang's core and ours with the same random operations."""

    def __init__(self, page_size: int, policy: str, seed: int, with_events: bool = False) -> None:
        if get_tree_core_factory(BACKEND) is None:
            register_tree_core_backend(BACKEND, FullOnlyTreeCore)
        self.random = random.Random(seed)
        self.page_size = page_size
        self.stock = Tree("python", page_size, policy, with_events)
        self.ours = Tree(BACKEND, page_size, policy, with_events)
        self.next_slot = 1
        assert type(self.ours.core) is FullOnlyTreeCore

    def both(self, name: str, *args: Any, **kwargs: Any) -> Any:
        stock, ours = (getattr(t, name)(*args, **kwargs) for t in (self.stock, self.ours))
        assert ours == stock
        return ours

    def key_parts(self) -> dict[str, Any]:
        """Draw tokens that often share pages, parts of pages and namespaces with earlier ones."""
        unit = self.page_size
        tokens: list[int] = []
        for _ in range(self.random.randint(0, 6)):
            tokens += [self.random.randrange(2)] * unit
            if self.random.random() < 0.2:
                tokens[-self.random.randint(1, unit)] = self.random.randrange(2, 5)
        tokens += [7] * self.random.randrange(unit)
        return {
            "token_ids": array("q", tokens),
            "extra_key": self.random.choice([None, None, None, "a"]),
            "cache_salt": self.random.choice([None, None, None, "s"]),
        }

    def key(self, parts: dict[str, Any]) -> RadixKey:
        return RadixKey(**(parts | {"token_ids": array("q", parts["token_ids"])}))

    def match(self, parts: dict[str, Any], limit: int | None) -> tuple[int, int, list[int]]:
        stock, ours = (
            tree.match(self.key(parts | {"limit": limit})) for tree in (self.stock, self.ours)
        )
        assert ours[1:] == stock[1:]
        return stock[0], ours[0], ours[2]

    def request(self) -> None:
        """Match, lock, insert, and keep the lock for a while."""
        parts = self.key_parts()
        size = len(parts["token_ids"])
        limit = self.random.choice([None, size, max(0, size - 1), self.random.randint(0, size)])
        stock_node, our_node, slots = self.match(parts, limit)
        skipped = self.random.choice([(), (), (ComponentType.MAMBA,)])
        assert self.ours.lock(our_node, skipped) == self.stock.lock(stock_node, skipped)
        fresh = list(range(self.next_slot, self.next_slot + size - len(slots)))
        self.next_slot += len(fresh)
        value = torch.tensor(slots + fresh, dtype=torch.int64)
        has_value = self.random.random() < 0.9
        self.insert_both(parts, value if has_value else None, len(slots))

    def insert_both(self, parts: dict[str, Any], value: torch.Tensor | None, matched: int) -> None:
        shared = {
            "prev_prefix_len": self.random.choice([matched, matched, 0]),
            "inserted_len": self.random.choice([0, 0, matched, len(parts["token_ids"])]),
            "priority": self.random.choice([0, 0, 1, 3, None]),
            "session_id": self.random.choice([None, "session"]),
            "track_adopted_ranges": self.random.random() < 0.1,
        }
        stock, ours = (
            tree.insert(
                key=self.key(parts), value=None if value is None else value.clone(), **shared
            )
            for tree in (self.stock, self.ours)
        )
        assert ours == stock

    def step(self) -> None:
        """One random operation on both trees."""
        choice = self.random.random()
        if choice < 0.45:
            self.request()
        elif choice < 0.65:
            self.match(self.key_parts(), None)
        elif choice < 0.80 and self.ours.locks:
            self.both("unlock", self.random.randrange(len(self.ours.locks)))
        elif choice < 0.90:
            wanted = EvictParams(num_tokens=self.random.randint(1, 8 * self.page_size))
            assert self.ours.cache.evict(wanted) == self.stock.cache.evict(wanted)
        elif choice < 0.99:
            parts = self.key_parts()
            stock, ours = (
                tree.core.match_full_device_prefix(self.key(parts))
                for tree in (self.stock, self.ours)
            )
            assert (ours[0], ours[2]) == (stock[0], stock[2])
            assert self.ours.place(ours[1]) == self.stock.place(stock[1])
        else:
            self.both("drop_all")

    def check(self) -> None:
        stock, ours = self.stock.state(), self.ours.state()
        for name, value in stock.items():
            assert ours[name] == value, name
        assert stock["ids"]
        self.ours.cache.sanity_check()


class TestSameAsSGLang:
    @pytest.mark.parametrize("page_size", [1, 16, 64])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_random_operations(self, policy: str, page_size: int) -> None:
        twins = Twins(page_size, policy, seed=page_size * 100 + POLICIES.index(policy))
        for number in range(OPERATIONS):
            twins.step()
            if number % 5 == 0:
                twins.check()
        twins.check()
        assert twins.next_slot > OPERATIONS // 2, "the operations put next to nothing into the tree"
        assert twins.ours.frees.calls

    @pytest.mark.parametrize("page_size", [1, 16])
    def test_kv_events(self, page_size: int) -> None:
        twins = Twins(page_size, "lru", seed=page_size, with_events=True)
        seen = 0
        for _ in range(OPERATIONS):
            twins.step()
            stock, ours = (tree.core.kv_events.take() for tree in (twins.stock, twins.ours))
            assert ours == stock
            seen += len(ours)
        twins.check()
        assert seen > OPERATIONS // 4


class TestEviction:
    def test_a_deleted_leaf_is_counted_as_sglang_counts_it(self) -> None:
        twins = Twins(1, "lru", seed=0)
        results = []
        for tree in (twins.stock, twins.ours):
            tree.insert(key=RadixKey(array("q", range(10))), value=torch.arange(10))
            (node,) = tree.nodes()
            result = tree.core.evict_device_leaf(node.id, False)
            (slots,) = result.device_frees[ComponentType.FULL]
            results.append((result.tracker, result.unbacked_tokens, slots.tolist()))
        assert results[1] == results[0]
        assert results[1][1] == 10


class TestLockReceipts:
    def test_a_receipt_releases_no_other_node(self) -> None:
        tree = Twins(1, "lru", seed=0).ours
        tree.insert(key=RadixKey(array("q", [1, 2])), value=torch.arange(2))
        tree.insert(key=RadixKey(array("q", [3, 4])), value=torch.arange(2))
        first, second = (node.id for node in tree.nodes())
        receipt = tree.cache.inc_lock_ref(first).to_dec_params()
        tree.cache.inc_lock_ref(second)
        with pytest.raises(AssertionError, match="receipt anchored"):
            tree.cache.dec_lock_ref(second, receipt)
        tree.cache.dec_lock_ref(first, receipt)
        with pytest.raises(AssertionError, match="is not locked"):
            tree.cache.dec_lock_ref(first, receipt)

    def test_what_a_lock_skipped_is_not_released(self) -> None:
        twins = Twins(1, "lru", seed=0)
        for tree in (twins.stock, twins.ours):
            tree.insert(key=RadixKey(array("q", [1, 2])), value=torch.arange(2))
            (node,) = tree.nodes()
            receipt = tree.cache.inc_lock_ref(node.id, (ComponentType.FULL,)).to_dec_params()
            assert tree.cache.protected_size() == 0
            tree.cache.dec_lock_ref(node.id, receipt)
            assert (tree.cache.evictable_size(), tree.cache.protected_size()) == (2, 0)
        twins.check()


class TestOwnMemory:
    def test_an_unusual_insert_copies_the_slots_too(self) -> None:
        tree = Twins(1, "lru", seed=0).ours
        value = torch.arange(4)
        key = RadixKey(array("q", range(4)))
        tree.insert(key=key, value=value, track_adopted_ranges=True)
        value[:] = 9
        (node,) = tree.nodes()
        assert node.component_data[0].value.tolist() == [0, 1, 2, 3]

    def test_a_leaf_holds_its_own_tokens_and_slots_only(self) -> None:
        tree = Twins(1, "lru", seed=0).ours
        tokens, value = array("q", range(100)), torch.arange(100)
        tree.insert(key=RadixKey(array("q", tokens[:60])), value=value[:60])
        tree.insert(key=RadixKey(tokens), value=value, prev_prefix_len=60)
        upper, lower = tree.nodes()
        for node, size in ((upper, 60), (lower, 40)):
            assert node.component_data[0].value.untyped_storage().nbytes() == size * 8
        value[:] = 0
        tokens[70] = 0
        assert lower.component_data[0].value.tolist() == list(range(60, 100))
        assert lower.key.token_ids == array("q", range(60, 100))

    def test_a_split_leaves_neither_half_with_the_whole(self) -> None:
        tree = Twins(1, "lru", seed=0).ours
        tree.insert(key=RadixKey(array("q", range(100))), value=torch.arange(100))
        tree.match(RadixKey(array("q", range(30))))
        sizes = [n.component_data[0].value.untyped_storage().nbytes() // 8 for n in tree.nodes()]
        assert sizes == [30, 70]


class TestPath:
    @pytest.mark.parametrize("page_size", [1, 16])
    def test_names_nodes_and_lengths_and_changes_nothing(self, page_size: int) -> None:
        twins = Twins(page_size, "lru", seed=3)
        for _ in range(40):
            twins.request()
        before = twins.ours.state()
        for _ in range(40):
            parts = twins.key_parts()
            path = twins.ours.core.path(twins.key(parts))
            matched, node_id, pinned = twins.stock.core.match_full_device_prefix(twins.key(parts))
            assert path.matched_tokens == matched
            assert path.num_tokens == len(parts["token_ids"]) // page_size * page_size
            assert sum(len(node.key) for node in path.nodes) == pinned
            deepest = path.nodes[-1].id if path.nodes else twins.ours.core.root_node.id
            assert twins.ours.place(deepest) == twins.stock.place(node_id)
        assert twins.ours.state() == before


class TestNode:
    def test_has_every_field_of_sglangs_node_with_its_default(self) -> None:
        stock, ours = UnifiedTreeNode((ComponentType.FULL,), priority=2), FullOnlyNode(priority=2)
        changing = {"id", "last_access_time", "creation_time", "lru_prev", "lru_next"}
        for name, value in vars(stock).items():
            assert hasattr(ours, name), name
            if name not in changing:
                assert getattr(ours, name) == value, name
        assert list(ours.lru_prev) == stock.lru_prev
        assert ours.id == stock.id + 1

    def test_bytes_key_slices_to_bytes_keys(self) -> None:
        key = BytesKey.of(RadixKey(array("q", range(10)), "a", limit=8, cache_salt="s"))
        assert len(key) == 8
        for part in (key[2:6], key.slice(2, 6)):
            assert part.token_ids == array("q", [2, 3, 4, 5])
            assert part.data == part.token_ids.tobytes()
            assert (part.extra_key, part.cache_salt) == ("a", "s")
            assert part.child_key(2) == (("a", "s"), array("q", [2, 3]).tobytes())
        assert key.child_key_at(3, 1) == (("a", "s"), 3)
        with pytest.raises(IndexError, match="no page of 4 tokens at 5 in 8 tokens"):
            key.child_key_at(5, 4)


class TestRefusals:
    @pytest.mark.parametrize(
        "change",
        [
            {"is_eagle": True},
            {"enable_session_radix_cache": True},
            {"tree_components": (ComponentType.FULL, ComponentType.SWA)},
        ],
    )
    def test_refuses_what_it_was_not_written_for(self, change: dict[str, Any]) -> None:
        params = CacheInitParams(
            disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=1
        )
        params.tree_components = (ComponentType.FULL,)
        for name, value in change.items():
            setattr(params, name, value)
        with pytest.raises(UnsupportedError, match="full attention alone"):
            FullOnlyTreeCore(params, dict.fromkeys(params.tree_components))

    def test_refuses_a_host_tier(self) -> None:
        core = Twins(1, "lru", seed=0).ours.core
        for switch in (core.set_hicache_enabled, core.set_host_memory_buffer_only):
            with pytest.raises(UnsupportedError, match="no host tier"):
                switch()
        assert not core.enable_hicache

    def test_refuses_a_second_insert_inside_an_insert(self) -> None:
        core = Twins(1, "lru", seed=0).ours.core
        core._ongoing_insert_walk_state = object()
        with pytest.raises(RuntimeError, match="concurrent"):
            core.begin_insert(InsertParams(key=RadixKey(array("q", [1])), value=torch.arange(1)))

    def test_refuses_tokens_that_are_not_64_bits_wide(self) -> None:
        core = Twins(1, "lru", seed=0).ours.core
        with pytest.raises(AssertionError, match="array"):
            core.match_prefix(MatchPrefixParams(key=RadixKey(array("i", [1]))))
