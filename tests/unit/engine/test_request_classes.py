"""Requests of different classes on one tree: who sees what, and what becomes of each namespace."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan
from tests.unit.engine.tree_harness import Harness

PREFIX = tuple(range(1000, 1064))
NATIVE = {"fidelity": "native"}
NIAH = {"task": "niah"}
QA = {"task": "qa"}
DEEP, SHALLOW = 64, 32


def plan(target: str, **limits: dict[str, int]) -> Plan:
    """Return a plan with limits by epoch and family."""
    rules = {
        key: EpochRule(keep_max_tokens=max(families.values()), families=families, reason="TEST")
        for key, families in limits.items()
    }
    return Plan(update_id="u", target_key=target, model_path="m", rules=rules)


TO_B = plan("B", initial={"niah": DEEP, "qa": SHALLOW})


@pytest.fixture(params=[1, 16])
def h(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param, families=("niah", "qa"))


def owners(h: Harness, hint: Any, tokens: tuple[int, ...] = PREFIX) -> list[str]:
    return [content.own for content in h.reads(tokens, hint=hint)]


class TestVisibility:
    def test_pure_tree_is_shared(self, h: Harness) -> None:
        h.run(PREFIX, hint=NIAH)
        for hint in (NATIVE, QA, None, NIAH):
            assert owners(h, hint) == ["initial"] * 64

    def test_each_class_sees_what_it_may(self, h: Harness) -> None:
        h.run(PREFIX)
        change = h.update(TO_B)
        assert change.kept_tokens == DEEP
        assert h.cache.placer.restricted_classes == {"native", "strictest", "qa"}
        assert owners(h, NIAH) == ["initial"] * DEEP
        for hint in (NATIVE, QA, None, {"task": "other"}, {"task": 3}):
            assert owners(h, hint) == []

    def test_restricted_request_recomputes_and_is_cached_apart(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        assert h.run(PREFIX, hint=NATIVE).matched == 0
        assert owners(h, NATIVE) == ["B"] * 64
        assert owners(h, NIAH) == ["initial"] * DEEP
        assert owners(h, QA) == []
        h.check_slots()

    def test_class_whose_limit_nothing_exceeds_is_not_restricted(self, h: Harness) -> None:
        h.run(PREFIX[:SHALLOW])
        h.update(TO_B)
        assert h.cache.placer.restricted_classes == {"native"}
        assert owners(h, QA, PREFIX[:SHALLOW]) == ["initial"] * SHALLOW

    def test_waiting_request_is_placed_by_the_plan_that_came_meanwhile(self, h: Harness) -> None:
        h.run(PREFIX)
        waiting = h.request(PREFIX, hint=NATIVE)
        assert int(h.match(waiting, 63).device_prefix_len) == 63 // h.page_size * h.page_size
        h.update(TO_B)
        assert int(h.match(waiting, 63).device_prefix_len) == 0
        h.cache.reset()
        h.allocator.clear()
        h.match(waiting, 63)
        assert waiting.extra_key is None

    def test_running_request_stays_where_it_is(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        running = h.start(PREFIX, hint=NATIVE)
        namespace = running.req.extra_key
        h.update(plan("B", B={"niah": UNLIMITED, "qa": UNLIMITED}))
        h.cache.placer.restricted_classes = frozenset()
        h.match(running.req)
        assert running.req.extra_key == namespace
        h.finish(running)
        h.check_slots()

    @pytest.mark.parametrize("forged", ["xver:niah|", "xver:niah", "xver:|x"])
    def test_forged_namespace_leads_nowhere(self, h: Harness, forged: str) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        h.run(PREFIX, hint=QA)
        h.run(PREFIX, hint=NATIVE, extra_key=forged)
        assert owners(h, QA) == ["B"] * 64
        reads = h.reads(PREFIX, hint=NATIVE, extra_key=forged)
        assert [content.own for content in reads] == ["B"] * 64
        assert h.reads(PREFIX, hint=QA, extra_key=forged) == []

    def test_clients_own_namespaces_stay_apart(self, h: Harness) -> None:
        h.run(PREFIX, extra_key="tenant1")
        h.update(TO_B)
        assert h.reads(PREFIX, hint=NIAH, extra_key="tenant2") == []
        assert len(h.reads(PREFIX, hint=NIAH, extra_key="tenant1")) == DEEP
        h.run(PREFIX, hint=NATIVE, extra_key="tenant1")
        assert h.reads(PREFIX, hint=NATIVE, extra_key="tenant2") == []
        assert len(h.reads(PREFIX, hint=NATIVE, extra_key="tenant1")) == 64


class TestNextUpdate:
    def test_each_namespace_is_judged_by_its_own_limits(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        h.run(PREFIX, hint=NATIVE)
        h.run(PREFIX, hint=QA)
        h.run(PREFIX, hint=None)
        h.update(plan("C", initial={"niah": DEEP, "qa": 0}, B={"niah": DEEP, "qa": SHALLOW}))
        assert owners(h, NIAH) == ["initial"] * DEEP
        assert owners(h, NATIVE) == []
        assert owners(h, QA) == ["B"] * SHALLOW
        assert owners(h, None) == ["B"] * SHALLOW
        h.check_slots()

    def test_rollback_makes_a_native_namespace_native_again(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        h.run(PREFIX, hint=NATIVE)
        same = {"niah": UNLIMITED, "qa": UNLIMITED}
        h.update(plan("B", initial={"niah": DEEP, "qa": 0}, B=same))
        assert owners(h, NATIVE) == ["B"] * 64

    def test_without_a_rule_nothing_stays_in_any_namespace(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        for hint in (NATIVE, QA, None):
            h.run(PREFIX, hint=hint)
        change = h.update(plan("C"))
        assert change.kept_tokens == 0
        assert h.cache.placer.restricted_classes == frozenset()
        for hint in (NATIVE, QA, None, NIAH):
            assert owners(h, hint) == []

    def test_condemning_all_lifts_the_restrictions(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        h.run(PREFIX, hint=NATIVE)
        h.cache.condemn_all()
        assert h.cache.placer.restricted_classes == frozenset()
        assert owners(h, NATIVE) == owners(h, NIAH) == []


class TestSplit:
    def kept_old(self, h: Harness, tokens: tuple[int, ...], hint: Any) -> int:
        request = h.request(tokens, hint=hint)
        h.match(request)
        return int(request.xver_kept_old_tokens)

    def test_old_and_hybrid_count_as_old(self, h: Harness) -> None:
        h.run(PREFIX)
        assert self.kept_old(h, PREFIX, NIAH) == 0
        h.update(TO_B)
        longer = PREFIX + tuple(range(32))
        h.run(longer, hint=NIAH)
        assert self.kept_old(h, longer, NIAH) == 96
        h.run(PREFIX, hint=NATIVE)
        assert self.kept_old(h, PREFIX, NATIVE) == 0

    def test_count_stays_once_the_prefill_was_scheduled(self, h: Harness) -> None:
        h.run(PREFIX)
        h.update(TO_B)
        running = h.start((*PREFIX, 1, 2), hint=NIAH)
        h.update(plan("C"))
        h.match(running.req)
        assert running.req.xver_kept_old_tokens == 64
        h.finish(running, publish=False)

    def test_mode_observe_counts_old_kv_though_no_plan_kept_it(self, h: Harness) -> None:
        h.cache.counts_foreign = True
        h.run(PREFIX)
        h.core.epochs.advance("B")
        assert self.kept_old(h, PREFIX, NIAH) == 64
