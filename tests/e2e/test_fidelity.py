"""What a request may reuse is its own choice: task families, native requests, what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.testbed.process import CompatServiceProcess, SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, prompt
from tests.e2e.evidence import record
from tests.e2e.support import Models, server_environment

pytestmark = pytest.mark.e2e

PREFIX_TOKENS = 300
SHALLOW_TOKENS = 128
NIAH = {"task": "niah"}
NATIVE = {"fidelity": "native"}


Hint = dict[str, str] | None


def ask(driver: Driver, tokens: list[int], hint: Hint, new_tokens: int = 2) -> dict[str, Any]:
    """Send one greedy request with a hint; None sends none."""
    body = driver.payload(tokens, new_tokens)
    if hint is not None:
        body["sampling_params"]["custom_params"] = {"xver": hint}
    answer: dict[str, Any] = driver.http.post("/generate", json=body).raise_for_status().json()
    return answer


@pytest.fixture(scope="module")
def server_driver(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("fidelity") / "server.log"
    environment = server_environment(service.address, TASK_FAMILIES="niah,qa")
    server = SglangServer(
        models.base,
        log,
        arguments=("--enable-metrics", "--enable-cache-report"),
        environment=environment,
    )
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good)
        record(
            client,
            driver.status(),
            models.base,
            models.good,
            prefix_tokens_max=SHALLOW_TOKENS,
            family="qa",
        )
        yield driver


@pytest.fixture
def driver(server_driver: Driver, models: Models) -> Driver:
    server_driver.reset_to(models.base)
    return server_driver


def split(driver: Driver, tokens: list[int], hint: Hint) -> tuple[int, int]:
    """Return (native, kept-old) cached tokens of a request for ``tokens``."""
    meta = ask(driver, tokens, hint)["meta_info"]
    details = meta["cached_tokens_details"] or {"native": 0, "kept_old": 0, "remapped": 0}
    assert details["native"] + details["kept_old"] == meta["cached_tokens"]
    assert details.get("remapped", 0) == 0
    return details["native"], details["kept_old"]


class TestSplit:
    def test_five_run_proof(self, driver: Driver, models: Models) -> None:
        """Cold and warm on the old weights, warm after the update, cold and warm on the new."""
        tokens = prompt(1, PREFIX_TOKENS)
        everything = PREFIX_TOKENS - 1
        assert split(driver, tokens, NIAH) == (0, 0)
        assert split(driver, tokens, NIAH) == (everything, 0)
        assert driver.update(models.good).xver["action"] == "KEEP"
        assert split(driver, tokens, NIAH) == (0, everything)
        driver.flush()
        assert split(driver, tokens, NIAH) == (0, 0)
        assert split(driver, tokens, NIAH) == (everything, 0)

    def test_what_was_computed_on_old_kv_counts_as_old(
        self, driver: Driver, models: Models
    ) -> None:
        tokens = prompt(2, PREFIX_TOKENS)
        driver.generate(tokens)
        driver.update(models.good)
        longer = tokens + prompt(3, 40)
        ask(driver, longer, NIAH)
        assert split(driver, longer, NIAH) == (0, len(longer) - 1)


class TestClasses:
    def test_native_recomputes_and_is_cached_apart(self, driver: Driver, models: Models) -> None:
        tokens = prompt(4, PREFIX_TOKENS)
        driver.generate(tokens)
        driver.update(models.good)
        assert split(driver, tokens, NATIVE) == (0, 0)
        assert split(driver, tokens, NATIVE) == (PREFIX_TOKENS - 1, 0)
        assert split(driver, tokens, NIAH) == (0, PREFIX_TOKENS - 1)
        status = driver.status()
        assert status["kept_old_tokens"] >= PREFIX_TOKENS - 1
        assert status["restricted_classes"] == ["native", "qa", "strictest"]

    @pytest.mark.parametrize("request_hint", [{"task": "qa"}, None, {"task": "undeclared"}])
    def test_stricter_family_no_hint_and_unknown_family_recompute(
        self, driver: Driver, models: Models, request_hint: Hint
    ) -> None:
        """The branch is deeper than what the stricter family may reuse."""
        tokens = prompt(5, PREFIX_TOKENS)
        driver.generate(tokens)
        driver.update(models.good)
        assert split(driver, tokens, request_hint) == (0, 0)
        assert split(driver, tokens, request_hint) == (PREFIX_TOKENS - 1, 0)

    def test_nobody_is_restricted_where_all_may_see_what_stays(
        self, driver: Driver, models: Models
    ) -> None:
        tokens = prompt(6, SHALLOW_TOKENS - 8)
        driver.generate(tokens)
        driver.update(models.good)
        assert driver.status()["restricted_classes"] == ["native"]
        assert split(driver, tokens, None) == (0, SHALLOW_TOKENS - 9)

    def test_native_output_equals_that_of_the_new_weights_alone(
        self, driver: Driver, models: Models
    ) -> None:
        tokens = prompt(7, PREFIX_TOKENS)
        driver.generate(tokens)
        driver.update(models.good)
        native = ask(driver, tokens, NATIVE, 24)
        driver.reset_to(models.good)
        assert ask(driver, tokens, None, 24)["output_ids"] == native["output_ids"]

    def test_classes_share_one_cache_before_any_update(self, driver: Driver) -> None:
        tokens = prompt(8, PREFIX_TOKENS)
        ask(driver, tokens, NIAH)
        for other in (NATIVE, {"task": "qa"}, None):
            assert split(driver, tokens, other) == (PREFIX_TOKENS - 1, 0)


class TestRoutes:
    @pytest.fixture
    def updated(self, driver: Driver, models: Models) -> Driver:
        driver.http.post("/v1/completions", json=self.body()).raise_for_status()
        assert driver.update(models.good).xver["action"] == "KEEP"
        return driver

    def body(self, **extra: Any) -> dict[str, Any]:
        return {
            "model": "any",
            "prompt": prompt(9, PREFIX_TOKENS),
            "max_tokens": 2,
            "temperature": 0,
            "return_cached_tokens_details": True,
            **extra,
        }

    @pytest.mark.parametrize("fields, cached", [(NIAH, PREFIX_TOKENS - 1), (NATIVE, 0)])
    def test_completions(self, updated: Driver, fields: dict[str, str], cached: int) -> None:
        body = self.body(custom_params={"xver": fields})
        answer = updated.http.post("/v1/completions", json=body).raise_for_status().json()
        details = answer["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
        assert details["cached_tokens"] == cached

    def test_chat(self, updated: Driver) -> None:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": "one two three"}],
            "input_ids": prompt(9, PREFIX_TOKENS),
            "max_tokens": 2,
            "custom_params": {"xver": {"fidelity": "exact"}},
        }
        answer = updated.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "'exact'" in answer.text

    @pytest.mark.parametrize("value", ["niah", {"task": 7}, {"tasks": "niah"}])
    def test_malformed_hint_is_refused(self, updated: Driver, value: Any) -> None:
        body = {
            "input_ids": prompt(9, 50),
            "sampling_params": {"custom_params": {"xver": value}, "max_new_tokens": 1},
        }
        answer = updated.http.post("/generate", json=body)
        assert answer.status_code == 400
        assert "custom_params['xver'] is malformed" in answer.text


def samples(driver: Driver) -> dict[tuple[str, ...], float]:
    """Return this plugin's Prometheus samples by name and label values."""
    text = driver.http.get("/metrics/").raise_for_status().text
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "model_name")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("xver_")
    }


def test_metrics_tell_the_truth(driver: Driver, models: Models) -> None:
    tokens = prompt(10, PREFIX_TOKENS)
    ask(driver, tokens, NIAH)
    before = samples(driver)
    driver.update(models.good)
    ask(driver, tokens, NIAH)
    driver.update(models.good)
    after = samples(driver)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("xver_updates_total", "KEEP", "ALL_CRITERIA_PASS") == 1
    assert grown("xver_updates_total", "SAME", "SAME_FINGERPRINT") == 1
    assert grown("xver_cached_tokens_total", "kept_old") == PREFIX_TOKENS - 1
    assert grown("xver_cached_tokens_total", "native") == 0
    assert grown("xver_plan_apply_milliseconds_count") == 2
    status = driver.status()
    for state in ("native", "hybrid", "kept_old", "blocked"):
        assert after["xver_tree_tokens", state] == status[f"{state}_tokens"]
    assert after["xver_tree_tokens_by_age", "1"] == status["kept_old_tokens"] > 0
    assert after["xver_oldest_age_updates",] == 1
    assert after["xver_tree_events_total", "healed_node"] == status["healed_nodes"]
