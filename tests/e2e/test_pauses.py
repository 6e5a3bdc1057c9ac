"""Every pause mode against requests in every state, with each answer compared to a native run."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.testbed.process import CompatServiceProcess, SglangServer
from examples.testbed.tiny import tiny_model, tiny_update
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver, Updated, prompt
from tests.e2e.evidence import record
from tests.e2e.support import server_environment
from tests.soak.clients import Client
from tests.soak.records import History, Served, Stage, served_from
from tests.soak.reference import Reference
from tests.soak.verdicts import NOISE_FACTOR, Judgement, judge_run, noise_of, wanted_comparisons

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODES = ("abort", "retract", "in_place")
RUNNING_LIMIT = 3
PREFIX_TOKENS = 200
LONG_PROMPT_TOKENS = 6000
"""Takes about a hundred chunks, so that an update meets it in the middle."""
ENDLESS_TOKENS = 2000
MAX_ATTEMPTS = 5


class Setting(NamedTuple):
    """One server for the module, what it can serve, and what rounding alone explains."""

    driver: Driver
    checkpoints: dict[str, Path]
    tolerance_nats: float


@pytest.fixture(scope="module")
def setting(
    service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setting]:
    base = tiny_model(1)
    # Updates so large that a token read from stale KV can't pass for rounding.
    checkpoints = {
        "base": base,
        "kept": tiny_update(base, 21, 0.3),
        "harmful": tiny_update(base, 22, 0.3),
    }
    log = tmp_path_factory.mktemp("pauses") / "server.log"
    arguments = ("--chunked-prefill-size", "64", "--max-running-requests", str(RUNNING_LIMIT))
    environment = {
        **server_environment(service.address),
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    }
    server = SglangServer(
        base, log, arguments=arguments, environment=environment, max_total_tokens=9000
    )
    with server, CompatClient(service.address) as client:
        driver = Driver(server.wait_ready().url)
        record(client, driver.status(), base, checkpoints["kept"])
        record(client, driver.status(), base, checkpoints["harmful"], harmful=120)
        tolerance = NOISE_FACTOR * _noise(driver, checkpoints)
        yield Setting(driver, checkpoints, tolerance)
        assert "Traceback" not in log.read_text()


def _noise(driver: Driver, checkpoints: dict[str, Path]) -> float:
    """Measure what batching and chunking alone do to log-probabilities on unchanged weights."""
    history = History("base")
    client = Client(driver, random.Random(1), deque())
    kinds = ("plain", "samples", "prompt-logprobs", "long", "stream")
    answers = [served for _ in range(4) for kind in kinds for served in client.ask(kind)]
    return noise_of(Reference(driver, checkpoints).compare(wanted_comparisons(answers, history)))


class InFlight:
    """A request that streams while the test does something else."""

    def __init__(
        self,
        scene: Scene,
        tokens: list[int],
        new_tokens: int,
        sampling: dict[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        self.body = scene.driver.payload(
            tokens, new_tokens, return_logprob=True, rid=uuid.uuid4().hex, **extra
        )
        self.body["sampling_params"].update(sampling or {})
        self.chunks: list[dict[str, Any]] = []
        self._driver = Driver(str(scene.driver.http.base_url))
        self._started_s = time.monotonic()
        self._ended_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for chunk in self._driver.stream(self.body):
            self.chunks.append(chunk)
        self._ended_s = time.monotonic()

    @property
    def tokens(self) -> int:
        """Output tokens so far, of the sample that has the fewest."""
        latest = self._latest()
        if len(latest) < self.body["sampling_params"].get("n", 1):
            return 0
        return min(len(chunk["output_ids"]) for chunk in latest.values())

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _latest(self) -> dict[int, dict[str, Any]]:
        return {chunk.get("index", 0): chunk for chunk in tuple(self.chunks)}

    def results(self) -> list[Served]:
        """Wait for the end and return the answer, one per sample."""
        self._thread.join(60)
        assert self._ended_s, f"no end of {self.body['rid']} in 60 s"
        return [
            served_from(
                chunk,
                self.body,
                kind="in-flight",
                started_s=self._started_s,
                ended_s=self._ended_s,
            )
            for chunk in self._latest().values()
        ]

    def result(self) -> Served:
        """Wait for the end and return the only sample's answer."""
        (served,) = self.results()
        return served


