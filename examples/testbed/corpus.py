"""Real English text for haystacks and fine-tunes, read from an installed package."""

from __future__ import annotations

import importlib.util
import random
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

from examples.testbed.cache import TestbedError

Split = Literal["train", "eval"]

# Newton's Opticks (1730, public domain): 567 kB, shipped by apache-tvm-ffi, which SGLang needs.
_PACKAGE = "tvm_ffi"
_RELATIVE_PATH = Path("3rdparty/libbacktrace/Isaac.Newton-Opticks.txt")
# Fine-tunes read the first part only, so that measured text was never trained on.
_TRAIN_SHARE = 0.5
_MIN_PARAGRAPH_CHARS = 120
_SENTENCE_END = re.compile(r"(?<=[.!?;]) +(?=[A-Z])")


class Tokenizer(Protocol):
    """The two methods used of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


@dataclass(frozen=True)
class Corpus:
    """Sentences in reading order; ``name`` goes into run records."""

    name: str
    sentences: tuple[str, ...]

    def window(self, rng: random.Random, chars: int) -> list[str]:
        """Consecutive sentences of at least ``chars`` characters from a random start, wrapping.

        Raises TestbedError when the corpus is empty.
        """
        if not self.sentences:
            raise TestbedError(
                f"corpus {self.name!r} holds no sentence; pass a text with paragraphs of at "
                f"least {_MIN_PARAGRAPH_CHARS} characters"
            )
        start = rng.randrange(len(self.sentences))
        taken: list[str] = []
        total = 0
        while total < chars:
            sentence = self.sentences[(start + len(taken)) % len(self.sentences)]
            taken.append(sentence)
            total += len(sentence) + 1
        return taken


def opticks_path() -> Path:
    """The text file inside the installed package, found without importing it.

    Raises TestbedError when it is absent.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    path = Path(spec.origin).parent / _RELATIVE_PATH if spec and spec.origin else None
    if path is None or not path.is_file():
        raise TestbedError(
            f"the haystack text {_RELATIVE_PATH.name} of package {_PACKAGE} is absent; install "
            "the version SGLang pins (`pip install apache-tvm-ffi`) or pass a Corpus of your own"
        )
    return path


@lru_cache(maxsize=2)
def opticks(split: Split) -> Corpus:
    """One of two disjoint parts of Newton's Opticks: ``train`` for updates, ``eval`` to measure."""
    sentences = split_sentences(opticks_path().read_text(encoding="utf-8"))
    cut = int(len(sentences) * _TRAIN_SHARE)
    part = sentences[:cut] if split == "train" else sentences[cut:]
    return Corpus(f"opticks-{split}", part)


def split_sentences(text: str) -> tuple[str, ...]:
    """Sentences of the prose paragraphs, ASCII, single-spaced; tables and headings are dropped."""
    ascii_text = text.encode("ascii", "ignore").decode().replace("_", "")
    sentences: list[str] = []
    for block in re.split(r"\n\s*\n", ascii_text):
        paragraph = " ".join(block.split())
        if len(paragraph) >= _MIN_PARAGRAPH_CHARS and _is_prose(paragraph):
            sentences.extend(_SENTENCE_END.split(paragraph))
    return tuple(sentences)


def token_slice(tokenizer: Tokenizer, corpus: Corpus, tokens: int, seed: int) -> list[int]:
    """Exactly ``tokens`` token ids of consecutive corpus text, chosen by ``seed``."""
    rng = random.Random(seed)
    # Eight characters per token is above what any tokenizer yields on English prose.
    text = " ".join(corpus.window(rng, tokens * 8))
    return tokenizer.encode(text, add_special_tokens=False)[:tokens]


def _is_prose(paragraph: str) -> bool:
    letters = sum(c.islower() or c == " " for c in paragraph)
    return letters / len(paragraph) > 0.8
