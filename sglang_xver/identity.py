"""Identity of checkpoints: content fingerprint, geometry, tensor shapes.

A version is what its bytes are, never what its label says. Pure module: reads files with the
standard library, needs neither torch nor SGLang.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sglang_xver.errors import CheckpointError

_BLOCK_BYTES = 4096
_BLOCKS_PER_TENSOR = 6
_READ_BYTES = 8 * 1024 * 1024
_MAX_HEADER_BYTES = 256 * 1024 * 1024
_INDEX_FILE = "model.safetensors.index.json"
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


class TensorInfo(NamedTuple):
    """One tensor of a checkpoint: its storage type and shape."""

    dtype: str
    shape: tuple[int, ...]


class FileStamp(NamedTuple):
    """What tells that a file was replaced or written: name, size in bytes, mtime, inode."""

    name: str
    size_bytes: int
    mtime_ns: int
    inode: int


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
    def stamp_digest(self) -> str:
        """Digest of the file stamps; compare with :func:`stamp_digest` of the folder."""
        return _digest(self.stamps)

    def is_unchanged(self) -> bool:
        """Whether the files on disk are still the ones that were fingerprinted."""
        return stamp_digest(self.path) == self.stamp_digest


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _shards(path: Path) -> list[Path]:
    if not path.is_dir():
        raise CheckpointError(
            f"checkpoint {str(path)!r} is not a folder on this machine. "
            "Give the path of a folder with config.json and *.safetensors."
        )
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(
            f"checkpoint {str(path)!r} holds no *.safetensors file. Other formats have no "
            "content fingerprint; convert the checkpoint to safetensors."
        )
    return shards


def stamp_digest(path: Path) -> str:
    """Return a digest of name, size, time and inode of the folder's files; empty if unreadable."""
    try:
        return _digest(_stamps(path, _shards(path)))
    except (CheckpointError, OSError):
        return ""


def _stamps(path: Path, shards: list[Path]) -> tuple[FileStamp, ...]:
    stamps = []
    index = path / _INDEX_FILE
    for file in [path / "config.json", *([index] if index.exists() else []), *shards]:
        stat = file.stat()
        stamps.append(FileStamp(file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(stamps)


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's ``config.json``.

    Raises:
        CheckpointError: missing, unreadable or not a JSON object.
    """
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
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


def _read_header(file: Path) -> tuple[bytes, dict[str, Any]]:
    with file.open("rb") as handle:
        prefix = handle.read(8)
        size = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or size > min(_MAX_HEADER_BYTES, file.stat().st_size):
            raise CheckpointError(f"{file}: not a safetensors file (header of {size} bytes).")
        raw = handle.read(size)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: safetensors header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: safetensors header is not a JSON object.")
    return prefix + raw, header


def _tensors(file: Path, raw_header: bytes, header: dict[str, Any]) -> dict[str, TensorInfo]:
    """Read the tensors' types and shapes; refuse a file that is cut short or too long."""
    data_bytes = file.stat().st_size - len(raw_header)
    tensors: dict[str, TensorInfo] = {}
    last = 0
    try:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = (int(offset) for offset in entry["data_offsets"])
            if not 0 <= start <= end:
                raise ValueError(f"{name}: data_offsets {start}, {end}")
            last = max(last, end)
            tensors[name] = TensorInfo(
                str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file}: malformed safetensors header ({error!r}).") from error
    if last != data_bytes:
        raise CheckpointError(
            f"{file}: holds {data_bytes} bytes of tensors, its header says {last}. "
            "Is it still being written? Reload when it is complete."
        )
    return tensors


def _hash_whole(file: Path, hasher: Any) -> None:
    with file.open("rb") as handle:
        while block := handle.read(_READ_BYTES):
            hasher.update(block)


def _hash_samples(file: Path, raw_header: bytes, header: dict[str, Any], hasher: Any) -> None:
    """Hash the header and evenly spread blocks of every tensor, its first and last included."""
    hasher.update(raw_header)
    hasher.update(file.stat().st_size.to_bytes(8, "little"))
    with file.open("rb") as handle:
        for name in sorted(key for key in header if key != "__metadata__"):
            start, end = header[name]["data_offsets"]
            last = max(start, end - _BLOCK_BYTES)
            for step in range(_BLOCKS_PER_TENSOR):
                offset = start + (last - start) * step // (_BLOCKS_PER_TENSOR - 1)
                handle.seek(len(raw_header) + offset)
                hasher.update(handle.read(min(_BLOCK_BYTES, end - offset)))


def _tokenizer_digest(path: Path) -> str:
    hasher = hashlib.sha256()
    found = False
    for name in _TOKENIZER_FILES:
        file = path / name
        if file.is_file():
            found = True
            hasher.update(name.encode())
            _hash_whole(file, hasher)
    return hasher.hexdigest() if found else ""


def inspect_checkpoint(path: str | Path, full_hash_limit_bytes: int) -> Checkpoint:
    """Fingerprint a checkpoint folder by content.

    Up to ``full_hash_limit_bytes`` of shards the whole content is hashed (scheme ``sha256``),
    above it every shard's header and sampled blocks of every tensor (scheme ``sampled``). The
    geometry is part of both. File names and labels are not, so a renamed copy is the same version.

    Raises:
        CheckpointError: no such folder, no safetensors, or a file that can't be read.
    """
    folder = Path(path)
    shards = _shards(folder)
    config = read_config(folder)
    geometry = read_geometry(config)
    try:
        stamps = _stamps(folder, shards)
        whole = sum(stamp.size_bytes for stamp in stamps) <= full_hash_limit_bytes
        hasher = hashlib.sha256(geometry.digest.encode())
        index = folder / _INDEX_FILE
        if index.exists():
            # It tells which shard a tensor is read from, so it is part of the content.
            _hash_whole(index, hasher)
        tensors: dict[str, TensorInfo] = {}
        for shard in shards:
            raw_header, header = _read_header(shard)
            tensors.update(_tensors(shard, raw_header, header))
            if whole:
                _hash_whole(shard, hasher)
            else:
                _hash_samples(shard, raw_header, header, hasher)
        tokenizer_digest = _tokenizer_digest(folder)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(folder)!r} can't be read: {error!r}.") from error
    return Checkpoint(
        path=folder,
        fingerprint=("sha256:" if whole else "sampled:") + hasher.hexdigest(),
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
