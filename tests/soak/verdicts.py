"""The checker: was every served token computed by the weights that its label names, alone?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tests.soak.records import History, Served, Stage, checkpoints_of
from tests.soak.reference import Differences, Reference

NOISE_FACTOR = 3.0
"""How far above the largest difference of a run without any update a token counts as stale."""

Compared = Mapping[tuple[int, str], Differences]


class Piece(NamedTuple):
    """Tokens of one answer that one of ``checkpoints`` computed.

    ``tokens`` index the answer's differences. ``is_mixed``: each token may have another of the
    checkpoints, which is all that can be known where the server names no boundary.
    """

    is_prompt: bool
    tokens: slice
    checkpoints: frozenset[str]
    is_mixed: bool


class Ledger(NamedTuple):
    """What judging one run carries along.

    ``room`` has, per change of weights, how many more answers may be excused by it: the server
    said how many requests straddled.
    """

    tolerance_nats: float
    room: dict[int, int]


@dataclass
class Judgement:
    """What became of every answer; token counts are of compared log-probabilities."""

    tolerance_nats: float
    responses: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    differing_kept_old_responses: int = 0
    violations: list[dict[str, Any]] = field(default_factory=list)
    stale_tokens: int = 0
    worst_native_nats: float = 0.0


def pieces_of(served: Served, history: History) -> list[Piece]:
    """Return what has to match, in the order of the answer."""
    met = checkpoints_of(history.stages_of(served))
    pieces = []
    if served.prompt_logprobs:
        first = _labelled(served, history, 0) if served.spans else met
        # A retracted request may have delivered its prompt under earlier weights.
        whole = slice(0, len(served.prompt_logprobs))
        is_mixed = bool(served.retractions) or not served.spans
        pieces.append(Piece(True, whole, met if is_mixed else first, is_mixed))
    if not served.spans:
        pieces.append(Piece(False, slice(0, len(served.output)), met, True))
        return pieces
    for number, span in enumerate(served.spans):
        allowed = _labelled(served, history, number)
        # An update without a label leaves no boundary in the answer of a request that it retracted.
        is_mixed = bool(served.retractions) and len(allowed) > 1
        pieces.append(Piece(False, slice(span.start, span.end), allowed, is_mixed))
    return pieces


def _labelled(served: Served, history: History, number: int) -> frozenset[str]:
    return checkpoints_of(history.stages_of(served, served.spans[number].label))


def wanted_comparisons(answers: Iterable[Served], history: History) -> Iterable[tuple[Served, str]]:
    """Yield every (answer, checkpoint) pair that :func:`judge` will look at, once."""
    for served in answers:
        for checkpoint in sorted(
            frozenset().union(*(piece.checkpoints for piece in pieces_of(served, history)))
        ):
            yield served, checkpoint


def noise_of(compared: Compared) -> float:
    """Return the largest difference in ``compared``, nats."""
    return max(max((*each.prompt, *each.output), default=0.0) for each in compared.values())


def judge_run(
    answers: Sequence[Served], history: History, reference: Reference, tolerance_nats: float
) -> Judgement:
    """Recompute and judge ``answers``."""
    compared = reference.compare(wanted_comparisons(answers, history))
    return judge(answers, history, compared, tolerance_nats)


def judge(
    answers: Sequence[Served], history: History, compared: Compared, tolerance_nats: float
) -> Judgement:
    """Sort every answer into native, kept-old, straddling, or a violation."""
    judgement = Judgement(tolerance_nats)
    ledger = Ledger(tolerance_nats, {id(stage): stage.straddlers for stage in history.stages})
    for served in answers:
        stale = stale_tokens(served, history, compared, tolerance_nats)
        problem = _split_problem(served, history)
        kind = "" if problem else _kind(served, history, compared, stale, ledger)
        if not kind:
            _violate(judgement, served, history, compared, problem, stale)
            continue
        judgement.differing_kept_old_responses += bool(stale) and kind == "kept-old"
        judgement.responses[kind] += 1
        judgement.tokens[kind] += served.checked_tokens
        if kind == "native":
            worst = worst_difference(served, history, compared)
            judgement.worst_native_nats = max(judgement.worst_native_nats, worst)
    return judgement


def _kind(served: Served, history: History, compared: Compared, stale: int, ledger: Ledger) -> str:
    """Return what explains the answer, or nothing: then it is a violation."""
    if served.kept_old_tokens:
        return "kept-old"
    if not stale:
        return "native"
    if _rereads_kept_old(served, history):
        return "kept-old after a retraction"
    return "straddling" if _excuse(served, history, compared, ledger) else ""


def _rereads_kept_old(served: Served, history: History) -> bool:
    """Whether the request may have read kept old KV when it was prefilled for a second time.

    SGLang counts cached tokens once per request, so no split tells of the second time.
    """
    if served.wants_native or not served.retractions:
        return False
    return any(stage.may_hold_old for stage in history.stages_of(served))


def stale_tokens(
    served: Served, history: History, compared: Compared, tolerance_nats: float
) -> int:
    """Return how many tokens no allowed checkpoint explains; 0 for a native answer."""
    return sum(
        _stale_in(piece, served, compared, tolerance_nats) for piece in pieces_of(served, history)
    )


def _stale_in(piece: Piece, served: Served, compared: Compared, tolerance_nats: float) -> int:
    """Return how many tokens of a piece its best explanation leaves unexplained."""
    return min(
        sum(difference > tolerance_nats for difference in candidate)
        for candidate in _candidates(served, piece, compared)
    )


def worst_difference(served: Served, history: History, compared: Compared) -> float:
    """Return the largest difference of an answer to its best explanation, nats."""
    return max(
        min(max(candidate, default=0.0) for candidate in _candidates(served, piece, compared))
        for piece in pieces_of(served, history)
    )


def _candidates(served: Served, piece: Piece, compared: Compared) -> list[tuple[float, ...]]:
    """Return the differences of a piece under each explanation; at least one explanation."""
    columns = []
    for checkpoint in sorted(piece.checkpoints):
        each = compared.get((id(served), checkpoint), Differences((), ()))
        columns.append((each.prompt if piece.is_prompt else each.output)[piece.tokens])
    if not columns:
        # A label that no stage explains: nothing vouches for these tokens.
        length = len(range(*piece.tokens.indices(len(served.output))))
        return [(float("inf"),) * length]
    if piece.is_mixed:
        return [tuple(min(values) for values in zip(*columns, strict=True))]
    return columns


def _split_problem(served: Served, history: History) -> str:
    """Return what is wrong with the server's own split of the cached tokens, or nothing."""
    if not served.kept_old_tokens:
        return ""
    if served.wants_native:
        return "a request for native fidelity read kept old KV"
    if served.kept_old_tokens > served.cached_tokens:
        return "more kept-old tokens than cached ones"
    if not any(stage.may_hold_old for stage in history.stages_of(served)):
        return "kept-old KV where the last update had evicted everything"
    return ""


