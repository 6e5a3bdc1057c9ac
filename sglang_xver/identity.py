"""Identity of checkpoints: content fingerprint, geometry, tensor shapes.

A version is what its bytes are, never what its label says. Pure module: needs neither torch nor
SGLang.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_xver.checkpoint_files import (
    INDEX_FILE,
    FileStamp,
    TensorInfo,
    hash_samples,
    hash_whole,
    list_shards,
    read_header,
    read_stamps,
    tensors_of,
)
from sglang_xver.errors import CheckpointError

_WHOLE_SCHEME = "sha256:"
_SAMPLED_SCHEME = "sampled:"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")

# The config values that shape the KV space. A difference in any of them forbids reuse.
_GEOMETRY_KEYS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
)
_ROPE_KEYS = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rope_interleave",
    "original_max_position_embeddings",
)


@dataclass(frozen=True)
class Geometry:
    """The shape of a model's KV cache as its config states it."""

    values: dict[str, Any]
    rope: dict[str, Any]

    @property
    def digest(self) -> str:
        """Digest over all fields; equal digests mean equal geometry."""
        return _digest({"kv": self.values, "rope": self.rope})

    @property
    def rope_digest(self) -> str:
        """Digest of the rotary embedding's parameters alone."""
        return _digest(self.rope)

    def differences(self, other: Geometry) -> list[str]:
        """Return ``name: mine != theirs`` for every field that differs."""
        mine = {**self.values, **self.rope}
        theirs = {**other.values, **other.rope}
        return [
            f"{name}: {mine.get(name)!r} != {theirs.get(name)!r}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]


# Config values that change no computation: a checkpoint that was saved again is the same version.
_IRRELEVANT_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version", "use_cache"})


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder, identified by its content."""

    path: Path
    fingerprint: str
    geometry: Geometry
    model_type: str
    tokenizer_digest: str
    tensors: dict[str, TensorInfo] = field(repr=False)
    stamps: tuple[FileStamp, ...] = field(repr=False)

    @property
    def identity_key(self) -> str:
        """Key that is equal for equal content only.

        A sampled fingerprint may miss a change, so the file stamps are part of the key: a sampled
        checkpoint is taken for the same only while nobody touched its files.
        """
        if self.fingerprint.startswith(_SAMPLED_SCHEME):
            return f"{self.fingerprint}@{self.stamp_digest}"
        return self.fingerprint

    @property
    def stamp_digest(self) -> str:
        """Digest of the file stamps; compare with :func:`stamp_digest` of the folder."""
        return _digest(self.stamps)

    def is_unchanged(self) -> bool:
        """Whether the files on disk are still the ones that were fingerprinted."""
        return stamp_digest(self.path) == self.stamp_digest


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def stamp_digest(path: Path) -> str:
    """Return a digest of name, size, time and inode of the folder's files; empty if unreadable."""
    try:
        return _digest(read_stamps(path, list_shards(path)))
    except (CheckpointError, OSError):
        return ""


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's ``config.json``.

    Raises:
        CheckpointError: missing, unreadable or not a JSON object.
    """
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: {error}. A checkpoint needs a readable config.json."
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(config).__name__}.")
    return config


def read_geometry(config: dict[str, Any]) -> Geometry:
    """Return the KV geometry that a model config states (the text part of a multimodal one)."""
    text = config.get("text_config")
    source = text if isinstance(text, dict) else config
    return Geometry(
        values={name: source[name] for name in _GEOMETRY_KEYS if source.get(name) is not None},
        rope={name: source[name] for name in _ROPE_KEYS if source.get(name) is not None},
    )


def _tokenizer_digest(path: Path) -> str:
    hasher = hashlib.sha256()
    found = False
    for name in _TOKENIZER_FILES:
        file = path / name
        if file.is_file():
            found = True
            hasher.update(name.encode())
            hash_whole(file, hasher)
    return hasher.hexdigest() if found else ""


def inspect_checkpoint(path: str | Path, full_hash_limit_bytes: int) -> Checkpoint:
    """Fingerprint a checkpoint folder by content.

    Up to ``full_hash_limit_bytes`` of shards the whole content is hashed (scheme ``sha256``),
    above it every shard's header and sampled blocks of every tensor (scheme ``sampled``). The
    config is part of both. Folder names and labels are not, so a copy is the same version.

    Raises:
        CheckpointError: no such folder, no safetensors, or a file that can't be read.
    """
    folder = Path(path)
    shards = list_shards(folder)
    config = read_config(folder)
    geometry = read_geometry(config)
    try:
        stamps = read_stamps(folder, shards)
        whole = sum(stamp.size_bytes for stamp in stamps) <= full_hash_limit_bytes
        relevant = {k: v for k, v in config.items() if k not in _IRRELEVANT_CONFIG_KEYS}
        hasher = hashlib.sha256(_digest(relevant).encode())
        index = folder / INDEX_FILE
        if index.exists():
            # It tells which shard a tensor is read from, so it is part of the content.
            hash_whole(index, hasher)
        tensors: dict[str, TensorInfo] = {}
        for shard in shards:
            raw_header, header = read_header(shard)
            tensors.update(tensors_of(header))
            if whole:
                hash_whole(shard, hasher)
            else:
                hash_samples(shard, raw_header, header, hasher)
        tokenizer_digest = _tokenizer_digest(folder)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(folder)!r} can't be read: {error!r}.") from error
    return Checkpoint(
        path=folder,
        fingerprint=(_WHOLE_SCHEME if whole else _SAMPLED_SCHEME) + hasher.hexdigest(),
        geometry=geometry,
        model_type=str(config.get("model_type", "")),
        tokenizer_digest=tokenizer_digest,
        tensors=tensors,
        stamps=stamps,
    )


def require_same_tensors(served: Checkpoint, update: Checkpoint) -> None:
    """Check that ``update`` can be loaded into the model that ``served`` was loaded into.

    Raises:
        CheckpointError: a tensor is missing or has another shape; at most five are named.
    """
    problems = []
    for name, info in served.tensors.items():
        other = update.tensors.get(name)
        if other is None:
            problems.append(f"{name} is missing")
        elif other.shape != info.shape:
            problems.append(f"{name} has shape {list(other.shape)}, served {list(info.shape)}")
    problems += [f"{name} is unknown" for name in update.tensors if name not in served.tensors]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise CheckpointError(
            f"checkpoint {str(update.path)!r} doesn't fit the served model: "
            f"{'; '.join(problems[:5])}{more}. Weights were not touched. "
            "Start another server for another architecture."
        )
