"""Faults in a live server: nothing old is read, the server goes on, and the reason is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from examples.testbed.process import SglangServer
from tests.e2e.driver import Driver, prompt
from tests.e2e.faulty_plugin import Faults, install
from tests.e2e.support import Models, server_environment
from tests.support.faulty_service import HANGS, FaultyService

pytestmark = pytest.mark.e2e

PREFIX_TOKENS = 300
TIMEOUT_MS = 1500


class Faulty(NamedTuple):
    """A server whose functions and whose service fail on demand."""

    driver: Driver
    faults: Faults
    service: FaultyService
    main_pid: int


@pytest.fixture(scope="module")
def stack(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    environment = install(folder)
    with FaultyService() as service:
        environment |= server_environment(service.address, TIMEOUT_MS=str(TIMEOUT_MS))
        with SglangServer(models.base, folder / "server.log", environment=environment) as server:
            driver = Driver(server.wait_ready().url)
            yield Faulty(driver, Faults(folder), service, server.pid)


@pytest.fixture
def faulty(stack: Faulty, models: Models) -> Faulty:
    stack.service.mode = "keep"
    stack.driver.reset_to(models.base)
    return stack


def failures(driver: Driver) -> int:
    return sum(driver.status()["failures"].values())


def assert_next_update_keeps(driver: Driver, models: Models) -> None:
    """What is computed from now on is known again, and a good update keeps it."""
    driver.reset_to(models.base)
    tokens = prompt(99, PREFIX_TOKENS)
    driver.generate(tokens)
    assert driver.update(models.good).xver["action"] == "KEEP"
    assert driver.generate(tokens).cached_tokens == PREFIX_TOKENS - 1


class TestApply:
    @pytest.mark.parametrize(
        "name",
        ["plan_walk", "matching_plan", "condemn", "purge", "remove_leaf", "release_slots"],
    )
    def test_scheduler_evicts_and_lives(self, faulty: Faulty, models: Models, name: str) -> None:
        driver, tokens = faulty.driver, prompt(1, PREFIX_TOKENS)
        driver.generate(tokens)
        faulty.service.mode = "keep" if name in ("plan_walk", "matching_plan") else "no_answer"
        before = failures(driver)
        with faulty.faults.arm(name):
            reply = driver.update(models.good)
        assert reply.success
        assert (reply.xver["reason"], reply.xver["kept_tokens"]) == ("APPLY_RAISED", "0")
        assert faulty.main_pid not in faulty.faults.hit_pids()
        assert failures(driver) > before
        faulty.service.mode = "keep"
        assert driver.generate(tokens).cached_tokens == 0
        assert_next_update_keeps(driver, models)

    def test_report_that_fails_changes_nothing(self, faulty: Faulty, models: Models) -> None:
        driver, tokens = faulty.driver, prompt(2, PREFIX_TOKENS)
        driver.generate(tokens)
        with faulty.faults.arm("record"):
            assert driver.update(models.good).success
        assert driver.status()["failures"]["REPORT_RAISED"] == 1
        assert driver.generate(tokens).cached_tokens == PREFIX_TOKENS - 1

    def test_status_that_fails_costs_the_plan_only(self, faulty: Faulty, models: Models) -> None:
        driver, tokens = faulty.driver, prompt(3, PREFIX_TOKENS)
        driver.generate(tokens)
        with faulty.faults.arm("status"):
            assert "xver" not in driver.http.get("/server_info").json()["internal_states"][0]
            reply = driver.update(models.good)
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "NO_PLAN")
        assert driver.generate(tokens).cached_tokens == 0
        assert_next_update_keeps(driver, models)


class TestRequests:
    """Kept old KV is in the tree, so every check on the way of a request is on."""

    @pytest.fixture
    def tokens(self, faulty: Faulty, models: Models) -> list[int]:
        """Tokens whose KV was kept by an update."""
        tokens = prompt(4, PREFIX_TOKENS)
        faulty.driver.generate(tokens)
        assert faulty.driver.update(models.good).xver["action"] == "KEEP"
        return tokens

    def test_placement(self, faulty: Faulty, models: Models, tokens: list[int]) -> None:
        with faulty.faults.arm("place"):
            assert faulty.driver.generate(tokens).cached_tokens == 0
        assert_next_update_keeps(faulty.driver, models)

    @pytest.mark.parametrize("name", ["foreign_overlap", "remove_leaf"])
    def test_native_recompute(
        self, faulty: Faulty, models: Models, tokens: list[int], name: str
    ) -> None:
        """It stays on its own KV though the insert breaks, before or while the tree heals."""
        driver = faulty.driver
        with faulty.faults.arm(name):
            native = driver.generate(tokens, 16, logprob_start_len=0)
        assert native.cached_tokens == 0
        again = driver.generate(tokens, 16, logprob_start_len=0)
        assert again.tokens == native.tokens
        assert driver.generate(tokens, 16).tokens == native.tokens
        assert_next_update_keeps(driver, models)


class TestMainProcess:
    @pytest.mark.parametrize(
        "name, reason", [("prepare", "NO_PLAN"), ("conclude", "ALL_CRITERIA_PASS")]
    )
    def test_evicts_and_answers(
        self, faulty: Faulty, models: Models, name: str, reason: str
    ) -> None:
        driver, tokens = faulty.driver, prompt(5, PREFIX_TOKENS)
        driver.generate(tokens)
        with faulty.faults.arm(name):
            reply = driver.update(models.good)
        assert reply.success
        assert reply.xver["reason"] == reason
        assert faulty.faults.hit_pids() == {faulty.main_pid}
        assert driver.generate(tokens).cached_tokens == 0
        assert_next_update_keeps(driver, models)


class TestService:
    @pytest.mark.parametrize(
        "mode, reason",
        [
            ("unavailable", "SERVICE_UNAVAILABLE"),
            (HANGS, "SERVICE_UNAVAILABLE"),
            ("invalid_argument", "SERVICE_ERROR"),
            ("garbage", "SERVICE_ERROR"),
            ("no_answer", "FAMILY_NOT_MEASURED"),
        ],
    )
    def test_evicts_and_says_why(
        self, faulty: Faulty, models: Models, mode: str, reason: str
    ) -> None:
        driver, tokens = faulty.driver, prompt(6, PREFIX_TOKENS)
        driver.generate(tokens)
        faulty.service.mode = mode
        reply = driver.update(models.good)
        assert reply.success
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", reason)
        assert driver.status()["updates"][f"EVICT:{reason}"] >= 1
        faulty.service.mode = "keep"
        assert driver.generate(tokens).cached_tokens == 0
        assert_next_update_keeps(driver, models)
