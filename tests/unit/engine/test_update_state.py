"""What the update controller remembers between calls: who straddles, which plan waits, in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_xver.config import XverConfig
from sglang_xver.engine import updates
from sglang_xver.engine.journal import Journal, ServerFacts
from sglang_xver.engine.ranks import Outcome
from sglang_xver.engine.updates import UPDATE_ID_FIELD, UpdateController
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan
from tests.unit.engine.tree_harness import Harness

PREFIX = tuple(range(500, 600))


def request(holds_kv: bool) -> Any:
    class Req:
        kv = SimpleNamespace(holds_kv=holds_kv)
        skip_radix_cache_insert = False

        def finished(self) -> bool:
            return False

    return Req()


class Server:
    """The controller on a cache of the real classes; ``update`` is one loaded checkpoint."""

    def __init__(self) -> None:
        self.h = Harness()
        self.controller = UpdateController(
            self.h.cache, XverConfig(mode="on"), Journal(self.h.cache, ServerFacts("on", None, {}))
        )
        self.scheduler = SimpleNamespace(
            waiting_queue=[],
            chunked_req=None,
            collect_inflight_reqs=set,
            _engine_paused=False,
            is_fully_idle=lambda ignore_waiting=False: False,
        )

    def push(self, **limits: int) -> None:
        rules = {key: EpochRule(keep_max_tokens=n, reason="OK") for key, n in limits.items()}
        plan = Plan(update_id="u", target_key="B", model_path="/b", rules=rules)
        assert self.controller.accept_control(self.scheduler, plan.to_wire())

    def update(self, *, is_loaded: bool = True) -> None:
        manager = SimpleNamespace(scheduler=self.scheduler)
        request = SimpleNamespace(
            model_path="/b", flush_cache=False, manifest={UPDATE_ID_FIELD: "u"}
        )

        def handler(manager: Any, request: Any) -> Any:
            if is_loaded:
                self.controller.settle(lambda *_: (True, ""), manager, request, True, "")
            return SimpleNamespace(success=is_loaded, message="")

        self.controller.guard(handler, manager, request)


@pytest.fixture
def server() -> Server:
    server = Server()
    server.h.run(PREFIX)
    return server


class TestStraddlers:
    def test_everybody_who_holds_kv_is_barred(self, server: Server) -> None:
        running, chunked, retracted = (request(holds_kv=True) for _ in range(3))
        fresh = request(holds_kv=False)
        server.scheduler.collect_inflight_reqs = lambda: {running}
        server.scheduler.chunked_req = chunked
        server.scheduler.waiting_queue = [retracted, fresh]
        server.update()
        assert [r.skip_radix_cache_insert for r in (running, chunked, retracted)] == [True] * 3
        assert not fresh.skip_radix_cache_insert
        report = server.controller.journal.last_report
        assert report is not None
        assert report.straddling_requests == 3


class TestPendingPlan:
    def test_is_void_after_an_update_that_loaded_nothing(self, server: Server) -> None:
        server.push(initial=UNLIMITED, **{"unknown:1": UNLIMITED})
        server.update(is_loaded=False)
        server.h.run(PREFIX)
        assert server.h.epoch == "unknown:1"
        server.update()
        assert server.h.reads(PREFIX) == []


class TestRanks:
    @pytest.mark.parametrize("other", [Outcome.PLAN_FAILED, Outcome.LOAD_FAILED])
    def test_failure_of_another_rank_evicts_here_too(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, other: Outcome
    ) -> None:
        monkeypatch.setattr(updates, "worst_outcome", lambda mine, group: max(mine, other))
        server.push(initial=UNLIMITED)
        server.update()
        assert server.h.reads(PREFIX) == []
        report = server.controller.journal.last_report
        assert report is not None
        assert (report.action, report.reason) == ("EVICT", "OTHER_RANK_FAILED")


class TestDoubt:
    def test_no_plan_applies_to_what_could_not_even_be_hidden(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("injected")

        with monkeypatch.context() as broken:
            broken.setattr(server.h.cache, "condemn_all", fail)
            broken.setattr(server.h.core, "block_all", fail)
            server.controller.fail_closed(server.scheduler, "TEST")
        assert server.h.cache.is_suspended
        assert server.h.reads(PREFIX) == []
        server.push(initial=UNLIMITED)
        server.update()
        assert not server.h.cache.is_suspended
        assert server.h.reads(PREFIX) == []
        server.h.check_slots()
