"""Tiny random models with a working tokenizer: built in a second, loaded by SGLang in a few.

Greedy output depends on the whole context: projections have unit gain, attention is peaked, and
logits have a spread of a few nats, so tests see a difference when KV or weights differ.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from examples.testbed.cache import TestbedError, build_once, content_id
from examples.testbed.lora import WEIGHTS_FILE, load_weights, write_variant

BOS, EOS, UNK = "<|bos|>", "<|eos|>", "<|unk|>"
VOCAB_SIZE = 320
_RECIPE_VERSION = 1
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DEFAULT_DIMS: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
}
# Standard deviations relative to 1/sqrt(fan_in). Q and K make attention peaked instead of
# uniform; V and O make what it reads as large as the residual stream.
_GAINS = {
    "q_proj": 1.6,
    "k_proj": 1.6,
    "v_proj": 1.0,
    "o_proj": 2.0,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    "down_proj": 1.0,
    "lm_head": 3.0,
}
_EMBEDDING_STD = 0.6


def tiny_model(seed: int, *, arch: str = "llama", **dims: int) -> Path:
    """Folder of a random bf16 checkpoint; same arguments, same weights.

    ``arch`` is ``llama`` or ``qwen3``. ``dims`` overrides config fields such as ``hidden_size``
    (64), ``num_hidden_layers`` (2), ``num_attention_heads`` (4), ``num_key_value_heads`` (2),
    ``head_dim`` (16), ``max_position_embeddings`` (8192). One character is one token. Raises
    TestbedError for an unknown architecture or field.
    """
    if arch not in _ARCHITECTURES:
        raise TestbedError(f"arch {arch!r} is not one of {sorted(_ARCHITECTURES)}; use one of them")
    unknown = sorted(set(dims) - set(_DEFAULT_DIMS))
    if unknown:
        raise TestbedError(f"dims {unknown} are not among {sorted(_DEFAULT_DIMS)}; drop them")
    full = {**_DEFAULT_DIMS, **dims}
    if full["num_attention_heads"] % full["num_key_value_heads"]:
        raise TestbedError(
            f"{full['num_attention_heads']} attention heads can't share "
            f"{full['num_key_value_heads']} KV heads evenly; choose a divisor"
        )
    recipe = {"kind": "tiny", "version": _RECIPE_VERSION, "arch": arch, "seed": seed, **full}
    return build_once(f"tiny-{arch}-s{seed}", recipe, lambda f: _build(f, arch, seed, full))


def tiny_update(base: Path, seed: int, scale: float) -> Path:
    """Folder of ``base`` with seeded noise added to every matrix: a new version of equal shape.

    The noise's standard deviation is ``scale`` times that of the matrix it is added to.
    """
    recipe = {
        "kind": "tiny-update",
        "version": _RECIPE_VERSION,
        "base": content_id(base),
        "seed": seed,
        "scale": scale,
    }

    def build(folder: Path) -> None:
        generator = torch.Generator().manual_seed(seed)
        weights = load_weights(base)
        for name in sorted(weights):
            weights[name] = _with_noise(weights[name], scale, generator)
        write_variant(base, weights, folder)

    return build_once(f"tiny-update-s{seed}", recipe, build)


def tiny_other_shape(seed: int = 0, *, arch: str = "llama") -> Path:
    """Folder of a tiny model with 4 KV heads instead of 2: another KV geometry."""
    return tiny_model(seed, arch=arch, num_key_value_heads=4)


def tiny_tokenizer() -> Any:
    """A byte-level Hugging Face tokenizer without merges: one ASCII character is one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate(_vocabulary())}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True) for t in (UNK, BOS, EOS)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=EOS,
        model_max_length=_DEFAULT_DIMS["max_position_embeddings"],
    )
    wrapped.chat_template = (
        "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    return wrapped


def _vocabulary() -> list[str]:
    from tokenizers import pre_tokenizers

    special = [UNK, BOS, EOS]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = VOCAB_SIZE - len(special) - len(alphabet)
    return special + alphabet + [f"<|unused{i}|>" for i in range(filler)]


def _speakable_ids() -> list[int]:
    """Ids of printable ASCII: the only ones a tiny model ever prefers."""
    index = {token: i for i, token in enumerate(_vocabulary())}
    return [index["\u0120"], *(index[c] for c in string.ascii_letters + string.digits + ".,;:!?")]


def _build(folder: Path, arch: str, seed: int, dims: dict[str, int]) -> None:
    weights = _random_weights(seed, dims, _norm_names(arch))
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(arch, dims), indent=2))
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2))
    tiny_tokenizer().save_pretrained(folder)


def _config(arch: str, dims: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": VOCAB_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "bfloat16",
        **dims,
    }


def _norm_names(arch: str) -> tuple[str, ...]:
    return ("self_attn.q_norm", "self_attn.k_norm") if arch == "qwen3" else ()


def _random_weights(
    seed: int, dims: dict[str, int], head_norms: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = dims["hidden_size"], dims["intermediate_size"]
    q_rows = dims["num_attention_heads"] * dims["head_dim"]
    kv_rows = dims["num_key_value_heads"] * dims["head_dim"]
    shapes = {
        "self_attn.q_proj": (q_rows, hidden),
        "self_attn.k_proj": (kv_rows, hidden),
        "self_attn.v_proj": (kv_rows, hidden),
        "self_attn.o_proj": (hidden, q_rows),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }

    def matrix(rows: int, columns: int, std: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * std).to(torch.bfloat16)

    def norm(size: int, value: float = 1.0) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": matrix(VOCAB_SIZE, hidden, _EMBEDDING_STD)}
    for layer in range(dims["num_hidden_layers"]):
        stem = f"model.layers.{layer}"
        for name, (rows, columns) in shapes.items():
            std = _GAINS[name.split(".")[1]] / columns**0.5
            weights[f"{stem}.{name}.weight"] = matrix(rows, columns, std)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{stem}.{name}.weight"] = norm(hidden)
        for name in head_norms:
            weights[f"{stem}.{name}.weight"] = norm(dims["head_dim"], _GAINS["q_proj"])
    weights["model.norm.weight"] = norm(hidden)
    head = matrix(VOCAB_SIZE, hidden, _GAINS["lm_head"] / hidden**0.5)
    # Zero rows give logit 0, below the best of 69 spread ones: greedy output is readable text
    # and never stops early.
    silent = torch.ones(VOCAB_SIZE, dtype=torch.bool)
    silent[_speakable_ids()] = False
    head[silent] = 0
    weights["lm_head.weight"] = head
    return weights


def _with_noise(weight: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
    if weight.dim() < 2:
        return weight
    noise = torch.randn(weight.shape, generator=generator)
    # Zero rows of the output head stay zero: an update must not teach the model to stop.
    noise[weight.abs().sum(-1) == 0] = 0
    return (weight.float() + noise * scale * weight.float().std()).to(weight.dtype)
