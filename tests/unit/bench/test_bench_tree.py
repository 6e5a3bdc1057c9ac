"""The tree benchmark runs on a small workload and reports what it measured; nothing is timed."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from examples.bench import plan_cost, request_cost, show, tree
from examples.bench.caches import PYTHON, RUST, VARIANTS, XVER, XVER_KEPT, BenchCache
from examples.bench.plan_cost import PlanCost, measure_plans
from examples.bench.request_cost import BlockTimes, RequestCost, measure_requests
from examples.bench.workload import Workload

SMALL = Workload(num_requests=12, num_prompts=2, prompt_tokens=(70, 140), suffix_tokens=(20, 90))


class TestWorkload:
    def test_every_request_is_a_prompt_and_a_suffix_of_its_own(self) -> None:
        prompts, requests = SMALL.prompts(), SMALL.requests()
        assert len(requests) == 12
        suffixes = set()
        for tokens in requests:
            (prompt,) = (p for p in prompts if tokens[: len(p)] == p)
            suffixes.add(tuple(tokens[len(prompt) :]))
        assert len(suffixes) == 12
        assert sum(map(len, requests)) <= 12 * (140 + 90)
        assert SMALL.requests() == requests


class TestRequestCost:
    @pytest.mark.parametrize("page_size", [1, 64])
    def test_every_variant_runs_every_block(self, page_size: int) -> None:
        cost = measure_requests(SMALL, page_size, rounds=2, block_requests=4)
        assert {name: len(blocks) for name, blocks in cost.blocks.items()} == dict.fromkeys(
            VARIANTS, 6
        )
        for blocks in cost.blocks.values():
            for block in blocks:
                for times in (block.match, block.insert, block.lock):
                    assert len(times) == 4
                    assert min(times) > 0

    def test_the_ratio_pairs_the_same_blocks(self) -> None:
        cost = RequestCost(page_size=1)
        cost.blocks = {
            RUST: [BlockTimes([90, 10], [100]), BlockTimes([1000], [900, 100]), BlockTimes([400])],
            XVER: [BlockTimes([200], [400]), BlockTimes([1000], [2000]), BlockTimes([400], [400])],
        }
        assert cost.ratio(XVER) == 2.0
        assert cost.ratio(RUST) == 1.0
        assert cost.microseconds(XVER, lambda block: block.insert) == pytest.approx(0.4)

    def test_a_variant_that_matches_otherwise_stops_the_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_block = request_cost._run_block

        def too_long(cache: BenchCache, requests: list[array[int]]) -> Any:
            times, lengths = run_block(cache, requests)
            return times, [size + (cache.variant == PYTHON) for size in lengths]

        monkeypatch.setattr(request_cost, "_run_block", too_long)
        with pytest.raises(RuntimeError, match="SGLang, Python core matched"):
            measure_requests(SMALL, 1, rounds=1, block_requests=4)


class TestKeptVariant:
    def test_prompts_are_old_and_stay_visible(self) -> None:
        cache = BenchCache(XVER_KEPT, 1, 2 * SMALL.max_tokens)
        cache.warm_up(SMALL.prompts())
        assert cache.cache.tree_core.has_foreign
        tokens = SMALL.requests()[0]
        result = cache.cache.match_prefix(cache.match_params(tokens))
        assert result.device_prefix_len in [len(prompt) for prompt in SMALL.prompts()]


class TestPlanCost:
    @pytest.mark.parametrize("page_size", [1, 64])
    def test_measures_full_trees(self, page_size: int) -> None:
        cost = measure_plans(SMALL, page_size, repetitions=2)
        assert [len(x) for x in (cost.keep_ms, cost.evict_ms, cost.flush_ms)] == [2, 2, 2]
        assert cost.num_nodes >= 12
        assert cost.num_tokens % page_size == 0
        assert cost.num_tokens > 0

    def test_a_plan_that_loses_slots_stops_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(BenchCache, "apply", lambda cache, plan: cache.allocator.alloc(3))
        with pytest.raises(RuntimeError, match="slots of"):
            measure_plans(SMALL, 1, repetitions=1)


class TestCommand:
    def test_prints_requirements_and_writes_the_figures(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(show, "MAX_RATIO", 1e9)
        monkeypatch.setattr(show, "KEEP_LIMIT_MS", 1e9)
        monkeypatch.setattr(plan_cost, "EVICT_LIMIT_EXTRA_MS", 1e9)
        path = tmp_path / "figures" / "tree.json"
        options = ["--requests", "20", "--rounds", "1", "--repetitions", "1", "--pages", "1"]
        assert tree.main([*options, "--json", str(path)]) == 0
        printed = capsys.readouterr().out
        for variant in VARIANTS:
            assert variant in printed
        assert f"page 1: {XVER}: match + insert: " in printed
        assert "not met" not in printed
        content = json.loads(path.read_text())
        assert [row["cache"] for row in content["requests"]] == list(VARIANTS)
        assert len(content["requirements"]) == 4
        assert all(verdict["is_met"] for verdict in content["requirements"])

    def test_a_requirement_that_is_not_met_fails_the_command(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(show, "KEEP_LIMIT_MS", 0.0)
        options = ["--requests", "20", "--rounds", "1", "--repetitions", "1", "--pages", "1"]
        assert tree.main(options) == 1
        assert "not met page 1: keep all" in capsys.readouterr().out

    def test_the_limit_for_evictions_follows_sglangs_flush(self) -> None:
        assert PlanCost(1, flush_ms=[90.0, 20.0, 30.0]).evict_limit_ms == 90.0
