"""Two tensor-parallel ranks apply one plan at one point of the request stream."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, prompt
from tests.e2e.evidence import record
from tests.e2e.support import Models, server_environment

pytestmark = pytest.mark.e2e

TP_SIZE = 2
CUT_TOKENS = 256


class Ranks(NamedTuple):
    """A server of two ranks, and the log that both write."""

    driver: Driver
    log: Path

    def digests(self, name: str) -> list[str]:
        """Return the digest of each rank's tree."""
        body = {"server_args": {f"xver_audit:{name}": 1}}
        assert self.driver.http.post("/set_internal_state", json=body).json() == [True]
        pattern = re.compile(rf"xver audit {name}: digest (\w+)")
        self.driver.wait_until(
            lambda: len(pattern.findall(self.log.read_text())) == TP_SIZE,
            "every rank tells its digest",
        )
        return pattern.findall(self.log.read_text())


@pytest.fixture(scope="module")
def ranks(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    log = tmp_path_factory.mktemp("tp2") / "server.log"
    environment = server_environment(service.address) | {
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
    }
    server = SglangServer(
        models.base,
        log,
        arguments=("--tp-size", str(TP_SIZE)),
        environment=environment,
        max_total_tokens=3000,
    )
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good, prefix_tokens_max=CUT_TOKENS)
        record(client, driver.status(), models.good, models.base, prefix_tokens_max=CUT_TOKENS)
        yield Ranks(driver, log)


@pytest.fixture
def driver(ranks: Ranks) -> Driver:
    return ranks.driver


def test_keep_cut_and_evict(driver: Driver, models: Models) -> None:
    """Ranks that disagreed about a prefix would run different batch shapes and hang or differ."""
    driver.reset_to(models.base)
    tokens = prompt(1, 600)
    driver.generate(tokens)
    reply = driver.update(models.good)
    assert (reply.xver["action"], reply.xver["kept_tokens"]) == ("KEEP", str(CUT_TOKENS))
    assert driver.generate(tokens).cached_tokens == CUT_TOKENS
    assert driver.generate(tokens).cached_tokens == 599
    native = driver.generate(tokens, 16, logprob_start_len=0)
    assert native.cached_tokens == 0
    assert driver.update(models.bad).xver["action"] == "EVICT"
    assert driver.generate(tokens).cached_tokens == 0
    driver.reset_to(models.good)
    assert driver.generate(tokens, 16, logprob_start_len=0).tokens == native.tokens
    assert driver.status()["failures"] == {}


def test_layout_counts_every_head_once(driver: Driver) -> None:
    layout = driver.status()["layout"]
    assert layout["num_kv_heads"] == 2
    keys_and_values, bytes_per_value = 2, 2
    values = layout["num_kv_heads"] * layout["head_dim"] * layout["num_layers"]
    assert layout["bytes_per_token"] == keys_and_values * bytes_per_value * values


def test_trees_are_equal_after_a_random_workload(ranks: Ranks, models: Models) -> None:
    """Branching prompts, native requests, running requests at the update, a pool under pressure."""
    driver = ranks.driver
    driver.reset_to(models.base)
    rng = random.Random(5)
    prefixes = [prompt(seed, rng.randrange(200, 500)) for seed in range(4)]
    digests = []

    def one(number: int) -> int:
        tokens = rng.choice(prefixes)[: rng.randrange(100, 500)] + prompt(100 + number, 30)
        extra = {"logprob_start_len": 0} if number % 5 == 0 else {}
        client = Driver(str(driver.http.base_url))
        return len(client.generate(tokens, 6, **extra).tokens)

    with ThreadPoolExecutor(3) as pool:
        for turn in range(8):
            jobs = [pool.submit(one, 10 * turn + i) for i in range(6)]
            target = (models.good, models.base, models.bad, models.base)[turn % 4]
            assert driver.update(target, flush_cache=turn % 3 != 0).success
            assert [job.result(120) for job in jobs] == [6] * 6
            digests.append(ranks.digests(f"turn{turn}"))
    assert all(len(set(pair)) == 1 for pair in digests), digests
    assert len({pair[0] for pair in digests}) == len(digests), "the trees never changed"
    assert driver.status()["failures"] == {}
