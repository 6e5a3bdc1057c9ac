"""What the scenarios share: requests that say what they read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from examples.testbed.process import SglangServer
from tests.e2e.driver import Driver

WAIT_S = 30


class Read(NamedTuple):
    """Cached tokens of one request, by who computed them, and its output."""

    native: int
    kept_old: int
    output: list[int]

    @property
    def cached(self) -> int:
        return self.native + self.kept_old


@dataclass(frozen=True)
class Case:
    """A server under test."""

    driver: Driver
    server: SglangServer

    def read(self, tokens: list[int], new_tokens: int = 4, **extra: Any) -> Read:
        """Run one greedy request; the parts of its cached tokens must sum up to the total."""
        body = self.driver.payload(tokens, new_tokens, **extra)
        answer = self.driver.http.post("/generate", json=body).raise_for_status().json()
        meta = answer["meta_info"]
        details = meta["cached_tokens_details"] or {"native": 0, "kept_old": 0, "remapped": 0}
        assert details["remapped"] == 0
        assert details["native"] + details["kept_old"] == meta["cached_tokens"]
        return Read(details["native"], details["kept_old"], answer["output_ids"])

    def read_many(self, tokens: list[int], times: int) -> list[int]:
        """Run ``times`` requests of one token at once; return the cached tokens of each."""
        body = self.driver.payload(tokens, 1) | {"input_ids": [tokens] * times}
        answers = self.driver.http.post("/generate", json=body).raise_for_status().json()
        return [int(answer["meta_info"]["cached_tokens"]) for answer in answers]

    @contextmanager
    def running(self, tokens: list[int], new_tokens: int) -> Iterator[Future[Read]]:
        """Have a request decode while the block runs; yields its future."""
        other = Case(Driver(str(self.driver.http.base_url)), self.server)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(other.read, tokens, new_tokens)
            deadline = time.monotonic() + WAIT_S
            while self.driver.load("num_running_reqs") == 0:
                assert not future.done(), "the request ended before anything else could happen"
                assert time.monotonic() < deadline, "the request never ran"
            yield future
            future.result(WAIT_S)

    def log(self) -> str:
        return self.server.log.read_text(errors="replace")
