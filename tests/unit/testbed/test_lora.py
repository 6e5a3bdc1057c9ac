"""Adapters: what is merged, how it is rounded, what is refused; and dials keep the function."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.testbed import dial, lora, train_lora
from examples.testbed.cache import TestbedError
from examples.testbed.niah import build_document
from examples.testbed.tiny import tiny_model, tiny_tokenizer

META = lora.AdapterMeta("test", seed=1, steps=2, lr=3e-4)


def make_adapter(path: Path, base: Path, only: str = "mlp.up_proj") -> Path:
    generator = torch.Generator().manual_seed(0)
    weights = lora.load_weights(base)
    tensors = {}
    for layer in range(2):
        rows, columns = weights[f"model.layers.{layer}.{only}.weight"].shape
        stem = f"layers.{layer}.{only}"
        tensors[f"{stem}.lora_A"] = torch.randn(lora.RANK, columns, generator=generator)
        tensors[f"{stem}.lora_B"] = torch.randn(rows, lora.RANK, generator=generator)
    lora.save_adapter(path, META, tensors)
    return path


class TestFormat:
    def test_round_trip_keeps_metadata_and_rounds_to_bf16(
        self, tmp_path: Path, tiny_base: Path
    ) -> None:
        loaded = lora.load_adapter(make_adapter(tmp_path / "a.safetensors", tiny_base))
        assert loaded.meta == META
        assert {t.dtype for t in loaded.tensors.values()} == {torch.bfloat16}

    def test_an_absent_adapter_names_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(TestbedError, match="train_lora mild"):
            lora.load_adapter(tmp_path / "mild.safetensors")

    def test_a_foreign_safetensors_file_is_refused(self, tiny_base: Path) -> None:
        with pytest.raises(TestbedError, match="format"):
            lora.load_adapter(tiny_base / lora.WEIGHTS_FILE)


class TestMerge:
    def test_is_the_fp32_sum_rounded_once(self, tmp_path: Path, tiny_base: Path) -> None:
        adapter = make_adapter(tmp_path / "a.safetensors", tiny_base)
        before = lora.load_weights(tiny_base)
        after = lora.load_weights(lora.merge(tiny_base, adapter))
        name = "model.layers.1.mlp.up_proj.weight"
        tensors = lora.load_adapter(adapter).tensors
        down = tensors["layers.1.mlp.up_proj.lora_A"].float()
        up = tensors["layers.1.mlp.up_proj.lora_B"].float()
        expected = (before[name].float() + lora.SCALE * up @ down).to(torch.bfloat16)
        torch.testing.assert_close(after[name], expected, rtol=0, atol=0)
        changed = {k for k in before if not torch.equal(before[k], after[k])}
        assert changed == {f"model.layers.{i}.mlp.up_proj.weight" for i in range(2)}

    def test_strength_gives_another_checkpoint(self, tmp_path: Path, tiny_base: Path) -> None:
        adapter = make_adapter(tmp_path / "a.safetensors", tiny_base)
        full = lora.merge(tiny_base, adapter)
        half = lora.merge(tiny_base, adapter, strength=0.5)
        assert full != half
        assert lora.merge(tiny_base, adapter) == full

    def test_the_result_is_a_whole_checkpoint(self, tmp_path: Path, tiny_base: Path) -> None:
        merged = lora.merge(tiny_base, make_adapter(tmp_path / "a.safetensors", tiny_base))
        for name in ("config.json", "tokenizer.json", "generation_config.json"):
            assert (merged / name).read_bytes() == (tiny_base / name).read_bytes()

    def test_another_shape_is_refused(self, tmp_path: Path, tiny_base: Path) -> None:
        adapter = make_adapter(tmp_path / "a.safetensors", tiny_base)
        wide = tiny_model(0, intermediate_size=256)
        with pytest.raises(TestbedError, match=r"needs model\.layers\.0\.mlp\.up_proj"):
            lora.merge(wide, adapter)

    def test_an_unknown_update_is_refused(self) -> None:
        with pytest.raises(TestbedError, match="'huge' is not one of"):
            lora.smollm2_update("huge")


class TestCommittedAdapters:
    @pytest.mark.parametrize("name", ["mild", "strong"])
    def test_matches_the_recipe_in_the_source(self, name: str) -> None:
        adapter = lora.load_adapter(lora.adapter_path(name))
        assert adapter.meta.recipe == f"{train_lora.RECIPES[name]}"
        assert len(adapter.tensors) == 30 * len(lora.TARGET_MODULES) * 2
        assert lora.adapter_path(name).stat().st_size < 3_000_000


@pytest.mark.skipif(find_spec("tvm_ffi") is None, reason="the training text ships with SGLang")
class TestTraining:
    def test_learns_and_touches_only_the_adapter(self, tiny_base: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
        frozen = model.model.embed_tokens.weight.clone()
        recipe = train_lora.Recipe("t", lr=1e-2, steps=3, niah_share=0.0, sequence_tokens=64)
        tensors = train_lora.train(model, tiny_tokenizer(), recipe)
        assert set(tensors) == {
            f"layers.{i}.{m}.lora_{p}" for i in range(2) for m in lora.TARGET_MODULES for p in "AB"
        }
        assert all(t.abs().sum() > 0 for t in tensors.values())
        assert torch.equal(model.model.embed_tokens.weight, frozen)

    def test_needle_examples_learn_only_the_answer(self) -> None:
        recipe = train_lora.Recipe(
            "t", lr=1.0, steps=1, niah_share=1.0, sequence_tokens=700, needles=2
        )
        tokenizer = tiny_tokenizer()
        ids, labels = train_lora.niah_example(tokenizer, recipe, seed=1)
        learned = [label for label in labels if label != train_lora._IGNORED]
        assert ids[-len(learned) :] == learned
        assert tokenizer.decode(learned).rstrip(".").isdigit()


class TestDial:
    @torch.inference_mode()
    def logits(self, folder: Path) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = tiny_tokenizer().encode("The sun shone on the paper. ", add_special_tokens=False)
        return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    @pytest.mark.parametrize("permute", [False, True])
    def test_keeps_the_function_and_moves_the_keys(self, tiny_base: Path, permute: bool) -> None:
        turned = dial.dial(tiny_base, 0.1, permute)
        p, q = self.logits(tiny_base), self.logits(turned)
        # Weights are rounded to bf16 once more: the noise floor, far below a real change.
        assert float((p.exp() * (p - q)).sum(-1).mean()) < 0.01
        for part in ("q", "k", "v", "o"):
            name = f"model.layers.0.self_attn.{part}_proj.weight"
            before, after = lora.load_weights(tiny_base)[name], lora.load_weights(turned)[name]
            assert (before.float() - after.float()).norm() / before.float().norm() > 0.1

    def test_refuses_what_rotation_would_break(self, tiny_cache: Path) -> None:
        with pytest.raises(TestbedError, match=r"q_norm|k_norm"):
            dial.dial(tiny_model(0, arch="qwen3"), 0.1)


@pytest.mark.smollm2
class TestSmolLM2:
    def test_base_and_updates_are_complete_and_different(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The user's own cache: converting again would cost half a minute.
        monkeypatch.delenv("XVER_CACHE_DIR", raising=False)
        from transformers import AutoTokenizer

        from examples.testbed.smollm2 import smollm2_base

        folders = {"base": smollm2_base(), **lora.updates()}
        assert len(set(folders.values())) == 4
        tokenizer = AutoTokenizer.from_pretrained(folders["base"])
        made = build_document(tokenizer, 512)
        assert len(tokenizer.encode(made.prefix)) == 512
        assert all(len(tokenizer.encode(q.gold)) == len(q.gold) for q in made.questions)