class Scene:
    """One case: requests in flight, a pause, an update in it, and the verdict on all answers."""

    def __init__(self, setting: Setting) -> None:
        self.driver, self.checkpoints, self.tolerance_nats = setting
        self.history = History("base", uuid.uuid4().hex)
        reply = self.driver.update(
            self.checkpoints["base"], weight_version=self.history.current.label
        )
        assert reply.success
        self.driver.flush()
        self.requests: list[InFlight] = []

    def send(self, *args: Any, **kwargs: Any) -> InFlight:
        request = InFlight(self, *args, **kwargs)
        self.requests.append(request)
        return request

    def decoding(self, seed: int, new_tokens: int = ENDLESS_TOKENS, **extra: Any) -> InFlight:
        """Send a request that would decode for long, and wait until it decodes."""
        request = self.send(prompt(seed, PREFIX_TOKENS), new_tokens, **extra)
        self.driver.wait_until(lambda: request.tokens >= 3, "a request decodes")
        return request

    def prefilling(self, seed: int, **extra: Any) -> InFlight:
        """Send a request and return while its prompt is being prefilled in chunks.

        On a busy machine the prompt may be done before the tree is looked at: then another try.
        """
        for attempt in range(MAX_ATTEMPTS):
            request = self.send(prompt(seed + 1000 * attempt, LONG_PROMPT_TOKENS), 6, **extra)
            self.driver.wait_until(lambda: self._tokens_in_tree() > 200, "a chunk is done")
            if not request.chunks:
                return request
            request.result()
            self.driver.flush()
        raise AssertionError(f"{MAX_ATTEMPTS} prompts were all done before the update")

    def _tokens_in_tree(self) -> int:
        return sum(self.driver.status()["tokens_by_epoch"].values())

    def waiting(self, seed: int) -> InFlight:
        """Send a request that has to wait because others occupy the server."""
        for number in range(RUNNING_LIMIT):
            self.decoding(seed + 1 + number)
        request = self.send(prompt(seed, PREFIX_TOKENS), 8)
        self.driver.wait_until(lambda: self.driver.load("num_waiting_reqs") == 1, "a request waits")
        return request

    def goes_on(self, request: InFlight) -> bool:
        """Whether a request decodes on after the pause; it is ended once that is known."""
        before = request.tokens
        self.driver.wait_until(
            lambda: request.is_over or request.tokens >= before + 10, "a request goes on or ends"
        )
        was_over = request.is_over
        self.driver.abort(request.body["rid"])
        return not was_over

    def update_paused(
        self, mode: str, target: str, while_paused: Callable[[], None] = lambda: None
    ) -> Updated:
        """Pause, update to ``target``, resume; note the change."""
        self.driver.pause(mode)
        try:
            while_paused()
            return self.update(target)
        finally:
            self.driver.resume()

    def update(self, target: str, **options: Any) -> Updated:
        label = uuid.uuid4().hex
        started = time.monotonic()
        reply = self.driver.update(self.checkpoints[target], weight_version=label, **options)
        assert reply.success, reply
        stage = Stage(label, target, started)
        stage.may_hold_old = reply.xver["action"] == "KEEP"
        stage.straddlers = int(reply.xver["straddling_requests"])
        self.history.change(stage, time.monotonic())
        return reply

    def verdict(self) -> Judgement:
        """Wait for every answer, check that nothing leaked, and compare all with native runs."""
        answers = [served for request in self.requests for served in request.results()]
        self.driver.wait_until(self.driver.is_idle, "the server becomes idle")
        self.driver.wait_for("blocked_tokens", 0)
        assert self.driver.load("num_used_tokens") == 0
        assert self.driver.status()["failures"] == {}
        answers.extend(self._read_again(answers))
        reference = Reference(self.driver, self.checkpoints)
        return judge_run(answers, self.history, reference, self.tolerance_nats)

    def _read_again(self, answers: list[Served]) -> list[Served]:
        """Ask for what the tree may hold of each answer: a stale node would show here."""
        client = Client(self.driver, random.Random(0), deque())
        return [
            served
            for answer in answers
            for served in client.post(
                self.driver.payload(
                    [*answer.prompt, *answer.output, 50, 60], 6, return_logprob=True
                ),
                "again",
            )
        ]


@pytest.fixture
def scene(setting: Setting) -> Scene:
    return Scene(setting)


def _finishes(scene: Scene) -> set[str]:
    return {served.finish for request in scene.requests for served in request.results()}