def _excuse(served: Served, history: History, compared: Compared, ledger: Ledger) -> bool:
    """Whether the request straddled a change; the server must have counted it as one that did."""
    changes = [
        stage for stage in history.stages if stage.straddlers and stage.begins_during(served)
    ]
    if len(changes) == 1 and _is_stale_before(changes[0], served, history, compared, ledger):
        return False
    for stage in changes:
        if ledger.room[id(stage)] > 0:
            ledger.room[id(stage)] -= 1
            return True
    return False


def _is_stale_before(
    change: Stage, served: Served, history: History, compared: Compared, ledger: Ledger
) -> bool:
    """Whether tokens that came before the only change that the request straddled are stale."""
    if len(served.spans) < 2 or served.spans[1].label != change.label:
        return False
    first = next(piece for piece in pieces_of(served, history) if not piece.is_prompt)
    return _stale_in(first, served, compared, ledger.tolerance_nats) > 0


def _violate(
    judgement: Judgement,
    served: Served,
    history: History,
    compared: Compared,
    problem: str,
    stale: int,
) -> None:
    judgement.stale_tokens += stale
    judgement.responses["violation"] += 1
    judgement.tokens["violation"] += served.checked_tokens
    judgement.violations.append(
        {
            "problem": problem or f"{stale} tokens no allowed checkpoint explains",
            "served": asdict(served),
            "stages": [_stage_row(stage) for stage in _around(served, history)],
            "pieces": [
                {
                    "part": "prompt" if piece.is_prompt else "output",
                    "tokens": [piece.tokens.start, piece.tokens.stop],
                    "differences_nats": {
                        checkpoint: [round(value, 4) for value in candidate]
                        for checkpoint, candidate in zip(
                            ["any"] if piece.is_mixed else sorted(piece.checkpoints),
                            _candidates(served, piece, compared),
                            strict=False,
                        )
                    },
                }
                for piece in pieces_of(served, history)
            ],
            "tolerance_nats": judgement.tolerance_nats,
        }
    )


def _around(served: Served, history: History) -> list[Stage]:
    """Return the stages that met the answer and the three before them."""
    met = [at for at, stage in enumerate(history.stages) if stage.meets(served)]
    return history.stages[max(0, met[0] - 3) : met[-1] + 1]


def _stage_row(stage: Stage) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(stage), default=str))  # type: ignore[no-any-return]
