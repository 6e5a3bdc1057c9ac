"""Needle-in-a-haystack documents: one shared prefix of exact token length, several questions."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from examples.testbed.cache import TestbedError
from examples.testbed.corpus import Corpus, Tokenizer, opticks

# Enough for a five-digit number, one token a digit, and the token that shows where it ends.
ANSWER_TOKENS = 8
NUMBER_DIGITS = 5
_MAX_ATTEMPTS = 64
_CHARS_PER_TOKEN = 8
_CITY_NAMES = (
    "Amsterdam Athens Berlin Boston Cairo Chicago Dallas Denver Dublin Geneva Hamburg Helsinki "
    "Houston Istanbul Lagos Lima Lisbon London Madrid Manila Miami Milan Montreal Moscow Mumbai "
    "Munich Nairobi Oslo Paris Prague Rome Seattle Seoul Sydney Tokyo Toronto Venice Vienna "
    "Warsaw Zurich "
)
CITIES = tuple(_CITY_NAMES.split())


@dataclass(frozen=True)
class NiahQuestion:
    """One question on a document; the prompt is ``document.prefix + question.text``.

    ``depth`` is the needle's position in the prefix as a share of its characters, 0..1.
    """

    text: str
    gold: str
    city: str
    depth: float


@dataclass(frozen=True)
class NiahDocument:
    """A prefix of exactly ``prefix_tokens`` tokens and one question per needle in it.

    For every question, tokens(prefix + question) starts with tokens(prefix): the prefix is a
    true cache hit for all of them.
    """

    prefix: str
    questions: tuple[NiahQuestion, ...]
    prefix_tokens: int
    seed: int


def needle_text(city: str, number: str) -> str:
    """The sentence hidden in the haystack."""
    return f"The secret number for {city} is {number}."


def question_text(city: str) -> str:
    """What follows the prefix. The last space is a token of its own before the first digit."""
    return (
        f"\n\nQuestion: What is the secret number for {city}?\n"
        f"Answer: The secret number for {city} is "
    )


def is_correct(answer: str, gold: str) -> bool:
    """Whether the first number in ``answer`` is exactly ``gold``.

    Generate at least ``len(gold) + 1`` tokens: a number cut off by the limit can't be judged.
    """
    found = re.search(r"\d+", answer)
    return found is not None and found.group() == gold


def build_document(
    tokenizer: Tokenizer,
    prefix_tokens: int,
    *,
    needles: int = 4,
    seed: int = 0,
    corpus: Corpus | None = None,
) -> NiahDocument:
    """A document whose prefix has exactly ``prefix_tokens`` tokens; every needle is also asked.

    The needles of one document are each other's distractors. Same arguments, same document.
    Raises TestbedError when the needles don't fit or no stable token boundary was found.
    """
    if not 1 <= needles <= min(9, len(CITIES)):
        raise TestbedError(f"needles={needles} is outside 1..9; ask for fewer per document")
    source = corpus if corpus is not None else opticks("eval")
    rng = random.Random(f"niah-{seed}-{prefix_tokens}-{needles}")
    for _ in range(_MAX_ATTEMPTS):
        document = _attempt(tokenizer, source, rng, prefix_tokens, needles, seed)
        if document is not None:
            return document
    raise TestbedError(
        f"no document of exactly {prefix_tokens} tokens with {needles} needles was found in "
        f"{_MAX_ATTEMPTS} attempts; use a longer prefix or fewer needles"
    )


def build_documents(
    tokenizer: Tokenizer,
    count: int,
    prefix_tokens: int,
    *,
    needles: int = 4,
    seed: int = 0,
    corpus: Corpus | None = None,
) -> list[NiahDocument]:
    """``count`` documents with seeds ``seed .. seed + count - 1``."""
    return [
        build_document(tokenizer, prefix_tokens, needles=needles, seed=seed + i, corpus=corpus)
        for i in range(count)
    ]


def _attempt(
    tokenizer: Tokenizer,
    corpus: Corpus,
    rng: random.Random,
    prefix_tokens: int,
    needles: int,
    seed: int,
) -> NiahDocument | None:
    cities = rng.sample(CITIES, needles)
    numbers = _distinct_numbers(rng, needles)
    hidden = [needle_text(c, n) for c, n in zip(cities, numbers, strict=True)]
    haystack = corpus.window(rng, prefix_tokens * _CHARS_PER_TOKEN)
    text = _hide(tokenizer, haystack, hidden, prefix_tokens, rng)
    ids = tokenizer.encode(text, add_special_tokens=False)[:prefix_tokens]
    prefix = tokenizer.decode(ids)
    if len(ids) < prefix_tokens or not all(needle in prefix for needle in hidden):
        return None
    questions = tuple(
        NiahQuestion(question_text(c), n, c, prefix.index(h) / len(prefix))
        for c, n, h in zip(cities, numbers, hidden, strict=True)
    )
    if not _boundary_is_stable(tokenizer, prefix, ids, questions):
        return None
    return NiahDocument(prefix, questions, prefix_tokens, seed)


def _distinct_numbers(rng: random.Random, count: int) -> list[str]:
    # Distinct first digits: the first answer position alone tells the needles apart.
    firsts = rng.sample("123456789", count)
    rest = NUMBER_DIGITS - 1
    return [first + f"{rng.randrange(10**rest):0{rest}d}" for first in firsts]


def _hide(
    tokenizer: Tokenizer,
    haystack: list[str],
    hidden: list[str],
    prefix_tokens: int,
    rng: random.Random,
) -> str:
    """Insert the needles between sentences, one in each equal stretch of the prefix, in order."""
    lengths = [len(tokenizer.encode(" " + s, add_special_tokens=False)) for s in hidden]
    room = prefix_tokens - sum(lengths)
    stretch = room / len(hidden)
    # A needle needs room behind it: the sentence that reaches its depth may overshoot.
    depths = [stretch * (i + rng.uniform(0.05, 0.75)) for i in range(len(hidden))]
    parts: list[str] = []
    used = placed = 0
    for sentence in haystack:
        while placed < len(hidden) and used >= depths[placed]:
            parts.append(hidden[placed])
            placed += 1
        parts.append(sentence)
        used += len(tokenizer.encode(" " + sentence, add_special_tokens=False))
        if used > room:
            break
    return " ".join(parts)


def _boundary_is_stable(
    tokenizer: Tokenizer, prefix: str, ids: list[int], questions: tuple[NiahQuestion, ...]
) -> bool:
    if tokenizer.encode(prefix, add_special_tokens=False) != ids:
        return False
    return all(
        tokenizer.encode(prefix + q.text, add_special_tokens=False)[: len(ids)] == ids
        for q in questions
    )
