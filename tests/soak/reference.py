"""The native truth: a stock server recomputes what was served, with one checkpoint at a time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.driver import Driver
from tests.soak.records import Served

BATCH = 32
_SALTS = itertools.count(1)


class Differences(NamedTuple):
    """Distance of each served log-probability from the native one, in nats."""

    prompt: tuple[float, ...]
    output: tuple[float, ...]


class Reference:
    """Teacher-forces served sequences on a server that holds KV of one checkpoint only."""

    def __init__(self, driver: Driver, checkpoints: Mapping[str, Path]) -> None:
        self.driver = driver
        self.checkpoints = dict(checkpoints)

    def compare(self, wanted: Iterable[tuple[Served, str]]) -> dict[tuple[int, str], Differences]:
        """Return the differences of every (answer, checkpoint) pair, keyed by (id, checkpoint).

        The answer's ``id()`` is the key: two equal answers are two answers.
        """
        by_checkpoint: defaultdict[str, list[Served]] = defaultdict(list)
        for served, checkpoint in wanted:
            if served.checked_tokens:
                by_checkpoint[checkpoint].append(served)
        result: dict[tuple[int, str], Differences] = {}
        for checkpoint, answers in by_checkpoint.items():
            self._serve(checkpoint)
            # Neighbours share prefixes, which spares most of the prefill. Whatever is reused was
            # computed by this very checkpoint: the salt is new and the tree was flushed.
            answers.sort(key=lambda served: served.prompt)
            salt = f"native-{next(_SALTS)}"
            for batch in _batched(answers):
                for served, native in zip(batch, self._native(batch, salt), strict=True):
                    result[id(served), checkpoint] = _differences(served, native)
        return result

    def _serve(self, checkpoint: str) -> None:
        reply = self.driver.update(self.checkpoints[checkpoint])
        assert reply.success, reply
        self.driver.flush()

    def _native(self, batch: Sequence[Served], salt: str) -> list[dict[int, float]]:
        """Return, per answer, the native log-probability of the token at each position."""
        starts = [_first_position(served) - 1 for served in batch]
        body: dict[str, Any] = {
            "input_ids": [list(served.prompt + served.output) for served in batch],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": starts,
            "cache_salt": salt,
        }
        answers = self.driver.http.post("/generate", json=body).raise_for_status().json()
        return [
            {
                start + offset: float(entry[0])
                for offset, entry in enumerate(answer["meta_info"]["input_token_logprobs"])
                if offset
            }
            for start, answer in zip(starts, answers, strict=True)
        ]


def _batched(answers: Sequence[Served]) -> Iterable[Sequence[Served]]:
    return (answers[at : at + BATCH] for at in range(0, len(answers), BATCH))


def _first_position(served: Served) -> int:
    return served.prompt_start if served.prompt_logprobs else len(served.prompt)


def _differences(served: Served, native: Mapping[int, float]) -> Differences:
    length = len(served.prompt)
    return Differences(
        tuple(
            abs(value - native[served.prompt_start + offset])
            for offset, value in enumerate(served.prompt_logprobs)
        ),
        tuple(
            abs(value - native[length + offset])
            for offset, value in enumerate(served.output_logprobs)
        ),
    )
