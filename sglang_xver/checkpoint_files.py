"""The files of a checkpoint folder: which shards count, their headers, stamps and hashes.

Pure module: the standard library and ``safetensors``' own header check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from sglang_xver.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
_BLOCK_BYTES = 4096
_BLOCKS_PER_TENSOR = 6
_READ_BYTES = 8 * 1024 * 1024


class TensorInfo(NamedTuple):
    """One tensor of a checkpoint: its storage type and shape."""

    dtype: str
    shape: tuple[int, ...]


class FileStamp(NamedTuple):
    """What tells that a file was replaced or written, even by somebody who restored its mtime."""

    name: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def list_shards(path: Path) -> list[Path]:
    """Return the shards that SGLang's loader would read: those of the index, else all.

    Raises:
        CheckpointError: no folder, no shard, or one that the index names is missing.
    """
    if not path.is_dir():
        raise CheckpointError(
            f"checkpoint {str(path)!r} is not a folder on this machine. "
            "Give the path of a folder with config.json and *.safetensors."
        )
    index = path / INDEX_FILE
    if index.exists():
        names = _indexed_shards(index)
    else:
        names = {file.name for file in path.glob("*.safetensors")}
        if names == {"consolidated.safetensors", "model.safetensors"}:
            # Two copies of one model; the loader takes the second.
            names = {"model.safetensors"}
    if not names:
        raise CheckpointError(
            f"checkpoint {str(path)!r} holds no *.safetensors file. Other formats have no "
            "content fingerprint; convert the checkpoint to safetensors."
        )
    missing = sorted(name for name in names if not (path / name).is_file())
    if missing:
        raise CheckpointError(
            f"checkpoint {str(path)!r} lacks {', '.join(missing[:5])}, which must be a regular "
            "file. Is it still being written? Reload when it is complete."
        )
    return [path / name for name in sorted(names)]


def _indexed_shards(index: Path) -> set[str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        return {str(name) for name in weight_map.values()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no shard index ({error!r}).") from error


def read_stamps(path: Path, shards: list[Path]) -> tuple[FileStamp, ...]:
    """Return the stamps of the config, the index if any, and the shards."""
    index = path / INDEX_FILE
    return tuple(
        _stamp(file)
        for file in [path / "config.json", *([index] if index.exists() else []), *shards]
    )


def _stamp(file: Path) -> FileStamp:
    stat = file.stat()
    return FileStamp(file.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def read_header(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a shard's header, raw with its length and parsed, after the library checked it.

    The library refuses unknown types, shapes that don't fit their bytes, gaps, and files that are
    cut short, as one that is still being written is.

    Raises:
        CheckpointError: any of those.
    """
    try:
        with safe_open(file, framework="np"):
            pass
        with file.open("rb") as handle:
            prefix = handle.read(8)
            raw = handle.read(int.from_bytes(prefix, "little"))
        header: dict[str, Any] = json.loads(raw)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not a complete safetensors file ({error}). Weights were not touched. "
            "If it is still being written, reload when it is complete."
        ) from error
    return prefix + raw, header


def tensors_of(header: dict[str, Any]) -> dict[str, TensorInfo]:
    """Return the tensors that a parsed header lists."""
    return {
        name: TensorInfo(entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


def hash_whole(file: Path, hasher: Any) -> None:
    """Feed the whole file to ``hasher``."""
    with file.open("rb") as handle:
        while block := handle.read(_READ_BYTES):
            hasher.update(block)


def hash_samples(file: Path, raw_header: bytes, header: dict[str, Any], hasher: Any) -> None:
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
