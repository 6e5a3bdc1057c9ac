"""Hot reload on a real server: the verdict in the database decides what stays in the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from examples.testbed.process import SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, Generated, prompt
from tests.e2e.evidence import fingerprint, record
from tests.e2e.support import CompatServiceProcess, Models, Stack, server_environment

pytestmark = pytest.mark.e2e

PREFIX_TOKENS = 600
KEEP_MAX_TOKENS = 2048
CUT_TOKENS = 256
NOISE = 0.03
"""Log-probability difference that bf16 and another batch shape explain on the tiny models."""


@pytest.fixture(scope="module")
def stack(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = SglangServer(models.base, log, environment=server_environment(service.address))
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good)
        record(client, driver.status(), models.base, models.bad, harmful=120)
        record(client, driver.status(), models.good, models.bad, prefix_tokens_max=CUT_TOKENS)
        yield Stack(server, service, driver, client)


@pytest.fixture
def driver(stack: Stack, models: Models) -> Driver:
    stack.driver.reset_to(models.base)
    return stack.driver


class Background:
    """A request that runs while the test does something else."""

    def __init__(self, driver: Driver, tokens: list[int], new_tokens: int) -> None:
        self.result: Generated | None = None
        self._driver = Driver(str(driver.http.base_url))
        self._thread = threading.Thread(target=self._run, args=(tokens, new_tokens), daemon=True)
        self._thread.start()

    def _run(self, tokens: list[int], new_tokens: int) -> None:
        self.result = self._driver.generate(tokens, new_tokens)

    def wait(self) -> Generated:
        self._thread.join(120)
        assert self.result is not None
        return self.result


class TestKeep:
    def test_warm_cache_survives_a_proven_update(self, driver: Driver, models: Models) -> None:
        """The five-run proof: cold and warm on the old weights, warm after, cold and warm new."""
        tokens = prompt(1, PREFIX_TOKENS)
        cold = driver.generate(tokens)
        warm = driver.generate(tokens)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, PREFIX_TOKENS - 1)
        reply = driver.update(models.good, weight_version="good")
        assert reply.success
        assert reply.xver["action"] == "KEEP"
        assert reply.xver["reason"] == "ALL_CRITERIA_PASS"
        assert reply.xver["decision_id"].startswith("dec_")
        assert int(reply.xver["kept_tokens"]) >= PREFIX_TOKENS
        assert driver.generate(tokens).cached_tokens == PREFIX_TOKENS - 1
        driver.flush()
        assert driver.generate(tokens).cached_tokens == 0
        assert driver.generate(tokens).cached_tokens == PREFIX_TOKENS - 1

    def test_old_and_new_tokens_are_told_apart(self, driver: Driver, models: Models) -> None:
        tokens = prompt(2, PREFIX_TOKENS)
        driver.generate(tokens, 1)
        driver.update(models.good)
        driver.generate(tokens + prompt(3, 50), 1)
        sizes = driver.status()["tokens_by_epoch"]
        assert sizes["initial"] == PREFIX_TOKENS
        assert sizes[fingerprint(models.good)] >= 50

    def test_same_bytes_keep_everything(self, driver: Driver, models: Models) -> None:
        tokens = prompt(4, PREFIX_TOKENS)
        before = driver.generate(tokens)
        reply = driver.update(models.base, weight_version="another-label")
        assert reply.xver["action"] == "SAME"
        after = driver.generate(tokens)
        assert after.cached_tokens == PREFIX_TOKENS - 1
        assert after.tokens == before.tokens


class TestEvict:
    def test_harmful_update(self, driver: Driver, models: Models) -> None:
        tokens = prompt(5, PREFIX_TOKENS)
        driver.generate(tokens)
        reply = driver.update(models.bad)
        assert reply.xver["action"] == "EVICT"
        assert reply.xver["reason"].startswith("HFR")
        assert int(reply.xver["evicted_tokens"]) >= PREFIX_TOKENS
        assert driver.generate(tokens).cached_tokens == 0

    def test_unmeasured_pair_even_without_a_flush(self, driver: Driver, models: Models) -> None:
        driver.reset_to(models.bad)
        tokens = prompt(6, PREFIX_TOKENS)
        driver.generate(tokens)
        reply = driver.update(models.base, flush_cache=False)
        assert reply.success
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "NO_EVIDENCE")
        assert driver.generate(tokens).cached_tokens == 0

    def test_never_chained(self, driver: Driver, models: Models) -> None:
        """base -> good keeps, good -> bad keeps; base KV under bad was measured as harmful."""
        tokens = prompt(7, 200)
        driver.generate(tokens)
        assert driver.update(models.good).xver["action"] == "KEEP"
        fresh = prompt(8, 200)
        driver.generate(fresh)
        driver.update(models.bad)
        assert driver.generate(tokens).cached_tokens == 0
        assert driver.generate(fresh).cached_tokens == 199

    def test_depth_cut(self, driver: Driver, models: Models) -> None:
        driver.reset_to(models.good)
        tokens = prompt(9, PREFIX_TOKENS)
        driver.generate(tokens)
        reply = driver.update(models.bad)
        assert reply.xver["kept_tokens"] == str(CUT_TOKENS)
        assert driver.generate(tokens).cached_tokens == CUT_TOKENS


class TestRunningRequests:
    def test_straddler_is_not_published(self, driver: Driver, models: Models) -> None:
        tokens = prompt(10, PREFIX_TOKENS)
        driver.generate(tokens, 1)
        extended = tokens + prompt(11, 40)
        background = Background(driver, extended, 400)
        _wait_running(driver)
        driver.pause("in_place")
        reply = driver.update(models.good)
        driver.resume()
        assert reply.success
        assert reply.xver["action"] == "KEEP"
        assert int(reply.xver["straddling_requests"]) == 1
        result = background.wait()
        assert len(result.tokens) == 400
        # What the base prefilled before the update is there, nothing that was decoded across it.
        again = driver.generate(extended + result.tokens)
        assert again.cached_tokens == len(extended)

    def test_flush_that_sglang_would_refuse(self, driver: Driver, models: Models) -> None:
        tokens = prompt(12, PREFIX_TOKENS)
        driver.generate(tokens, 1)
        background = Background(driver, tokens + prompt(13, 40), 400)
        _wait_running(driver)
        driver.pause("in_place")
        reply = driver.update(models.bad)
        driver.resume()
        assert reply.success
        assert reply.xver["action"] == "EVICT"
        assert int(reply.xver["blocked_tokens"]) >= PREFIX_TOKENS
        assert driver.generate(tokens).cached_tokens == 0
        background.wait()
        driver.wait_for("blocked_tokens", 0)
        assert driver.generate(tokens).cached_tokens in (0, PREFIX_TOKENS - 1)
        assert set(driver.status()["tokens_by_epoch"]) == {fingerprint(models.bad)}

    def test_retracted_request_finishes_on_the_new_weights(
        self, driver: Driver, models: Models
    ) -> None:
        background = Background(driver, prompt(14, PREFIX_TOKENS), 400)
        _wait_running(driver)
        driver.pause("retract")
        reply = driver.update(models.bad)
        driver.resume()
        assert reply.success
        assert len(background.wait().tokens) == 400
        assert set(driver.status()["tokens_by_epoch"]) <= {fingerprint(models.bad)}


def _wait_running(driver: Driver) -> None:
    deadline = time.monotonic() + 30
    while True:
        loads: Any = driver.http.get("/v1/loads").json()["loads"]
        if sum(load["num_running_reqs"] for load in loads) > 0:
            return
        assert time.monotonic() < deadline, "the background request never ran"
        time.sleep(0.05)


class TestNativeRecompute:
    """Trap T1 against a freshly started target server."""

    def test_native_request_equals_a_fresh_server(
        self, driver: Driver, models: Models, fresh_target: Driver
    ) -> None:
        tokens = prompt(15, PREFIX_TOKENS)
        driver.generate(tokens, 1)
        assert driver.update(models.good).xver["action"] == "KEEP"
        native = driver.generate(tokens, 32, logprob_start_len=0)
        assert native.cached_tokens == 0
        reference = fresh_target.generate(tokens, 32, logprob_start_len=0)
        assert native.tokens == reference.tokens
        worst = max(abs(a[1] - b[1]) for a, b in zip(native.top1, reference.top1, strict=True))
        assert worst < NOISE
        # The tree healed: what the native request computed is what later requests read.
        assert set(driver.status()["tokens_by_epoch"]) == {fingerprint(models.good)}

    def test_reuse_differs_from_native_so_the_test_above_can_fail(
        self, driver: Driver, models: Models, fresh_target: Driver
    ) -> None:
        tokens = prompt(15, PREFIX_TOKENS)
        driver.generate(tokens, 1)
        driver.update(models.good)
        reused = driver.generate(tokens, 32)
        reference = fresh_target.generate(tokens, 32, logprob_start_len=0)
        assert reused.cached_tokens == PREFIX_TOKENS - 1
        differences = [abs(a[1] - b[1]) for a, b in zip(reused.top1, reference.top1, strict=True)]
        assert reused.tokens != reference.tokens or max(differences) > NOISE


@pytest.fixture(scope="module")
def fresh_target(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("target") / "server.log"
    environment = server_environment(service.address, MODE="off")
    with SglangServer(models.good, log, environment=environment) as server:
        yield Driver(server.wait_ready().url)


class TestModeOff:
    def test_sglang_flushes_as_ever(self, fresh_target: Driver, models: Models) -> None:
        tokens = prompt(16, PREFIX_TOKENS)
        fresh_target.generate(tokens)
        reply = fresh_target.update(models.base)
        assert reply.success
        assert reply.xver == {}
        assert fresh_target.generate(tokens).cached_tokens == 0

    def test_sglang_keeps_all_without_a_flush(self, fresh_target: Driver, models: Models) -> None:
        tokens = prompt(17, PREFIX_TOKENS)
        fresh_target.generate(tokens)
        fresh_target.update(models.bad, flush_cache=False)
        assert fresh_target.generate(tokens).cached_tokens == PREFIX_TOKENS - 1


class TestBadInput:
    def test_missing_checkpoint(self, driver: Driver) -> None:
        tokens = prompt(18, 100)
        driver.generate(tokens)
        reply = driver.update("/nonexistent/checkpoint")
        assert reply.status == 400
        assert "/nonexistent/checkpoint" in reply.message
        assert "Weights were not touched" in reply.message
        assert driver.generate(tokens).cached_tokens == 99

    def test_other_shapes(self, driver: Driver, models: Models) -> None:
        tokens = prompt(19, 100)
        driver.generate(tokens)
        reply = driver.update(models.other_shape)
        assert reply.status == 400
        assert "has shape" in reply.message
        assert driver.generate(tokens).cached_tokens == 99

    def test_forged_plan(self, driver: Driver) -> None:
        body = {"server_args": {'xver_plan:{"version":1}': 1}}
        assert driver.http.post("/set_internal_state", json=body).json() == [False]


class TestServiceDown:
    def test_evicts_and_says_why(self, stack: Stack, driver: Driver, models: Models) -> None:
        tokens = prompt(20, PREFIX_TOKENS)
        driver.generate(tokens)
        stack.service.stop()
        reply = driver.update(models.good)
        assert reply.success
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "SERVICE_UNAVAILABLE")
        assert driver.generate(tokens).cached_tokens == 0
