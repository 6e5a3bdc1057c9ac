"""Two tensor-parallel ranks apply one plan at one point of the request stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, prompt
from tests.e2e.evidence import record
from tests.e2e.support import Models, server_environment

pytestmark = pytest.mark.e2e

CUT_TOKENS = 256


@pytest.fixture(scope="module")
def driver(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("tp2") / "server.log"
    environment = server_environment(service.address) | {
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
    }
    server = SglangServer(models.base, log, arguments=("--tp-size", "2"), environment=environment)
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good, prefix_tokens_max=CUT_TOKENS)
        yield driver


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
