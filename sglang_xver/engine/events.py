"""KV events that announce exact blocks only.

Routers and indexers take an announced block for KV that a worker would compute now. Kept KV of
earlier weights, and what was computed on it, is not that: such blocks are never announced, or are
withdrawn when an update makes them old.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.events import KVCacheEventRecorder

from sglang_xver.lineage import EpochTable


class ExactEventRecorder(KVCacheEventRecorder):
    """``KVCacheEventRecorder`` for nodes with a lineage; ``xver_announced`` is its note on each."""

    def __init__(self, params: CacheInitParams, epochs: EpochTable) -> None:
        super().__init__(
            enabled=params.enable_kv_cache_events,
            page_size=params.page_size,
            dynamo_format=params.dynamo_kv_event_format,
            lora_names=params.kv_event_lora_names,
        )
        self._epochs = epochs

    def record_store(self, node: Any, medium: Any = None, *, session_id: str | None = None) -> None:
        """Announce ``node`` unless other weights had a part in it."""
        mask = node.parent.xver_lineage.mask | node.xver_lineage.mask
        if self.enabled and mask == self._epochs.current_bit:
            super().record_store(node, medium, session_id=session_id)
            node.xver_announced = True

    def record_remove(self, node: Any, medium: Any = None) -> None:
        """Announce the removal of ``node`` if its presence was announced."""
        if self.enabled and node.xver_announced:
            super().record_remove(node, medium)
            node.xver_announced = False

    def reconcile(self, node: Any) -> None:
        """Withdraw or announce ``node`` after its standing changed; its parent comes first."""
        if node.xver_lineage.mask != self._epochs.current_bit:
            self.record_remove(node)
        elif not node.xver_announced:
            self.record_store(node)
