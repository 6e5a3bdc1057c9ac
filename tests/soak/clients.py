"""Client threads: every way to ask that the checker can verify, with a lot of shared prefixes."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx

from tests.e2e.driver import Driver, prompt
from tests.soak.records import Served, served_from

SHARED_PREFIXES = 5
PREFIX_TOKENS = 320
MAX_PROMPT_TOKENS = 480
MAX_REQUESTS_PER_CLIENT = 200_000
DRAIN_LIMIT_S = 120.0

KINDS = {
    "plain": 20,
    "branch": 20,
    "samples": 12,
    "prompt-logprobs": 12,
    "stream": 8,
    "long": 8,
    "salted": 6,
    "native": 8,
    "hinted": 8,
    "hang-up": 6,
    "abort": 6,
}
HINTS = {"native": {"fidelity": "native"}, "hinted": {"task": "qa"}}


class Traffic:
    """Clients that ask until they are stopped, and that can be held back for an idle moment."""

    def __init__(self, url: str, seed: int, clients: int) -> None:
        self.served: list[Served] = []
        self.problems: list[str] = []
        self.refused = 0
        self._recent: deque[tuple[int, ...]] = deque(maxlen=24)
        self._open = threading.Condition()
        self._is_open, self._is_over, self._active = True, False, 0
        self._threads = [
            threading.Thread(target=self._loop, args=(url, seed * 1000 + number), daemon=True)
            for number in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def hold(self) -> None:
        """Let no new request out and wait until every answer has come."""
        with self._open:
            self._is_open = False
            if not self._open.wait_for(lambda: self._active == 0, DRAIN_LIMIT_S):
                self.problems.append(f"{self._active} requests unanswered in {DRAIN_LIMIT_S} s")

    def release(self) -> None:
        with self._open:
            self._is_open = True
            self._open.notify_all()

    def stop(self) -> None:
        self.hold()
        with self._open:
            self._is_over = True
            self._open.notify_all()
        for thread in self._threads:
            thread.join(DRAIN_LIMIT_S)

    def _loop(self, url: str, seed: int) -> None:
        client = Client(Driver(url), random.Random(seed), self._recent)
        for _ in range(MAX_REQUESTS_PER_CLIENT):
            with self._open:
                self._open.wait_for(lambda: self._is_open or self._is_over)
                if self._is_over:
                    return
                self._active += 1
            try:
                self._ask(client)
            finally:
                with self._open:
                    self._active -= 1
                    self._open.notify_all()

    def _ask(self, client: Client) -> None:
        kind = client.pick_kind()
        started = time.monotonic()
        try:
            self.served.extend(client.ask(kind))
        except httpx.HTTPStatusError as error:
            text = error.response.text[:500]
            if "bort" in text:
                self.refused += 1
            else:
                self.problems.append(f"{kind}: HTTP {error.response.status_code} {text}")
        except (httpx.HTTPError, ValueError, KeyError) as error:
            seconds = time.monotonic() - started
            self.problems.append(f"{kind} after {seconds:.1f} s: {type(error).__name__} {error}")


class Client:
    """One user: asks in many ways and remembers what others were told, to branch from it."""

    def __init__(self, driver: Driver, rng: random.Random, recent: deque[tuple[int, ...]]) -> None:
        self.driver = driver
        self.rng = rng
        self._recent = recent

    def pick_kind(self) -> str:
        return self.rng.choices(list(KINDS), weights=list(KINDS.values()))[0]

    def ask(self, kind: str) -> list[Served]:
        """Send one request of ``kind`` (two for ``samples``) and return what was served."""
        ways: dict[str, Callable[[str], list[Served]]] = {
            "samples": self._samples_with_twin,
            "stream": self._streamed,
            "hang-up": self._streamed,
            "abort": self._streamed,
        }
        served = ways.get(kind, self._whole)(kind)
        for one in served:
            if one.finish == "length":
                self._recent.append(one.prompt + one.output)
        return served

    def _prompt(self, kind: str) -> list[int]:
        rng = self.rng
        if kind == "branch" and self._recent:
            stem = list(rng.choice(tuple(self._recent)))
            stem = stem[: rng.randint(len(stem) // 2, len(stem))]
        else:
            stem = prompt(rng.randrange(SHARED_PREFIXES), PREFIX_TOKENS)
            stem = stem[: rng.choice((64, 150, PREFIX_TOKENS))]
        suffix = prompt(rng.randrange(2**31), rng.randint(4, 110))
        return (stem + suffix)[:MAX_PROMPT_TOKENS]

    def _body(self, kind: str, **sampling: Any) -> dict[str, Any]:
        rng = self.rng
        tokens = self._prompt(kind)
        new_tokens = rng.randint(40, 90) if kind == "long" else rng.randint(4, 24)
        body = self.driver.payload(tokens, new_tokens, return_logprob=True)
        body["sampling_params"].update(sampling)
        if kind == "prompt-logprobs":
            body["logprob_start_len"] = rng.randint(0, len(tokens) - 2)
        if kind == "salted":
            body["cache_salt"] = f"tenant-{rng.randrange(3)}"
        if kind in HINTS:
            body["sampling_params"]["custom_params"] = {"xver": HINTS[kind]}
        return body

    def _whole(self, kind: str) -> list[Served]:
        return self.post(self._body(kind), kind)

    def _samples_with_twin(self, kind: str) -> list[Served]:
        body = self._body(kind, n=2, temperature=1.0)
        twin = {**body, "sampling_params": {**body["sampling_params"], "n": 1, "temperature": 0}}
        return self.post(body, kind) + self.post(twin, "twin")

    def post(self, body: dict[str, Any], kind: str) -> list[Served]:
        """Send ``body`` and return what was served, one per sample."""
        started = time.monotonic()
        answer = self.driver.http.post("/generate", json=body).raise_for_status().json()
        ended = time.monotonic()
        return [
            served_from(one, body, kind=kind, started_s=started, ended_s=ended)
            for one in (answer if isinstance(answer, list) else [answer])
        ]

    def _streamed(self, kind: str) -> list[Served]:
        body = {**self._body(kind), "rid": uuid.uuid4().hex}
        enough = self.rng.randint(0, 6)
        started = time.monotonic()
        last: dict[str, Any] = {}
        chunks = self.driver.stream(body)
        try:
            for count, chunk in enumerate(chunks):
                last = chunk
                if kind == "abort" and count == enough:
                    self.driver.abort(body["rid"])
                if kind == "hang-up" and count == enough:
                    break
        finally:
            chunks.close()
        if not last:
            raise ValueError("the stream ended without a chunk")
        if "error" in last:
            if "bort" in str(last["error"]):
                return []
            raise ValueError(f"stream failed: {last['error']}")
        return [served_from(last, body, kind=kind, started_s=started, ended_s=time.monotonic())]
