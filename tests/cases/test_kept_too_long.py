"""Old KV that stays for longer, or passes for something better, than it may."""

from __future__ import annotations

import pytest

from tests.cases.case import Case
from tests.cases.conftest import MAX_AGE_UPDATES, Versions
from tests.e2e.driver import prompt

pytestmark = pytest.mark.e2e

PREFIX_TOKENS = 200
WARM = PREFIX_TOKENS - 1
HITS, AT_ONCE = 1000, 250


class TestK01ImmortalPrefix:
    """A hit refreshes the place of a stale node; a popular system prompt never went away."""

    def hit(self, case: Case, tokens: list[int]) -> None:
        for _ in range(HITS // AT_ONCE):
            assert set(case.read_many(tokens, AT_ONCE)) == {WARM}

    def test_popular_old_prefix_obeys_the_plan(self, case: Case, versions: Versions) -> None:
        tokens = prompt(1, PREFIX_TOKENS)
        case.read(tokens)
        assert case.driver.update(versions.second).xver["action"] == "KEEP"
        self.hit(case, tokens)
        assert case.read(tokens).kept_old == WARM
        reply = case.driver.update(versions.harmful)
        assert reply.xver["action"] == "EVICT"
        assert case.read(tokens).cached == 0

    def test_popular_old_prefix_obeys_the_age_bound(self, case: Case, versions: Versions) -> None:
        tokens = prompt(2, PREFIX_TOKENS)
        case.read(tokens)
        for turn in range(MAX_AGE_UPDATES):
            case.driver.update(versions.second if turn % 2 == 0 else versions.third)
            assert set(case.read_many(tokens, AT_ONCE)) == {WARM}
        case.driver.update(versions.third if MAX_AGE_UPDATES % 2 else versions.second)
        assert case.read(tokens).cached == 0


class TestK02MixedInsert:
    """A request that ran across the update published old prefix and new suffix as one."""

    @pytest.mark.parametrize("target", ["second", "harmful"])
    def test_decoded_across_the_update(self, case: Case, versions: Versions, target: str) -> None:
        tokens = prompt(3, PREFIX_TOKENS)
        with case.running(tokens, 300) as running:
            case.driver.pause("in_place")
            reply = case.driver.update(getattr(versions, target))
            case.driver.resume()
            assert reply.xver["straddling_requests"] == "1"
            read = running.result(60)
        again = case.read(tokens + read.output)
        assert again.native == 0
        # What the prefill published before the update is all that may be there.
        assert again.kept_old == (PREFIX_TOKENS if target == "second" else 0)

    def test_suffix_on_kept_kv_is_not_pure(self, case: Case, versions: Versions) -> None:
        tokens, tail = prompt(4, PREFIX_TOKENS), prompt(5, 60)
        case.read(tokens)
        case.driver.update(versions.second)
        assert case.read(tokens + tail).kept_old == PREFIX_TOKENS
        again = case.read(tokens + tail)
        assert (again.native, again.kept_old) == (0, PREFIX_TOKENS + len(tail) - 1)

    def test_retracted_request_is_pure(self, case: Case, versions: Versions) -> None:
        tokens = prompt(6, PREFIX_TOKENS)
        with case.running(tokens, 300) as running:
            case.driver.pause("retract")
            case.driver.update(versions.harmful)
            case.driver.resume()
            read = running.result(60)
        again = case.read(tokens + read.output)
        assert again.kept_old == 0


class TestK03RefusedFlush:
    """A running request had the flush refused, and old KV was served on."""

    @pytest.mark.parametrize("flush", [True, False])
    def test_update_while_a_request_holds_the_prefix(
        self, case: Case, versions: Versions, flush: bool
    ) -> None:
        tokens = prompt(7, PREFIX_TOKENS)
        case.read(tokens)
        with case.running(tokens + prompt(8, 20), 400):
            case.driver.pause("in_place")
            reply = case.driver.update(versions.harmful, flush_cache=flush)
            assert not case.driver.try_flush()
            case.driver.resume()
            assert reply.success
            assert reply.xver["action"] == "EVICT"
            assert int(reply.xver["blocked_tokens"]) >= PREFIX_TOKENS
            assert case.read(tokens).cached == 0
            assert case.read(tokens + prompt(8, 20)).kept_old == 0
        case.driver.wait_for("blocked_tokens", 0)
        assert case.read(tokens).kept_old == 0

    def test_flush_without_an_update(self, case: Case, versions: Versions) -> None:
        """SGLang refuses it; what is there was computed by the weights that are served."""
        tokens = prompt(9, PREFIX_TOKENS)
        case.read(tokens)
        with case.running(tokens + prompt(8, 20), 200):
            assert not case.driver.try_flush()
            assert case.read(tokens).native == WARM
        assert case.driver.try_flush()
        assert case.read(tokens).cached == 0


class TestK05ReportedReuse:
    """Stale hits were counted as ordinary cached tokens: the proof in five runs."""

    def test_five_runs(self, case: Case, versions: Versions) -> None:
        tokens = prompt(10, PREFIX_TOKENS)
        cold_old = case.read(tokens, 32)
        warm_old = case.read(tokens, 32)
        assert case.driver.update(versions.second).xver["action"] == "KEEP"
        warm_after = case.read(tokens, 32)
        case.driver.flush()
        cold_new = case.read(tokens, 32)
        warm_new = case.read(tokens, 32)
        runs = (cold_old, warm_old, warm_after, cold_new, warm_new)
        assert [(run.native, run.kept_old) for run in runs] == [
            (0, 0),
            (WARM, 0),
            (0, WARM),
            (0, 0),
            (WARM, 0),
        ]
        assert warm_old.output == cold_old.output
        assert warm_new.output == cold_new.output

    def test_evicted_reuse_is_no_reuse(self, case: Case, versions: Versions) -> None:
        tokens = prompt(11, PREFIX_TOKENS)
        case.read(tokens)
        case.driver.update(versions.harmful)
        assert case.read(tokens).cached == 0
        assert case.read(tokens).native == WARM

    def test_mixed_prefix_is_split_where_it_changes(self, case: Case, versions: Versions) -> None:
        """A branch of the new weights beside one of the old: each counts as what it is."""
        old, new = prompt(12, PREFIX_TOKENS), prompt(13, PREFIX_TOKENS)
        case.read(old)
        case.driver.update(versions.second)
        case.read(new)
        assert case.read(old).kept_old == WARM
        assert case.read(new).native == WARM


class TestK07Chain:
    """KV that was many updates old was still in use, and the drift grew."""

    def test_verdicts_are_not_chained(self, case: Case, versions: Versions) -> None:
        """base to second and second to harmful are safe; base to harmful is not."""
        first, second = prompt(14, PREFIX_TOKENS), prompt(15, PREFIX_TOKENS)
        case.read(first)
        assert case.driver.update(versions.second).xver["action"] == "KEEP"
        case.read(second)
        assert case.driver.update(versions.harmful).xver["action"] == "KEEP"
        assert case.read(first).cached == 0
        assert case.read(second).kept_old == WARM

    def test_hybrid_needs_a_verdict_for_each_of_its_parts(
        self, case: Case, versions: Versions
    ) -> None:
        tokens = prompt(16, PREFIX_TOKENS)
        case.read(tokens)
        case.driver.update(versions.second)
        case.read(tokens + prompt(17, 60))
        case.driver.update(versions.harmful)
        assert case.read(tokens + prompt(17, 60)).cached == 0

    def test_seventeen_updates(self, case: Case, versions: Versions) -> None:
        tokens = prompt(18, PREFIX_TOKENS)
        case.read(tokens)
        kept = []
        for turn in range(17):
            case.driver.update(versions.second if turn % 2 == 0 else versions.third)
            kept.append(case.driver.status()["tokens_by_epoch"].get("initial", 0))
        assert all(size > 0 for size in kept[:MAX_AGE_UPDATES])
        assert not any(kept[MAX_AGE_UPDATES:])
        assert case.read(tokens).cached == 0
