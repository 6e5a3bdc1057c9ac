"""Pages of 16 tokens, prefill in small chunks, and a pool so small that eviction never rests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.testbed.process import SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, prompt
from tests.e2e.evidence import record
from tests.e2e.support import CompatServiceProcess, Models, server_environment

pytestmark = pytest.mark.e2e

PAGE = 16
CUT_TOKENS = 200


@pytest.fixture(scope="module")
def driver(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("paged") / "server.log"
    server = SglangServer(
        models.base,
        log,
        arguments=("--page-size", str(PAGE), "--chunked-prefill-size", "64"),
        environment=server_environment(service.address),
        max_total_tokens=2048,
    )
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good, prefix_tokens_max=CUT_TOKENS)
        record(client, driver.status(), models.good, models.base, prefix_tokens_max=CUT_TOKENS)
        yield driver


def test_cut_is_page_aligned(driver: Driver, models: Models) -> None:
    driver.reset_to(models.base)
    tokens = prompt(1, 400)
    driver.generate(tokens)
    assert driver.update(models.good).xver["kept_tokens"] == str(CUT_TOKENS // PAGE * PAGE)
    assert driver.generate(tokens).cached_tokens == CUT_TOKENS // PAGE * PAGE


def test_chunked_prefill_through_a_declined_insert(driver: Driver, models: Models) -> None:
    """A request that recomputes natively, chunk by chunk, while another holds the old branch."""
    driver.reset_to(models.base)
    tokens = prompt(2, 160)
    driver.generate(tokens)
    driver.update(models.good)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(Driver(str(driver.http.base_url)).generate, tokens + prompt(3, 20), 200)
        native = driver.generate(tokens, 16, logprob_start_len=0)
        assert native.cached_tokens == 0
        assert len(native.tokens) == 16
        assert len(held.result(120).tokens) == 200
    assert driver.status()["blocked_tokens"] == 0
    again = driver.generate(tokens, 16, logprob_start_len=0)
    assert again.tokens == native.tokens


def test_updates_under_pressure_leak_nothing(driver: Driver, models: Models) -> None:
    driver.reset_to(models.base)
    url = str(driver.http.base_url)
    with ThreadPoolExecutor(4) as pool:
        for turn in range(6):
            jobs = [
                pool.submit(Driver(url).generate, prompt(turn % 3, 300) + prompt(50 + i, 100), 8)
                for i in range(4)
            ]
            target = models.good if turn % 2 == 0 else models.base
            assert driver.update(target).success
            for job in jobs:
                assert len(job.result(120).tokens) == 8
    status = driver.status()
    assert status["blocked_tokens"] == 0
    assert status["failures"] == {}
    # An idle SGLang checks its pool and ends itself on a leak; it must still serve afterwards.
    driver.flush()
    assert driver.generate(prompt(9, 1500), 1).cached_tokens == 0
