"""NIAH documents: exact length, stable boundary, honest scoring."""

from __future__ import annotations

import pytest

from examples.testbed import niah
from examples.testbed.cache import TestbedError
from examples.testbed.corpus import Corpus, split_sentences, token_slice
from examples.testbed.tiny import tiny_tokenizer

TEXT = "\n\n".join(
    f"In the {i}th trial of this series the light fell upon a sheet of paper and was bent. "
    f"After that the {i}th prism was turned about its axis, and colours appeared on the wall; "
    "But when the room was dark nothing at all could be seen by the observer."
    for i in range(60)
)
CORPUS = Corpus("made-up", split_sentences(TEXT))
TOKENIZER = tiny_tokenizer()


def document(prefix_tokens: int = 1500, **options: int) -> niah.NiahDocument:
    return niah.build_document(TOKENIZER, prefix_tokens, corpus=CORPUS, **options)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class TestDocument:
    @pytest.mark.parametrize("prefix_tokens", [400, 1024, 2040])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_prefix_has_the_exact_length(self, prefix_tokens: int, seed: int) -> None:
        made = document(prefix_tokens, needles=3, seed=seed)
        assert len(encode(made.prefix)) == prefix_tokens == made.prefix_tokens

    def test_every_question_extends_the_prefix_tokens(self) -> None:
        made = document()
        prefix = encode(made.prefix)
        for question in made.questions:
            assert encode(made.prefix + question.text)[: len(prefix)] == prefix

    def test_every_needle_is_in_the_prefix_once_at_its_depth(self) -> None:
        made = document()
        for question in made.questions:
            needle = niah.needle_text(question.city, question.gold)
            assert made.prefix.count(needle) == 1
            assert made.prefix.index(needle) / len(made.prefix) == question.depth
        depths = [q.depth for q in made.questions]
        assert depths == sorted(depths)

    def test_needles_can_be_told_apart_by_their_first_digit(self) -> None:
        golds = [q.gold for q in document().questions]
        assert len({g[0] for g in golds}) == len(golds)
        assert {len(g) for g in golds} == {niah.NUMBER_DIGITS}

    def test_same_seed_same_document(self) -> None:
        assert document(seed=3) == document(seed=3)
        assert document(seed=3).prefix != document(seed=4).prefix

    def test_build_documents_counts_seeds_up(self) -> None:
        made = niah.build_documents(TOKENIZER, 2, 800, needles=2, seed=5, corpus=CORPUS)
        assert made == [document(800, needles=2, seed=5), document(800, needles=2, seed=6)]

    def test_impossible_requests_are_refused(self) -> None:
        with pytest.raises(TestbedError, match="needles=0"):
            document(needles=0)
        with pytest.raises(TestbedError, match="longer prefix"):
            document(30, needles=4)
        with pytest.raises(TestbedError, match="no sentence"):
            niah.build_document(TOKENIZER, 400, corpus=Corpus("empty", ()))


class TestScoring:
    @pytest.mark.parametrize(
        "answer,right",
        [
            ("12345.", True),
            (" 12345\n", True),
            ("the number 12345", True),
            ("123456", False),
            ("1234", False),
            ("12 345", False),
            ("99999 or 12345", False),
            ("unknown", False),
            ("", False),
        ],
    )
    def test_only_the_first_number_counts(self, answer: str, right: bool) -> None:
        assert niah.is_correct(answer, "12345") is right


class TestCorpus:
    def test_headings_and_tables_are_dropped(self) -> None:
        table = "1 2 3 4 5 6 7 8 9 " * 20
        sentences = split_sentences(f"OPTICKS\n\n{table}\n\n{TEXT}")
        assert sentences == CORPUS.sentences

    def test_token_slice_is_exact_and_seeded(self) -> None:
        one = token_slice(TOKENIZER, CORPUS, 100, seed=1)
        assert len(one) == 100
        assert one == token_slice(TOKENIZER, CORPUS, 100, seed=1)
        assert one != token_slice(TOKENIZER, CORPUS, 100, seed=2)
