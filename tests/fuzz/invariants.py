"""What must hold after every operation, whatever happened before."""

from __future__ import annotations

import numpy as np

from sglang_xver.lineage import epochs_in
from tests.fuzz.tree_view import TreeView
from tests.fuzz.truth import path_hashes
from tests.fuzz.world import World


class Checker:
    """Checks one world; remembers the path numbers of nodes whose keys have not changed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._paths: dict[int, tuple[object, int, np.ndarray]] = {}

    def check(self) -> None:
        """Assert every invariant.

        SGLang's own check of its bookkeeping is left out once a fault was injected: it demands
        that nothing ever leaks.
        """
        world = self.world
        view = TreeView(world.h)
        self._no_slot_is_lost(view)
        self._sizes_agree(view)
        self._rows_are_stable(view)
        self._blocks_are_known(view)
        self._tree_tells_the_truth(view)
        if world.events is not None:
            self._events_tell_the_truth(view)
        if not world.has_failed:
            world.h.cache.sanity_check()

    def _no_slot_is_lost(self, view: TreeView) -> None:
        world = self.world
        owners = world.owners(view)
        if len(world.lost):
            assert not owners[world.lost].any(), "a slot that a fault leaked came back"
            owners[world.lost] = 1
        assert owners.max() <= 1, f"slots with two owners: {np.flatnonzero(owners > 1)}"
        assert owners.min() == 1, f"leaked slots: {np.flatnonzero(owners == 0)}"

    def _sizes_agree(self, view: TreeView) -> None:
        cache = self.world.h.cache
        surplus = cache.evictable_size() + cache.protected_size() - len(view.slots)
        # A fault between detaching a node and releasing it leaves SGLang's counter too high.
        assert 0 <= surplus <= len(self.world.lost), f"{surplus} tokens too many are counted"

    def _rows_are_stable(self, view: TreeView) -> None:
        world, truth = self.world, self.world.truth
        is_in_tree = np.zeros(len(truth.stamp), bool)
        is_in_tree[view.slots] = True
        for request in world.running:
            row = world.h.row(request)
            assert np.array_equal(truth.stamp[row], world.seen[request]), (
                "the KV under a running request changed"
            )
            protected = request.req.kv.cache_protected_len
            assert is_in_tree[row[:protected]].all(), "the tree lost KV that a request holds"

    def _blocks_are_known(self, view: TreeView) -> None:
        core = self.world.h.core
        for node, is_blocked in zip(view.nodes, view.is_blocked.tolist(), strict=True):
            if is_blocked:
                assert core.blocked[node.id] is node
                assert self.world.is_lingering or core.is_held(node) or node.children, (
                    "a condemned free leaf lingers"
                )
            else:
                assert node.parent.id not in core.blocked, "visible below an invisible node"
        assert len(core.blocked) == int(view.is_blocked.sum()), "a removed node is still blocked"

    def _tree_tells_the_truth(self, view: TreeView) -> None:
        world, truth = self.world, self.world.truth
        shown = np.flatnonzero(~np.repeat(view.is_blocked, view.lengths))
        slots = view.slots[shown]
        assert truth.is_kept[slots].all(), "condemned KV is visible"
        if not len(slots):
            return
        spaces = view.spread([truth.spaces.get(n.key.extra_key, -1) for n in view.nodes])[shown]
        assert np.array_equal(truth.space[slots], spaces), "KV lies in another namespace"
        epochs = world.h.core.epochs
        own = view.spread(
            [truth.epochs.get(epochs.key(node.xver_lineage.own), -1) for node in view.nodes]
        )[shown]
        assert np.array_equal(truth.own[slots], own), "a tag names other weights"
        assert np.array_equal(truth.path[slots], self._tree_paths(view)[shown]), (
            "KV of another path"
        )
        self._tags_hide_no_epoch(view, shown)

    def _tags_hide_no_epoch(self, view: TreeView, shown: np.ndarray) -> None:
        core, truth = self.world.h.core, self.world.truth
        pairs = view.spread(np.arange(len(view.nodes)))[shown] * len(truth.lineages)
        pairs += truth.lineage[view.slots[shown]]
        pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
        has_foreign = False
        known: dict[int, set[int | None]] = {}
        for pair in set(pairs.tolist()):
            index, lineage = divmod(pair, len(truth.lineages))
            mask = view.nodes[index].xver_lineage.mask
            if mask not in known:
                known[mask] = {truth.epochs.get(core.epochs.key(i)) for i in epochs_in(mask)}
            assert truth.lineages[lineage] <= known[mask], "the tag hides an epoch"
            has_foreign |= mask != core.epochs.current_bit
        assert core.has_foreign or not has_foreign, "old KV is not known to be there"

    def _tree_paths(self, view: TreeView) -> np.ndarray:
        """Return the number of the path up to each slot, from the keys of the nodes."""
        ends: dict[int, tuple[int, int]] = {}
        parts: list[np.ndarray] = []
        known = self._paths
        self._paths = {}
        for node in view.nodes:
            start, before = ends.get(node.parent.id, (0, 0))
            cached = known.get(node.id)
            if cached is None or cached[0] is not node.key or cached[1] != before:
                tokens = np.frombuffer(node.key.token_ids, np.int64)
                cached = (node.key, before, path_hashes(tokens[: len(node.key)], start, before))
            self._paths[node.id] = cached
            parts.append(cached[2])
            ends[node.id] = (start + len(node.key), int(cached[2][-1]))
        return np.concatenate(parts)

    def _events_tell_the_truth(self, view: TreeView) -> None:
        world, truth = self.world, self.world.truth
        assert world.events is not None
        core = world.h.core
        world.events.consume(core.kv_events.take())
        if not world.are_events_exact:
            return
        current = truth.pure_lineage(world.h.epoch)
        slots = view.visible_slots
        is_exact = (truth.lineage[slots] == current) & (truth.depth[slots] % core.page_size == 0)
        assert np.array_equal(world.events.paths(), np.sort(truth.path[slots[is_exact]])), (
            "consumers of KV events believe in other blocks than the exact ones"
        )
