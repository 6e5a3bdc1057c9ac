"""Nodes and keys of :class:`sglang_xver.engine.full_only.FullOnlyTreeCore`."""

from __future__ import annotations

from array import array
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import (
    _NUM_COMPONENT_TYPES,
    ComponentData,
    ComponentType,
    get_and_increase_time_counter,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

TOKEN_BYTES = array("q").itemsize

# A tree of full attention alone keeps nothing here, so all nodes share it. Tuples: a write raises.
_NO_LRU: tuple[None, ...] = (None,) * (2 * _NUM_COMPONENT_TYPES)
_OTHER_COMPONENTS = [ComponentData() for _ in range(_NUM_COMPONENT_TYPES - 1)]


class FullOnlyNode(UnifiedTreeNode):
    """``UnifiedTreeNode`` that creates only what a tree of full attention alone uses.

    What stays at its default for most nodes is a class attribute until somebody sets it.
    """

    component_types = (ComponentType.FULL,)
    lru_prev = _NO_LRU
    lru_next = _NO_LRU
    hash_value = None
    event_hash_value = None
    hit_count = 0
    _tlru_cached_prefix_len = 0
    _tlru_history_len = 0
    external_cache_stored = False
    write_through_pending_id = None
    load_back_pending_id = None
    rotation_base = None

    def __init__(self, priority: int = 0) -> None:
        self.children: dict[Any, FullOnlyNode] = {}
        self.parent = None
        self.key: Any = None
        self.component_data = [ComponentData(), *_OTHER_COMPONENTS]
        self.last_access_time = get_and_increase_time_counter()
        self.creation_time = get_and_increase_time_counter()
        self.priority = priority
        self.id = UnifiedTreeNode.counter
        UnifiedTreeNode.counter += 1


class BytesKey(RadixKey):
    """``RadixKey`` of a node, with its tokens as bytes too: comparing bytes is one C call.

    With pages above one token its child keys hold the page's bytes, not a tuple of numbers.
    """

    __slots__ = ("data",)

    def __init__(
        self,
        token_ids: array[int],
        extra_key: str | None,
        cache_salt: str | None,
        data: bytes,
    ) -> None:
        super().__init__(token_ids, extra_key, cache_salt=cache_salt)
        self.data = data

    @classmethod
    def of(cls, key: RadixKey) -> BytesKey:
        """Return ``key`` itself, or its tokens up to its limit as a ``BytesKey``."""
        if isinstance(key, cls):
            return key
        token_ids = key.raw_token_ids()
        return cls(token_ids, key.extra_key, key.cache_salt, token_ids.tobytes())

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, index: int | slice) -> BytesKey:
        return BytesKey.of(super().__getitem__(index))

    def slice(self, start: int, end: int) -> BytesKey:
        """Return tokens ``[start, end)``, which lie within the key."""
        return BytesKey(
            self.token_ids[start:end],
            self.extra_key,
            self.cache_salt,
            self.data[start * TOKEN_BYTES : end * TOKEN_BYTES],
        )

    def child_key_at(self, offset: int, page_size: int = 1) -> Any:
        """Return what ``children`` is keyed by for the page at ``offset``."""
        if page_size == 1:
            return super().child_key_at(offset, 1)
        if offset < 0 or offset + page_size > len(self):
            raise IndexError(f"no page of {page_size} tokens at {offset} in {len(self)} tokens")
        page = self.data[offset * TOKEN_BYTES : (offset + page_size) * TOKEN_BYTES]
        namespace = namespace_of(self)
        return page if namespace is None else (namespace, page)


def namespace_of(key: RadixKey) -> Any:
    """Return what SGLang puts before a page in a child key; None for nothing."""
    if key.cache_salt is not None:
        return (key.extra_key, key.cache_salt)
    return key.extra_key
