"""Tiny models: deterministic, really different from one another, context-dependent, readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.testbed import tiny
from examples.testbed.cache import TestbedError
from examples.testbed.lora import load_weights

SUFFIX = " Question: who is it? Answer:"
PREFIXES = ("The sun shone on the white paper.", "A prism was placed in the dark.", "Knives met.")


def load(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def last_log_probs(folder: Path, prefix: str) -> torch.Tensor:
    model, tokenizer = load(folder)
    logits = model(torch.tensor([tokenizer.encode(prefix + SUFFIX)])).logits[0, -1]
    return torch.log_softmax(logits.float(), -1)


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p.exp() * (p - q)).sum())


class TestTokenizer:
    def test_one_ascii_character_is_one_token_and_round_trips(self) -> None:
        tokenizer = tiny.tiny_tokenizer()
        text = "Answer: 12345.\n"
        assert len(tokenizer.encode(text, add_special_tokens=False)) == len(text)
        assert tokenizer.decode(tokenizer.encode("wörld 1", add_special_tokens=False)) == "wörld 1"

    def test_survives_saving(self, tiny_base: Path) -> None:
        loaded = AutoTokenizer.from_pretrained(tiny_base)
        assert loaded.encode("abc") == tiny.tiny_tokenizer().encode("abc")
        assert len(loaded) == tiny.VOCAB_SIZE


class TestTinyModel:
    def test_is_deterministic_and_bf16(self, tiny_base: Path) -> None:
        weights = load_weights(tiny_base)
        again = tiny._random_weights(0, tiny._DEFAULT_DIMS, ())
        assert all(torch.equal(weights[k], again[k]) for k in again)
        assert {w.dtype for w in weights.values()} == {torch.bfloat16}

    def test_output_depends_on_the_prefix(self, tiny_base: Path) -> None:
        rows = [last_log_probs(tiny_base, prefix) for prefix in PREFIXES]
        assert min(kl(rows[0], rows[1]), kl(rows[0], rows[2])) > 0.1

    def test_seeds_differ_clearly(self, tiny_base: Path, tiny_cache: Path) -> None:
        other = tiny.tiny_model(1)
        assert kl(last_log_probs(tiny_base, PREFIXES[0]), last_log_probs(other, PREFIXES[0])) > 1

    def test_greedy_output_is_readable(self, tiny_base: Path) -> None:
        model, tokenizer = load(tiny_base)
        ids = torch.tensor([tokenizer.encode(PREFIXES[0] + SUFFIX)])
        out = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        text = tokenizer.decode(out)
        assert len(out) == 24
        assert text.isascii()
        assert text.isprintable()

    def test_every_architecture_loads(self, tiny_cache: Path) -> None:
        model, _ = load(tiny.tiny_model(0, arch="qwen3"))
        assert model.config.model_type == "qwen3"

    @pytest.mark.parametrize(
        "arguments,message",
        [
            ({"arch": "gpt2"}, "gpt2"),
            ({"colour": 3}, "colour"),
            ({"num_key_value_heads": 3}, "share 3 KV heads"),
        ],
    )
    def test_refuses_what_it_cannot_build(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(TestbedError, match=message):
            tiny.tiny_model(0, **arguments)


class TestUpdates:
    def test_scale_sets_the_distance(self, tiny_base: Path) -> None:
        near = tiny.tiny_update(tiny_base, 1, 0.01)
        far = tiny.tiny_update(tiny_base, 1, 0.2)
        base = last_log_probs(tiny_base, PREFIXES[0])
        near_kl = kl(base, last_log_probs(near, PREFIXES[0]))
        far_kl = kl(base, last_log_probs(far, PREFIXES[0]))
        assert 0 < near_kl < far_kl

    def test_seeds_give_different_updates(self, tiny_base: Path) -> None:
        assert tiny.tiny_update(tiny_base, 1, 0.1) != tiny.tiny_update(tiny_base, 2, 0.1)

    def test_other_shape_has_another_kv_geometry(self, tiny_base: Path, tiny_cache: Path) -> None:
        name = "model.layers.0.self_attn.k_proj.weight"
        other = load_weights(tiny.tiny_other_shape())
        assert other[name].shape != load_weights(tiny_base)[name].shape
