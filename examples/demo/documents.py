"""Documents of the demonstration: shared prefixes with needle questions and free-text openings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.testbed.corpus import Tokenizer
from examples.testbed.niah import (
    CITIES,
    NUMBER_DIGITS,
    NiahDocument,
    build_document,
    is_correct,
)
from sglang_xver.calibrate.tasks import Document, Item, Task

PREFIX_TOKENS = 2048
NEEDLES = 4
# The seeds are apart, so that what is served was never measured.
CALIBRATION_SEED = 900
SERVING_SEED = 100

NEEDLE_TASK = Task(
    name="niah_single@1",
    family="niah",
    # The digits and the token that ends them: all that a wrong answer can differ in.
    max_new_tokens=NUMBER_DIGITS + 1,
    forced_positions=NUMBER_DIGITS + 1,
    is_correct=is_correct,
)
TEXT_TASK = Task(
    name="opticks_continuation@1",
    family="continuation",
    max_new_tokens=6,
    forced_positions=6,
    is_correct=None,
)
_OPENINGS = (
    "\n\nSummary: In this passage, the author",
    "\n\nThe most important observation is that the",
)
_TIMING_QUESTION = "\n\n{city}: what is the secret number of this city?\nAnswer: the number is "


@dataclass(frozen=True)
class ServedPrefix:
    """A prefix that the serving server caches, and questions of equal form to time it with."""

    name: str
    prefix_ids: tuple[int, ...]
    question_ids: tuple[tuple[int, ...], ...]


def load_tokenizer(checkpoint: Path) -> Tokenizer:
    """The checkpoint's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return tokenizer


def calibration_documents(
    tokenizer: Tokenizer, count: int, scored_per_document: int
) -> tuple[Document, ...]:
    """Documents to measure: four needle questions and two free-text openings on each prefix.

    Divergences are taken from the first ``scored_per_document`` needle questions and from both
    openings: a whole-vocabulary distribution weighs 1.6 MB on the wire.
    """
    return tuple(
        _measured(tokenizer, CALIBRATION_SEED + index, scored_per_document)
        for index in range(count)
    )


def served_prefixes(tokenizer: Tokenizer, count: int) -> tuple[ServedPrefix, ...]:
    """Prefixes to serve; none of them is measured."""
    built = [
        build_document(tokenizer, PREFIX_TOKENS, needles=NEEDLES, seed=SERVING_SEED + index)
        for index in range(count)
    ]
    return tuple(
        served_prefix(tokenizer, f"prefix {document.seed}", _ids(tokenizer, document.prefix))
        for document in built
    )


def served_prefix(tokenizer: Tokenizer, name: str, prefix_ids: tuple[int, ...]) -> ServedPrefix:
    """A prefix with one timing question per city; whether a needle answers it doesn't matter.

    The city stands first: questions that share their first words would find those words cached.
    """
    questions = tuple(_ids(tokenizer, _TIMING_QUESTION.format(city=city)) for city in CITIES)
    return ServedPrefix(name, prefix_ids, questions)


def _measured(tokenizer: Tokenizer, seed: int, scored: int) -> Document:
    document = build_document(tokenizer, PREFIX_TOKENS, needles=NEEDLES, seed=seed)
    name = f"opticks-{seed}"
    needles = [
        Item(
            item_id=f"{name}/{question.city}",
            task=NEEDLE_TASK,
            question_ids=_ids(tokenizer, question.text),
            gold=question.gold,
            question=question.text.strip(),
            is_scored_for_divergence=index < scored,
        )
        for index, question in enumerate(document.questions)
    ]
    texts = [
        Item(
            item_id=f"{name}/text-{index}",
            task=TEXT_TASK,
            question_ids=_ids(tokenizer, opening),
            question=opening.strip(),
        )
        for index, opening in enumerate(_OPENINGS)
    ]
    return Document(name, _prefix_ids(tokenizer, document), (*needles, *texts))


def _prefix_ids(tokenizer: Tokenizer, document: NiahDocument) -> tuple[int, ...]:
    return _ids(tokenizer, document.prefix)


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
