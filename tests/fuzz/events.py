"""A consumer of KV events, such as a router: it believes that the announced blocks are cached."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from tests.fuzz.truth import path_hashes


class _Block(NamedTuple):
    """A block's path, as the token path's number up to its end, and how many tokens that is."""

    path: int
    depth: int
    count: int


class EventConsumer:
    """Replays the event stream.

    SGLang's plain format has no namespace in its hashes, so equal prompts of two namespaces are one
    block to a consumer, which then counts how often it was stored.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.blocks: dict[int, _Block] = {}
        self._paths: NDArray[np.uint64] | None = None

    def consume(self, events: list[Any]) -> None:
        """Apply events in order.

        Raises:
            AssertionError: an event contradicts those before it.
        """
        if events:
            self._paths = None
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    self._remove(block)
            else:
                assert isinstance(event, AllBlocksCleared), event
                self.blocks.clear()

    def _store(self, event: BlockStored) -> None:
        parent = _Block(0, 0, 0)
        if event.parent_block_hash is not None:
            known = self.blocks.get(event.parent_block_hash)
            assert known is not None, "a block was stored below an unknown one"
            parent = known
        tokens = np.array(event.token_ids, np.int64)
        paths = path_hashes(tokens, parent.depth, parent.path)[self.page_size - 1 :: self.page_size]
        assert len(paths) == len(event.block_hashes), "a block is not one whole page"
        depth = parent.depth
        for block, path in zip(event.block_hashes, paths.tolist(), strict=True):
            depth += self.page_size
            before = self.blocks.get(block)
            count = 0 if before is None else before.count
            assert before is None or before.path == path, "a block's hash names two prompts"
            self.blocks[block] = _Block(path, depth, count + 1)

    def _remove(self, block: int) -> None:
        known = self.blocks.get(block)
        assert known is not None, "an unknown block was removed"
        if known.count == 1:
            del self.blocks[block]
        else:
            self.blocks[block] = known._replace(count=known.count - 1)

    def paths(self) -> NDArray[np.uint64]:
        """Return the sorted paths of all blocks, as often as each was stored."""
        if self._paths is None:
            paths = np.array([block.path for block in self.blocks.values()], np.uint64)
            counts = [block.count for block in self.blocks.values()]
            self._paths = np.sort(np.repeat(paths, counts))
        return self._paths
