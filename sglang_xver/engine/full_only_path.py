"""Finds a key's way through the tree of :class:`sglang_xver.engine.full_only.FullOnlyTreeCore`."""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.utils import assert_int64_array

from sglang_xver.engine.full_only_node import TOKEN_BYTES, FullOnlyNode, namespace_of


class KeyPath(NamedTuple):
    """The nodes that a key runs through, from the root's child down."""

    data: bytes
    """The key's tokens as bytes."""
    num_tokens: int
    """Tokens in the key's whole pages; nothing beyond is looked up."""
    nodes: list[Any]
    matched_tokens: int
    """Tokens of the key that are in the tree."""
    last_tokens: int
    """How many of them lie in the last node, which is longer if the key leaves it half-way."""


def find_path(root: FullOnlyNode, key: RadixKey, page_size: int) -> KeyPath:
    """Walk ``key``'s whole pages down from ``root``; changes nothing."""
    tokens = key.token_ids
    assert_int64_array(tokens, "tree key token ids")
    num_tokens = len(key)
    num_tokens -= num_tokens % page_size
    data = tokens.tobytes()
    namespace = namespace_of(key)
    nodes: list[FullOnlyNode] = []
    children = root.children
    matched = last = 0
    while matched < num_tokens:
        if page_size == 1:
            first = tokens[matched]
        else:
            first = data[matched * TOKEN_BYTES : (matched + page_size) * TOKEN_BYTES]
        node = children.get(first if namespace is None else (namespace, first))
        if node is None:
            break
        nodes.append(node)
        children, body = node.children, node.key.data
        last = len(body) // TOKEN_BYTES
        if last > num_tokens - matched or not data.startswith(body, matched * TOKEN_BYTES):
            last = _common_tokens(body, data, matched, num_tokens, page_size)
            matched += last
            break
        matched += last
    return KeyPath(data, num_tokens, nodes, matched, last)


def _common_tokens(body: bytes, data: bytes, offset: int, end: int, page_size: int) -> int:
    """Return how many tokens of whole pages ``body`` shares with tokens ``data[offset:end]``."""
    step, start = page_size * TOKEN_BYTES, offset * TOKEN_BYTES
    low, high = 0, min(len(body), (end - offset) * TOKEN_BYTES) // step
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(body[low * step : middle * step], start + low * step):
            low = middle
        else:
            high = middle - 1
    return low * page_size