@pytest.mark.parametrize("mode", MODES)
class TestRequestsByState:
    """An update that evicts, at the moment when requests are in one state."""

    def test_decoding(self, scene: Scene, mode: str) -> None:
        request = scene.decoding(1)
        reply = scene.update_paused(mode, "harmful")
        assert scene.goes_on(request) == (mode != "abort")
        held = mode == "in_place"
        assert reply.xver["action"] in ("EVICT", "EMPTY")
        assert int(reply.xver["straddling_requests"]) == held
        assert (int(reply.xver["blocked_tokens"]) > 0) == held
        judgement = scene.verdict()
        assert judgement.violations == []
        assert judgement.responses["straddling"] == held

    def test_prefilling_in_chunks(self, scene: Scene, mode: str) -> None:
        request = scene.prefilling(2)
        reply = scene.update_paused(mode, "harmful")
        held = mode == "in_place"
        assert int(reply.xver["straddling_requests"]) == held
        assert (int(reply.xver["blocked_tokens"]) > 0) == held
        judgement = scene.verdict()
        assert judgement.violations == []
        assert judgement.responses["straddling"] == held
        assert request.result().finish == ("abort" if mode == "abort" else "length")

    def test_waiting(self, scene: Scene, mode: str) -> None:
        request = scene.waiting(3)
        reply = scene.update_paused(mode, "harmful")
        assert int(reply.xver["straddling_requests"]) == (
            RUNNING_LIMIT if mode == "in_place" else 0
        )
        for occupier in scene.requests[:RUNNING_LIMIT]:
            scene.driver.abort(occupier.body["rid"])
        assert scene.verdict().violations == []
        served = request.result()
        assert served.finish == ("abort" if mode == "abort" else "length")
        if mode != "abort":
            assert {span.label for span in served.spans} == {scene.history.current.label}

    def test_finishing(self, scene: Scene, mode: str) -> None:
        """Answers of one to three tokens, so many that some end at the moment of the pause."""
        for seed in range(12):
            scene.send(prompt(100 + seed, 60), 1 + seed % 3)
        scene.driver.wait_until(lambda: any(one.chunks for one in scene.requests), "a first token")
        scene.update_paused(mode, "harmful")
        assert scene.verdict().violations == []
        assert _finishes(scene) <= ({"abort", "length"} if mode == "abort" else {"length"})

    def test_aborted_before_and_during_the_pause(self, scene: Scene, mode: str) -> None:
        before, during = scene.decoding(5), scene.decoding(6)
        scene.driver.abort(before.body["rid"])
        scene.update_paused(mode, "harmful", lambda: scene.driver.abort(during.body["rid"]))
        assert scene.verdict().violations == []
        assert _finishes(scene) == {"abort"}


@pytest.mark.parametrize("mode", MODES)
class TestRequestsByKind:
    def test_kept_prefix(self, scene: Scene, mode: str) -> None:
        """The update keeps: the straddler's own suffix is not published, the prefix stays."""
        request = scene.decoding(1)
        reply = scene.update_paused(mode, "kept")
        assert scene.goes_on(request) == (mode != "abort")
        assert reply.xver["action"] == "KEEP"
        assert int(reply.xver["straddling_requests"]) == (mode == "in_place")
        assert reply.xver["blocked_tokens"] == "0"
        assert scene.verdict().violations == []

    def test_native_request_is_retracted_under_a_kept_prefix(self, scene: Scene, mode: str) -> None:
        """It came before anything old existed; what it reads afterwards must still be native."""
        sampling = {"custom_params": {"xver": {"fidelity": "native"}}}
        request = scene.decoding(1, sampling=sampling)
        assert scene.update_paused(mode, "kept").xver["action"] == "KEEP"
        assert scene.goes_on(request) == (mode != "abort")
        assert scene.verdict().violations == []

    def test_parallel_samples(self, scene: Scene, mode: str) -> None:
        request = scene.decoding(7, 400, sampling={"n": 2, "temperature": 1.0})
        reply = scene.update_paused(mode, "harmful")
        assert int(reply.xver["straddling_requests"]) == (2 if mode == "in_place" else 0)
        assert scene.goes_on(request) == (mode != "abort")
        assert scene.verdict().violations == []
        assert len(request.results()) == 2

    def test_prompt_logprobs(self, scene: Scene, mode: str) -> None:
        request = scene.prefilling(8, logprob_start_len=LONG_PROMPT_TOKENS - 300)
        scene.update_paused(mode, "harmful")
        judgement = scene.verdict()
        assert judgement.violations == []
        if mode == "retract":
            assert len(request.result().prompt_logprobs) == 299

    def test_flush_before_and_after_the_update(self, scene: Scene, mode: str) -> None:
        """SGLang refuses a flush while a request holds KV; either way nothing stale is read."""
        request = scene.decoding(9)
        flushes: list[bool] = []
        scene.driver.pause(mode)
        try:
            flushes.append(scene.driver.try_flush())
            scene.update("harmful", flush_cache=False)
            flushes.append(scene.driver.try_flush())
        finally:
            scene.driver.resume()
        assert flushes == [mode != "in_place"] * 2
        scene.driver.try_flush()
        assert scene.goes_on(request) == (mode != "abort")
        assert scene.verdict().violations == []


class TestTheChecker:
    def test_it_finds_kv_of_other_weights(self, scene: Scene) -> None:
        """The same answer, said to come from other weights, is a violation."""
        scene.goes_on(scene.decoding(20))
        scene.history.current.checkpoint = "harmful"
        assert scene.verdict().stale_tokens > 0
