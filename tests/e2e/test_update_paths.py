"""Every way to change weights that runs without a GPU, over HTTP; requests tell what stayed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, Generated, prompt
from tests.e2e.evidence import fingerprint, record
from tests.e2e.faulty_plugin import install
from tests.e2e.support import Models, server_environment
from tests.e2e.weights import NamedTensors, Reply, WeightClient, buckets, read_weights

pytestmark = pytest.mark.e2e

PREFIX_TOKENS = 300
WARM = PREFIX_TOKENS - 1
NOISE = 0.03
"""Log-probability difference that bf16 and another batch shape explain on the tiny models."""
DOWN = "model.layers.0.mlp.down_proj.weight"
OUT = "model.layers.0.self_attn.o_proj.weight"


@pytest.fixture(scope="module")
def server_driver(
    models: Models, service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("paths")
    environment = install(folder) | server_environment(service.address)
    server = SglangServer(models.base, folder / "server.log", environment=environment)
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), models.base, models.good)
        record(client, driver.status(), models.good, models.base)
        yield driver


@pytest.fixture
def driver(server_driver: Driver, models: Models) -> Driver:
    server_driver.reset_to(models.base)
    return server_driver


@pytest.fixture
def weights(driver: Driver) -> WeightClient:
    return WeightClient(driver.http)


@pytest.fixture
def tokens(driver: Driver) -> list[int]:
    """Tokens that the base weights have cached."""
    tokens = prompt(1, PREFIX_TOKENS)
    driver.generate(tokens)
    assert driver.generate(tokens).cached_tokens == WARM
    return tokens


def updates_counted(driver: Driver) -> int:
    return int(sum(driver.status()["updates"].values()))


def assert_same_distribution(first: Generated, second: Generated) -> None:
    assert first.tokens == second.tokens
    pairs = zip(first.top1, second.top1, strict=True)
    assert max(abs(one[1] - other[1]) for one, other in pairs) < NOISE


def assert_unknown_until_the_next_disk_update(driver: Driver, models: Models) -> None:
    """KV of unknown weights is evicted by the next update, and the one after that keeps again."""
    tokens = prompt(50, PREFIX_TOKENS)
    assert driver.status()["current_epoch"].startswith("unknown:")
    driver.generate(tokens)
    reply = driver.update(models.base)
    assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "UNKNOWN_VERSION")
    assert driver.generate(tokens).cached_tokens == 0
    assert driver.update(models.good).xver["action"] == "KEEP"
    assert driver.generate(tokens).cached_tokens == WARM


class TestTensorSession:
    def test_many_buckets(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        native = self._native(driver, models, tokens)
        before = updates_counted(driver)
        replies = weights.session(buckets(read_weights(models.good), 4), weight_version="trained")
        assert all(reply.success for reply in replies)
        assert [reply.xver for reply in replies[:-1]] == [{}, {}, {}, {}]
        assert replies[-1].xver["reason"] == "WEIGHTS_WRITTEN_IN_SESSION"
        # One decision when the session opens and one when it ends, however many the buckets.
        assert updates_counted(driver) == before + 2
        after = driver.generate(tokens, 16)
        assert after.cached_tokens == 0
        assert_same_distribution(after, native)
        assert_unknown_until_the_next_disk_update(driver, models)

    def _native(self, driver: Driver, models: Models, tokens: list[int]) -> Generated:
        driver.reset_to(models.good)
        native = driver.generate(tokens, 16)
        driver.reset_to(models.base)
        driver.generate(tokens)
        return native

    def test_what_ran_between_buckets_is_gone(
        self, driver: Driver, weights: WeightClient, models: Models
    ) -> None:
        between = [[first, *prompt(first, PREFIX_TOKENS)] for first in (20, 30, 40)]
        weights.begin()
        driver.generate(between[0])
        for bucket, text in zip(buckets(read_weights(models.good), 2), between[1:], strict=True):
            weights.tensors(bucket)
            driver.generate(text)
            assert driver.generate(text).cached_tokens == 0
        weights.end()
        assert [driver.generate(text).cached_tokens for text in between] == [0, 0, 0]

    def test_buckets_that_ask_for_no_flush(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        weights.session(buckets(read_weights(models.good), 2), flush_cache=False)
        assert driver.generate(tokens).cached_tokens == 0

    def test_bucket_outside_a_session_is_refused(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        before = updates_counted(driver)
        assert not weights.tensors(read_weights(models.good)[:1]).success
        assert not weights.end().success
        assert driver.generate(tokens).cached_tokens == WARM
        assert updates_counted(driver) == before

    def test_second_session_is_refused(
        self, driver: Driver, weights: WeightClient, tokens: list[int]
    ) -> None:
        assert weights.begin().success
        assert not weights.begin().success
        assert weights.end().success
        assert driver.generate(tokens).cached_tokens == 0

    def test_old_kv_is_invisible_as_soon_as_a_session_opens(
        self, driver: Driver, weights: WeightClient, tokens: list[int]
    ) -> None:
        """From here on somebody may write weights straight into memory, which nobody sees."""
        weights.begin()
        assert driver.status()["is_suspended"]
        assert driver.generate(tokens).cached_tokens == 0
        weights.end()
        assert not driver.status()["is_suspended"]

    def test_end_without_a_load(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        """Somebody may have written the weights straight into memory."""
        assert all(reply.success for reply in weights.session([]))
        assert driver.generate(tokens).cached_tokens == 0
        assert_unknown_until_the_next_disk_update(driver, models)


class TestBroadcast:
    def _send(self, weights: WeightClient, named_buckets: Sequence[NamedTensors]) -> list[Reply]:
        with weights.trainer_group() as trainer:
            weights.begin()
            replies = [trainer.send(bucket) for bucket in named_buckets]
            return [*replies, weights.end()]

    def test_many_buckets(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        replies = self._send(weights, buckets(read_weights(models.good), 3))
        assert all(reply.success for reply in replies)
        assert driver.generate(tokens).cached_tokens == 0

    def test_torn_bucket(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        """The first tensor of the bucket is loaded, the second has a wrong shape."""
        good = dict(read_weights(models.good))
        torn, end = self._send(weights, [[(DOWN, good[DOWN]), (OUT, good[OUT][:1])]])
        assert (torn.success, end.success) == (False, True)
        assert driver.generate(tokens).cached_tokens == 0
        assert_unknown_until_the_next_disk_update(driver, models)

    def test_unknown_group(self, driver: Driver, weights: WeightClient, tokens: list[int]) -> None:
        weights.begin()
        body = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "group_name": "nobody"}
        assert not weights.post("/update_weights_from_distributed", body).success
        weights.end()
        assert driver.generate(tokens).cached_tokens == 0


class TestOtherPaths:
    def test_ipc_that_fails(self, driver: Driver, weights: WeightClient, tokens: list[int]) -> None:
        reply = weights.post("/update_weights_from_ipc", {"zmq_handles": {}})
        assert (reply.success, reply.xver["reason"]) == (False, "UPDATE_FAILED")
        assert driver.generate(tokens).cached_tokens == 0

    def test_label_alone(self, driver: Driver, weights: WeightClient, tokens: list[int]) -> None:
        before = updates_counted(driver)
        warm = driver.generate(tokens, 16)
        body = {"new_version": "another-name", "abort_all_requests": False}
        assert weights.post("/update_weight_version", body).success
        assert_same_distribution(driver.generate(tokens, 16), warm)
        assert driver.generate(tokens).cached_tokens == WARM
        assert updates_counted(driver) == before

    @pytest.mark.parametrize("action", ["checksum", "snapshot"])
    def test_checks_that_only_read(
        self, driver: Driver, weights: WeightClient, tokens: list[int], action: str
    ) -> None:
        assert weights.post("/weights_checker", {"action": action}).success
        assert driver.generate(tokens).cached_tokens == WARM

    def test_reset_tensors(
        self, driver: Driver, weights: WeightClient, models: Models, tokens: list[int]
    ) -> None:
        assert weights.post("/weights_checker", {"action": "reset_tensors"}).success
        assert driver.generate(tokens).cached_tokens == 0
        assert_unknown_until_the_next_disk_update(driver, models)

    @pytest.mark.parametrize(
        "tags, cached", [(["weights"], 0), (["kv_cache"], 0), (None, 0), (["cuda_graph"], WARM)]
    )
    def test_released_and_resumed_memory(
        self,
        driver: Driver,
        weights: WeightClient,
        tokens: list[int],
        tags: list[str] | None,
        cached: int,
    ) -> None:
        epoch = driver.status()["current_epoch"]
        assert weights.post("/release_memory_occupation", {"tags": tags}).success
        assert weights.post("/resume_memory_occupation", {"tags": tags}).success
        assert driver.generate(tokens).cached_tokens == cached
        weights_are_known = tags is not None and "weights" not in tags
        assert (driver.status()["current_epoch"] == epoch) == weights_are_known


class TestDisk:
    def test_same_bytes_twice_and_another_copy(
        self, driver: Driver, models: Models, tokens: list[int], tmp_path: Path
    ) -> None:
        warm = driver.generate(tokens, 16)
        copy = shutil.copytree(models.base, tmp_path / "copy")
        for checkpoint in (models.base, models.base, copy, models.base):
            assert driver.update(checkpoint).xver["action"] == "SAME"
            after = driver.generate(tokens, 16)
            assert after.cached_tokens == WARM
            assert_same_distribution(after, warm)

    def test_two_in_a_row_without_a_label(
        self, driver: Driver, models: Models, tokens: list[int]
    ) -> None:
        assert driver.update(models.good).xver["action"] == "KEEP"
        assert driver.generate(tokens).cached_tokens == WARM
        assert driver.update(models.bad).xver["action"] == "EVICT"
        assert driver.generate(tokens).cached_tokens == 0

    def test_two_at_once(self, driver: Driver, models: Models, tokens: list[int]) -> None:
        """Whichever order the server takes: what stays is what its evidence allows."""
        url = str(driver.http.base_url)
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(Driver(url).update, c) for c in (models.good, models.bad)]
            replies = [job.result(60) for job in jobs]
        assert all(reply.success for reply in replies)
        assert driver.generate(tokens).cached_tokens in (0, WARM)
        served = driver.status()["current_epoch"]
        if served != fingerprint(models.good):
            assert driver.generate(tokens + prompt(7, 10)).cached_tokens <= PREFIX_TOKENS + 4
            assert "initial" not in driver.status()["tokens_by_epoch"]

    def test_rollback(self, driver: Driver, models: Models, tokens: list[int]) -> None:
        """Surviving KV of the base is the base's own again; what mixed with others is not."""
        before = driver.generate(tokens, 16)
        tail = prompt(8, 40)
        driver.update(models.good)
        driver.generate(tokens + tail, 1)
        assert driver.update(models.base).xver["action"] == "KEEP"
        status = driver.status()
        assert status["native_tokens"] >= PREFIX_TOKENS
        assert status["kept_old_tokens"] >= len(tail)
        after = driver.generate(tokens, 16)
        assert after.cached_tokens == WARM
        assert_same_distribution(after, before)

    def test_vanished_checkpoint(
        self, driver: Driver, models: Models, tokens: list[int], tmp_path: Path
    ) -> None:
        copy = shutil.copytree(models.good, tmp_path / "copy")
        assert driver.update(copy).xver["action"] == "KEEP"
        shutil.rmtree(copy)
        reply = driver.update(copy)
        assert (reply.status, reply.xver) == (400, {})
        assert driver.generate(tokens).cached_tokens == WARM
        assert driver.update(models.base).xver["action"] == "KEEP"

    def test_load_format_without_a_fingerprint(
        self, driver: Driver, models: Models, tokens: list[int]
    ) -> None:
        reply = driver.update(models.good, load_format="dummy")
        assert (reply.success, reply.xver["reason"]) == (False, "UPDATE_FAILED")
        assert driver.generate(tokens).cached_tokens == 0
