"""What a run remembers: every answer, every change of weights, and which could have met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Output tokens ``[start, end)`` that the server attributes to a label of weights."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Served:
    """One sequence that the server answered with; times are of one monotonic clock.

    ``output_logprobs`` belongs to ``output``; ``prompt_logprobs`` to the prompt's tokens from
    ``prompt_start`` on. ``spans`` is empty for an answer that the client did not wait for.
    """

    kind: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    prompt_start: int
    prompt_logprobs: tuple[float, ...]
    cached_tokens: int
    kept_old_tokens: int
    spans: tuple[Span, ...]
    retractions: int
    finish: str
    wants_native: bool
    started_s: float
    ended_s: float

    @property
    def checked_tokens(self) -> int:
        """Tokens with a log-probability that the checker can recompute."""
        return len(self.output) + len(self.prompt_logprobs)


def served_from(
    answer: Mapping[str, Any],
    body: Mapping[str, Any],
    *,
    kind: str,
    started_s: float,
    ended_s: float,
) -> Served:
    """Read one answer of ``/generate`` to request ``body``.

    Raises:
        ValueError: the answer contradicts itself or the request.
    """
    meta, prompt = answer["meta_info"], tuple(body["input_ids"])
    scored = meta.get("output_token_logprobs") or []
    output = tuple(int(entry[1]) for entry in scored)
    if output != tuple(answer.get("output_ids") or ()):
        raise ValueError(f"output and log-probabilities name different tokens: {answer}")
    prompt_scored = meta.get("input_token_logprobs") or []
    start = body.get("logprob_start_len", -1) + 1
    # The first entry names the token at which the log-probabilities start, without one of its own.
    if prompt_scored and prompt[start - 1 :] != tuple(int(entry[1]) for entry in prompt_scored):
        raise ValueError(f"prompt log-probabilities do not cover [{start - 1}, ...): {answer}")
    details = meta.get("cached_tokens_details") or {}
    finish = meta.get("finish_reason") or {"type": "disconnected"}
    hint = body["sampling_params"].get("custom_params") or {}
    return Served(
        kind=kind,
        prompt=prompt,
        output=output,
        output_logprobs=tuple(float(entry[0]) for entry in scored),
        prompt_start=start,
        prompt_logprobs=tuple(float(entry[0]) for entry in prompt_scored[1:]),
        cached_tokens=int(meta.get("cached_tokens", 0)),
        kept_old_tokens=int(details.get("kept_old", 0)),
        spans=tuple(
            Span(span["version"], span["start"], span["end"])
            for span in meta.get("weight_versions") or ()
        ),
        retractions=int(meta.get("num_retractions", 0)),
        finish=finish["type"],
        wants_native=hint.get("xver", {}).get("fidelity") == "native",
        started_s=started_s,
        ended_s=ended_s,
    )


@dataclass
class Stage:
    """A time during which one checkpoint was served under one label.

    It starts when the change to it was sent and ends when the change away from it was answered,
    so neighbours overlap by the time of the change.
    """

    label: str
    checkpoint: str
    started_s: float
    ended_s: float = math.inf
    answered_s: float = -math.inf
    """When the change to it was answered."""
    may_hold_old: bool = False
    straddlers: int = 0
    """Requests that the server says carried KV into this stage."""
    changed_by: dict[str, Any] = field(default_factory=dict)

    def meets(self, served: Served) -> bool:
        """Whether the answer was computed during this stage, as far as a client can tell."""
        return self.started_s <= served.ended_s and served.started_s <= self.ended_s

    def begins_during(self, served: Served) -> bool:
        """Whether the change to this stage may have met the request in flight."""
        return self.started_s <= served.ended_s and served.started_s <= self.answered_s


class History:
    """The stages of one server in order. Written by one thread, read when the run is over."""

    def __init__(self, checkpoint: str, label: str = "default") -> None:
        self.stages = [Stage(label, checkpoint, -math.inf)]

    @property
    def current(self) -> Stage:
        return self.stages[-1]

    def change(self, stage: Stage, answered_s: float) -> None:
        """Append ``stage``; the one before it ended at ``answered_s`` at the latest."""
        self.stages[-1].ended_s = stage.answered_s = answered_s
        self.stages.append(stage)

    def stages_of(self, served: Served, label: str | None = None) -> list[Stage]:
        """Return the stages that ``served`` may belong to, of one label or of all."""
        return [
            stage
            for stage in self.stages
            if stage.meets(served) and (label is None or stage.label == label)
        ]


def checkpoints_of(stages: Iterable[Stage]) -> frozenset[str]:
    return frozenset(stage.checkpoint for stage in stages)
