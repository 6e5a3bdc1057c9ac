"""What requests do to the cache, and what must come of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from tests.fuzz.server import HINTS, MAX_RUNNING, MAX_TOKENS, tokens_of
from tests.fuzz.state import State
from tests.fuzz.tree_view import TreeView
from tests.fuzz.truth import path_hashes, row_of
from tests.unit.engine.tree_harness import Request


class RequestSteps(State):
    """Steps of the requests. Each returns False when it found nothing to do."""

    def do_start(
        self,
        prompt: list[Any],
        client: list[Any],
        cap: int | None,
        chunk: int | None,
        twins: int,
    ) -> bool:
        """Admit ``twins`` requests for the same prompt, as ``n`` > 1 does."""
        admitted = [self._admit(self._request(prompt, client), cap, chunk) for _ in range(twins)]
        return any(admitted)

    def _request(self, prompt: list[Any], client: list[Any]) -> tuple[tuple[int, ...], Any]:
        branches, permille = prompt
        hint, key, priority = client
        class_name, content = HINTS[hint]
        tokens = tokens_of(tuple(branches), permille, self.setup.page_size)
        req = self.h.request(tokens, key, content, priority)
        req.fuzz_class, req.fuzz_key = class_name, key
        return tokens, req

    def _admit(
        self, asked: tuple[tuple[int, ...], Any], cap: int | None, chunk: int | None
    ) -> bool:
        tokens, req = asked
        if len(self.running) >= MAX_RUNNING or not self.has_room(len(tokens)):
            return False
        most = len(tokens) - 1
        request = self.h.start(
            tokens, most if cap is None else min(cap, most), chunk=chunk, again=req
        )
        row = self.h.row(request)
        self._check_read(row[: request.matched], tokens, req)
        self.seen[request] = self.truth.stamp[row]
        self.count("matched" if request.matched else "missed")
        return True

    def _check_read(self, slots: NDArray[np.int64], tokens: tuple[int, ...], req: Any) -> None:
        """What a request is about to read must be its own path's, and allowed to its class."""
        truth = self.truth
        assert np.array_equal(truth.path[slots], path_hashes(tokens[: len(slots)])), (
            "matched KV of another prompt"
        )
        assert (truth.space[slots] == self.h.space_of(req)).all(), "matched another namespace"
        assert truth.is_kept[slots].all(), "matched KV that a plan condemned"
        assert truth.is_readable[row_of(req.fuzz_class), slots].all(), (
            f"a request of class {req.fuzz_class} matched KV that its class may not read"
        )
        if not req.kv.holds_kv and not self.h.cache.is_suspended:
            old = truth.lineage[slots] != truth.pure_lineage(self.h.epoch)
            assert req.xver_kept_old_tokens == np.count_nonzero(old), "kept-old tokens miscounted"

    def do_prefill(self, number: int, chunk: int) -> bool:
        """Compute the next chunk of a prompt, and hand it to the tree as chunked prefill does."""
        request = self.request(number)
        more = request.prompt[len(request.tokens) : len(request.tokens) + chunk]
        if not more or not self.has_room(len(more)):
            return False
        self._extend(request, more)
        self._publish(request)
        return True

    def do_decode(self, number: int, count: int, branch: int) -> bool:
        request = self.request(number)
        length = len(request.tokens)
        if (
            length < len(request.prompt)
            or length + count > MAX_TOKENS[self.setup.page_size]
            or not self.has_room(count)
        ):
            return False
        first = 90_000 + 1_000 * branch + length
        self._extend(request, tuple(range(first, first + count)))
        return True

    def _extend(self, request: Request, more: tuple[int, ...]) -> None:
        self.h.extend(request, more)
        self.seen[request] = self.truth.stamp[self.h.row(request)]

    def do_publish(self, number: int) -> bool:
        request = self.request(number)
        if request.req.skip_radix_cache_insert:
            return False
        self._publish(request)
        return True

    def _publish(self, request: Request, finished: bool = False) -> None:
        core, truth = self.h.core, self.truth
        is_plain = not (core.has_foreign or core.blocked or self.h.cache.is_suspended)
        before, stamps = self.h.row(request), self.seen[request]
        declined = self.h.cache.declined_inserts
        self.h.publish(request, finished)
        after = self.h.row(request)
        changed = after[truth.stamp[after] != stamps]
        replaced = before[truth.stamp[after] != stamps]
        assert np.array_equal(truth.path[changed], truth.path[replaced]), "a row changed its path"
        assert np.array_equal(truth.own[changed], truth.own[replaced]), (
            "trap T1: a row was switched to KV that the request did not compute"
        )
        assert truth.is_kept[changed].all(), "a row was switched to condemned KV"
        for new, old in set(
            zip(truth.lineage[changed].tolist(), truth.lineage[replaced].tolist(), strict=True)
        ):
            assert truth.lineages[new] <= truth.lineages[old], (
                "trap T1: a row was switched to KV with an epoch that the request never read"
            )
        self.seen[request] = truth.stamp[after]
        if is_plain and not request.req.skip_radix_cache_insert:
            page = self.h.page_size
            assert request.req.kv.cache_protected_len == len(request.tokens) // page * page, (
                "an insert into a pure tree was declined"
            )
        if self.h.cache.declined_inserts > declined:
            self.count("declined")
            assert self.h.cache.is_suspended or self._has_obstacle(request), (
                "an insert was declined although the request could adopt all that is there"
            )

    def _has_obstacle(self, request: Request) -> bool:
        """Whether something on the request's path is blocked, or is not what it computed."""
        truth, row, view = self.truth, self.h.row(request), TreeView(self.h)
        position = {path: number for number, path in enumerate(truth.path[row].tolist())}
        own, lineage = truth.epoch_id(self.h.epoch), truth.lineages[truth.lineage[row[-1]]]
        is_blocked = np.repeat(view.is_blocked, view.lengths)
        for slot, blocked in zip(view.slots.tolist(), is_blocked.tolist(), strict=True):
            where = position.get(int(truth.path[slot]))
            if where is None or truth.space[slot] != truth.space[row[0]]:
                continue
            if blocked:
                return True
            if where >= request.req.kv.cache_protected_len and (
                truth.own[slot] != own or not truth.lineages[truth.lineage[slot]] <= lineage
            ):
                return True
        return False

    def do_finish(self, number: int, is_published: bool) -> bool:
        """End a request: finished and published, or aborted."""
        self._finish(self.request(number), is_published)
        return True

    def _finish(self, request: Request, is_published: bool) -> None:
        if is_published:
            self._publish(request, finished=True)
        self.h.finish(request, publish=False)
        self.is_lingering = False
        del self.seen[request]

    def do_run(self, prompt: list[Any], client: list[Any]) -> bool:
        """Serve a whole request."""
        if not self._admit(self._request(prompt, client), None, None):
            return False
        self._finish(self.running[-1], True)
        return True

    def do_retract(self, number: int) -> bool:
        """Take a running request's KV away; it starts again later, its bar included."""
        request = self.request(number)
        is_prefilled = len(request.tokens) > len(request.prompt)
        self.waiting.append((request.tokens if is_prefilled else request.prompt, request.req))
        self._finish(request, False)
        return True

    def do_resume(self, number: int, chunk: int | None) -> bool:
        """Start a request that waited."""
        if not self.waiting:
            return False
        index = number % len(self.waiting)
        if not self._admit(self.waiting[index], None, chunk):
            return False
        del self.waiting[index]
        return True

    def do_look(self, prompt: list[Any], client: list[Any], waits: bool) -> bool:
        """Match without starting, as a waiting queue does; the look-up splits nodes."""
        tokens, req = self._request(prompt, client)
        slots = self.h.matched_slots(self.h.match(req))
        self._check_read(np.array(slots, np.int64), tokens, req)
        if waits and len(self.waiting) < MAX_RUNNING:
            self.waiting.append((tokens, req))
        return True

    def do_evict(self, count: int) -> bool:
        self.h.cache.evict(EvictParams(num_tokens=count))
        return True
