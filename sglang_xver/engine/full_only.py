"""SGLang's Python radix tree for full attention alone, with short ways for the usual operations.

SGLang's Python core serves every kind of layer and tier. Where the tree has full attention only and
no host tier, most of that is dead weight: this subclass walks a key once, compares whole nodes by
their bytes and builds smaller nodes. What can be observed stays the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    DecLockRefParams,
    DecLockRefResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKV
from sglang.srt.mem_cache.unified_cache.components import (
    ComponentType,
    get_and_increase_time_counter,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
    UnifiedTreeCore,
    UnifiedTreeNode,
    _set_tlru_lens_and_raise_history,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import InsertStepResult
from sglang.srt.mem_cache.utils import split_node_hash_value

from sglang_xver.engine.full_only_node import TOKEN_BYTES, BytesKey, FullOnlyNode
from sglang_xver.engine.full_only_path import KeyPath, find_path
from sglang_xver.errors import UnsupportedError

_FULL = ComponentType.FULL


class FullOnlyTreeCore(UnifiedTreeCore):
    """``UnifiedTreeCore`` for one ``FULL`` component without host tier, sharding and sessions.

    Every node's key is a :class:`BytesKey`: with pages above one token ``children`` is keyed by
    the page's bytes, so an ordinary ``RadixKey`` finds nothing there. Look it up with :meth:`path`.
    """

    def __init__(self, params: Any, components: Any) -> None:
        if tuple(components) != (_FULL,) or params.is_eagle or params.enable_session_radix_cache:
            raise UnsupportedError(
                f"FullOnlyTreeCore got components {[str(name) for name in components]}, is_eagle="
                f"{params.is_eagle}, enable_session_radix_cache="
                f"{params.enable_session_radix_cache}: it serves full attention alone. "
                "Use SGLang's own tree core."
            )
        super().__init__(params, components)

    def set_hicache_enabled(self) -> None:
        """Refuse: nodes without a device value do not occur here."""
        raise UnsupportedError("FullOnlyTreeCore has no host tier. Drop the hierarchical cache.")

    def set_host_memory_buffer_only(self) -> None:
        """Refuse, as :meth:`set_hicache_enabled`."""
        self.set_hicache_enabled()

    def path(self, key: RadixKey) -> KeyPath:
        """Walk ``key``'s whole pages down the tree; changes nothing."""
        return find_path(self.root_node, key, self.page_size)

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """As SGLang's: split where the key leaves a node and refresh the path's recency."""
        path = self.path(params.key)
        if path.num_tokens == 0:
            return self._empty_match_result
        node, matched = self.root_node, path.matched_tokens
        if path.nodes:
            node = path.nodes[-1]
            if path.last_tokens < len(node.key):
                node, _ = self._split_node(node.key, node, path.last_tokens)
        node_id = node.id
        visited = None if node is self.root_node else node_id
        accessed_at = get_and_increase_time_counter()
        while node is not None:
            node.last_access_time = accessed_at
            accessed_at -= 0.00001
            node = node.parent
        return MatchResult(
            matched,
            node_id,
            node_id,
            node_id,
            full_kv_hit_length=matched,
            cache_actions=[],
            last_visited_node_id=visited,
        )

    def match_full_device_prefix(self, key: RadixKey) -> tuple[int, int, int]:
        """As SGLang's: (matched tokens, deepest node, tokens of all nodes touched)."""
        path = self.path(key)
        node = path.nodes[-1] if path.nodes else self.root_node
        pinned = path.matched_tokens + len(node.key) - path.last_tokens
        return path.matched_tokens, node.id, pinned

    def begin_insert(self, params: InsertParams) -> InsertStepResult:
        """As SGLang's, always in one step."""
        if self._ongoing_insert_walk_state is not None:
            raise RuntimeError("concurrent insert walks")
        if not self._is_usual(params):
            return super().begin_insert(dataclasses.replace(params, key=BytesKey.of(params.key)))
        path = self.path(params.key)
        priority = params.priority or 0
        root = self.root_node
        root.last_access_time = get_and_increase_time_counter()
        if priority > root.priority:
            root.priority = priority
        if path.num_tokens == 0:
            result = InsertResult(prefix_len=0, mamba_exist=True, last_device_node=root.id)
            return InsertStepResult([], result)
        return self._insert_along(path, params, priority)

    @staticmethod
    def _is_usual(params: InsertParams) -> bool:
        return (
            params.value is not None
            and params.rotation_base is None
            and not params.track_adopted_ranges
            and not params.component_evicted_seqlens
        )

    def _insert_along(self, path: KeyPath, params: InsertParams, priority: int) -> InsertStepResult:
        """Adopt the path's nodes, free the request's duplicates of them, add what is missing."""
        actions: list[Any] = []
        start, target = 0, self.root_node
        for node in path.nodes:
            target = node
            target.last_access_time = get_and_increase_time_counter()
            end = start + len(target.key)
            if end > path.matched_tokens:
                end = path.matched_tokens
                target, _ = self._split_node(target.key, target, path.last_tokens)
            if priority > target.priority:
                target.priority = priority
            own_from = max(start, params.prev_prefix_len)
            if own_from < end:
                actions.append(FreeDeviceKV([params.value[own_from:end]]))
            # Nodes that this request inserted earlier were counted back then.
            if end > params.inserted_len:
                target.hit_count += 1
            start = end
        result = InsertResult(prefix_len=start)
        if start < path.num_tokens:
            target = self._add_leaf(target, path, params, priority)
        result.last_device_node = target.id
        return InsertStepResult(actions, result)

    def _add_leaf(
        self, parent: UnifiedTreeNode, path: KeyPath, params: InsertParams, priority: int
    ) -> UnifiedTreeNode:
        start, end, key = path.matched_tokens, path.num_tokens, params.key
        leaf = self._add_new_node(
            parent,
            BytesKey(
                key.token_ids[start:end],
                key.extra_key,
                key.cache_salt,
                path.data[start * TOKEN_BYTES : end * TOKEN_BYTES],
            ),
            params.value.narrow_copy(0, start, end - start),
            priority=priority,
            session_id=params.session_id,
            is_own_value=True,
        )
        if end > params.inserted_len:
            leaf.hit_count += 1
        return leaf

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = FullOnlyNode(priority)
        self._node_arena[node.id] = node
        return node

    def _add_new_node(
        self,
        parent: UnifiedTreeNode,
        key: RadixKey,
        value: torch.Tensor,
        priority: int = 0,
        session_id: str | None = None,
        rotation_base: int | None = None,
        is_own_value: bool = False,
    ) -> UnifiedTreeNode:
        """As SGLang's; ``is_own_value`` says that nobody else refers to ``value``."""
        node = self._new_node(priority=priority)
        node.parent = parent
        node.key = key = BytesKey.of(key)
        if self.tlru_bookkeeping:
            _set_tlru_lens_and_raise_history(node, parent)
        if rotation_base is not None:
            node.rotation_base = rotation_base
        node.component_data[0].value = value if is_own_value else value.clone()
        parent.children[key.child_key_at(0, self.page_size)] = node
        self.component_evictable_size_[_FULL] += len(key)
        self.evictable_device_leaves.add(node)
        self.evictable_device_leaves.discard(parent)
        if self.kv_events.enabled:
            self.kv_events.record_store(node, session_id=session_id)
        return node

    def _split_node(
        self, key: RadixKey, child: UnifiedTreeNode, split_len: int
    ) -> tuple[UnifiedTreeNode, None]:
        parent, key, data = child.parent, child.key, child.component_data[0]
        upper = self._new_node(priority=child.priority)
        upper.parent = parent
        upper.key, child.key = key.slice(0, split_len), key.slice(split_len, len(key))
        upper.hit_count = child.hit_count
        upper.creation_time = child.creation_time
        if self.tlru_bookkeeping:
            upper._tlru_cached_prefix_len = parent._tlru_cached_prefix_len + split_len
            upper._tlru_history_len = child._tlru_history_len
        upper.rotation_base = child.rotation_base
        if child.hash_value is not None or child.event_hash_value is not None:
            self._split_hashes(upper, child, split_len)
        own = upper.component_data[0]
        own.lock_ref = data.lock_ref
        own.value = data.value.narrow_copy(0, 0, split_len)
        data.value = data.value.narrow_copy(0, split_len, len(child.key))
        upper.children[child.key.child_key_at(0, self.page_size)] = child
        parent.children[upper.key.child_key_at(0, self.page_size)] = upper
        child.parent = upper
        child.last_access_time = get_and_increase_time_counter()
        return upper, None

    def _split_hashes(self, upper: UnifiedTreeNode, child: UnifiedTreeNode, split_len: int) -> None:
        for name in ("hash_value", "event_hash_value"):
            above, below = split_node_hash_value(getattr(child, name), split_len, self.page_size)
            setattr(upper, name, above)
            setattr(child, name, below)

    def _update_evictable_leaf_sets(self, node: UnifiedTreeNode) -> None:
        """As SGLang's: every node has a device value here, and none a host value."""
        if node.children or node is self.root_node or node.component_data[0].lock_ref > 0:
            self.evictable_device_leaves.discard(node)
        else:
            self.evictable_device_leaves.add(node)

    def _release_all_component_layers(
        self,
        node: UnifiedTreeNode,
        medium: Any,
        tracker: dict[Any, int],
        device_frees: dict[Any, list[torch.Tensor]],
        host_frees: dict[Any, list[torch.Tensor]],
        cache_actions: list[Any],
    ) -> None:
        if self.kv_events.enabled:
            self.kv_events.record_remove(node, medium=medium)
        num_tokens = len(node.key)
        device_frees[_FULL].append(node.component_data[0].value)
        tracker[_FULL] += num_tokens
        self.component_evictable_size_[_FULL] -= num_tokens
        if self._is_tracking_unbacked_tokens:
            self._tracked_unbacked_tokens += num_tokens
        self.evictable_device_leaves.discard(node)

    def inc_lock_ref(self, node_id: int, skip_lock_components: Any = ()) -> IncLockRefResult:
        """As SGLang's: lock every node from ``node_id`` to the root."""
        if skip_lock_components:
            return super().inc_lock_ref(node_id, skip_lock_components)
        node, root = self._node_arena[node_id], self.root_node
        self.evictable_device_leaves.discard(node)
        newly_locked = 0
        while node is not root:
            data = node.component_data[0]
            if data.lock_ref == 0:
                newly_locked += len(node.key)
            data.lock_ref += 1
            node = node.parent
        self._move_to_protected(newly_locked)
        return IncLockRefResult(newly_locked, node_id)

    def dec_lock_ref(
        self, node_id: int, params: DecLockRefParams, skip_swa: bool = False
    ) -> DecLockRefResult:
        """As SGLang's: release what the paired :meth:`inc_lock_ref` locked."""
        if params.skipped_lock_components:
            return super().dec_lock_ref(node_id, params, skip_swa)
        node, root = self._node_arena[node_id], self.root_node
        self._assert_receipt_anchor(node, params)
        unlocked = 0
        while node is not root:
            data = node.component_data[0]
            assert data.lock_ref > 0, f"released node {node.id}, which is not locked"
            data.lock_ref -= 1
            if data.lock_ref == 0:
                unlocked += len(node.key)
                if not node.children:
                    self.evictable_device_leaves.add(node)
            node = node.parent
        self._move_to_protected(-unlocked)
        return DecLockRefResult()

    def _move_to_protected(self, num_tokens: int) -> None:
        if num_tokens:
            self.component_evictable_size_[_FULL] -= num_tokens
            self.component_protected_size_[_FULL] += num_tokens
