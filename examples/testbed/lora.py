"""The adapter file format and its merge into a full checkpoint (no peft).

An adapter is one safetensors file: for each layer and projection ``layers.<i>.<module>.lora_A``
of shape (rank, in_features) and ``.lora_B`` of shape (out_features, rank), bf16. The header's
metadata holds rank, scale and how it was trained. W_merged = W + scale * B @ A.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from examples.testbed.cache import TestbedError, build_once, content_id, file_sha256
from examples.testbed.smollm2 import smollm2_base

TARGET_MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
RANK = 4
SCALE = 2.0
WEIGHTS_FILE = "model.safetensors"
_FORMAT = "xver-testbed-lora-1"
_MERGE_VERSION = 1


@dataclass(frozen=True)
class AdapterMeta:
    """How an adapter was made; every field is written to the file's header as text."""

    recipe: str
    seed: int
    steps: int
    lr: float
    rank: int = RANK
    scale: float = SCALE


@dataclass(frozen=True)
class Adapter:
    """A loaded adapter; ``tensors`` maps ``layers.<i>.<module>.lora_A|lora_B`` to bf16 tensors."""

    meta: AdapterMeta
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Update:
    adapter: str
    strength: float


# "unknown" stands for the checkpoint nobody measured: really different, never calibrated.
_UPDATES = {
    "mild": _Update("mild", 1.0),
    "strong": _Update("strong", 1.0),
    "unknown": _Update("strong", 0.5),
}


def adapter_path(name: str) -> Path:
    """Where the committed adapter ``mild`` or ``strong`` lies in the source tree."""
    return Path(__file__).parent / "adapters" / f"{name}.safetensors"


def save_adapter(path: Path, meta: AdapterMeta, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors as bf16 with the metadata in the header; replaces an existing file."""
    header = {"format": _FORMAT, **{k: str(v) for k, v in asdict(meta).items()}}
    packed = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    save_file(packed, temporary, metadata=header)
    temporary.chmod(0o644)  # safetensors writes for the owner only
    temporary.replace(path)


def load_adapter(path: Path) -> Adapter:
    """Read an adapter. Raises TestbedError when the file is absent or of another format."""
    if not path.is_file():
        raise TestbedError(
            f"adapter {path} is absent; run `python -m examples.testbed.train_lora {path.stem}`"
        )
    with safe_open(path, framework="pt") as handle:
        header = handle.metadata() or {}
        tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118
    if header.get("format") != _FORMAT:
        raise TestbedError(
            f"adapter {path} has format {header.get('format')!r}, expected {_FORMAT!r}; "
            "train it again with examples.testbed.train_lora"
        )
    meta = AdapterMeta(
        recipe=header["recipe"],
        seed=int(header["seed"]),
        steps=int(header["steps"]),
        lr=float(header["lr"]),
        rank=int(header["rank"]),
        scale=float(header["scale"]),
    )
    return Adapter(meta, tensors)


def merge(base: Path, adapter: Path, *, strength: float = 1.0) -> Path:
    """Cached checkpoint folder of ``base`` with the adapter merged at ``strength`` times its scale.

    The sum is taken in fp32 and stored in the base's own dtype; everything else is copied.
    Raises TestbedError for an absent adapter, a sharded base, or shapes that don't match.
    """
    if not adapter.is_file():
        load_adapter(adapter)
    recipe = {
        "kind": "lora-merge",
        "version": _MERGE_VERSION,
        "base": content_id(base),
        "adapter_sha256": file_sha256(adapter),
        "strength": strength,
    }
    share = "" if strength == 1.0 else f"-x{strength:g}"
    name = f"{base.name.rsplit('-', 1)[0]}-{adapter.stem}{share}"
    return build_once(name, recipe, lambda f: _write_merged(base, adapter, strength, f))


def smollm2_update(name: str) -> Path:
    """Checkpoint folder of the update ``mild``, ``strong`` or ``unknown``, built if needed.

    Raises TestbedError for another name.
    """
    update = _UPDATES.get(name)
    if update is None:
        raise TestbedError(f"update {name!r} is not one of {sorted(_UPDATES)}; use one of them")
    return merge(smollm2_base(), adapter_path(update.adapter), strength=update.strength)


def updates() -> dict[str, Path]:
    """All update checkpoints by name, built if needed."""
    return {name: smollm2_update(name) for name in _UPDATES}


def merged_weights(
    weights: Mapping[str, torch.Tensor], adapter: Adapter, strength: float
) -> dict[str, torch.Tensor]:
    """New state dict with the adapter added; inputs are left as they are.

    Raises TestbedError when a projection of the adapter is absent from ``weights`` or misshapen.
    """
    merged = dict(weights)
    for key, down in adapter.tensors.items():
        if not key.endswith(".lora_A"):
            continue
        stem = key.removesuffix(".lora_A")
        up = adapter.tensors[f"{stem}.lora_B"]
        target = f"model.{stem}.weight"
        weight = weights.get(target)
        if weight is None or weight.shape != (up.shape[0], down.shape[1]):
            found = None if weight is None else tuple(weight.shape)
            raise TestbedError(
                f"adapter {adapter.meta.recipe!r} needs {target} of shape "
                f"{(up.shape[0], down.shape[1])}, the base has {found}; "
                "merge it into the model it was trained on"
            )
        delta = up.float() @ down.float() * (adapter.meta.scale * strength)
        merged[target] = (weight.float() + delta).to(weight.dtype)
    return merged


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """State dict of a single-file checkpoint. Raises TestbedError when it is sharded or absent."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise TestbedError(
            f"{folder} holds no {WEIGHTS_FILE}; only single-file checkpoints are supported, "
            "save the model again with one shard"
        )
    return load_file(path)


def write_variant(base: Path, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Fill ``folder`` with the base's config and tokenizer files and the given weights."""
    for path in base.iterdir():
        if path.suffix in {".json", ".jinja", ".txt", ".model"}:
            shutil.copy2(path, folder / path.name)
    save_file(dict(weights), folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _write_merged(base: Path, adapter: Path, strength: float, folder: Path) -> None:
    write_variant(base, merged_weights(load_weights(base), load_adapter(adapter), strength), folder)
