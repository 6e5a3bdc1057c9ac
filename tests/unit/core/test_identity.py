"""A version is what its bytes are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sglang_xver.errors import CheckpointError
from sglang_xver.identity import inspect_checkpoint, read_geometry, require_same_tensors

WHOLE = 2**40


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


MALFORMED = {
    "empty": b"",
    "short": b"\x01",
    "huge header": (2**62).to_bytes(8, "little"),
    "no json": framed(b"nope"),
    "list": framed(b"[]"),
    "deep": framed(b"[" * 100_000),
    "infinite shape": framed(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}}'),
    "negative offset": framed(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}'),
    "cut short": framed(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}') + b"\0" * 8,
    "unknown type": framed(b'{"a":{"dtype":"XF16","shape":[1],"data_offsets":[0,2]}}') + b"\0" * 2,
    "shape against bytes": framed(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}')
    + b"\0" * 4,
    "too long": framed(b"{}") + b"\0" * 8,
}
SAMPLED = 0
CONFIG: dict[str, Any] = {
    "model_type": "tiny",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}


def write(folder: Path, *, bump: float = 0.0, rows: int = 64, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    weight = np.arange(rows * 512, dtype=np.float32).reshape(rows, 512)
    weight[-1, -1] += bump
    save_file({"w": weight, "b": np.zeros(4, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture(params=[WHOLE, SAMPLED], ids=["whole", "sampled"])
def limit(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class TestFingerprint:
    def test_equal_bytes_are_equal_wherever_they_lie(self, tmp_path: Path, limit: int) -> None:
        first = write(tmp_path / "a")
        copy = tmp_path / "copy"
        shutil.copytree(first, copy)
        assert (
            inspect_checkpoint(first, limit).fingerprint
            == inspect_checkpoint(copy, limit).fingerprint
        )

    def test_one_changed_value_is_another_version(self, tmp_path: Path, limit: int) -> None:
        first = inspect_checkpoint(write(tmp_path / "a"), limit)
        second = inspect_checkpoint(write(tmp_path / "b", bump=1.0), limit)
        assert first.fingerprint != second.fingerprint

    def test_same_weights_with_another_rope_are_another_version(
        self, tmp_path: Path, limit: int
    ) -> None:
        first = inspect_checkpoint(write(tmp_path / "a"), limit)
        second = inspect_checkpoint(write(tmp_path / "b", rope_theta=5.0), limit)
        assert first.fingerprint != second.fingerprint
        assert second.geometry.differences(first.geometry) == ["rope_theta: 5.0 != 10000.0"]

    def test_schemes_never_compare_equal(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "a")
        assert inspect_checkpoint(folder, WHOLE).fingerprint.startswith("sha256:")
        assert inspect_checkpoint(folder, SAMPLED).fingerprint.startswith("sampled:")

    def test_config_that_changes_the_computation_is_another_version(
        self, tmp_path: Path, limit: int
    ) -> None:
        first = inspect_checkpoint(write(tmp_path / "a", rms_norm_eps=1e-5), limit)
        second = inspect_checkpoint(write(tmp_path / "b", rms_norm_eps=1e-1), limit)
        assert first.fingerprint != second.fingerprint

    def test_values_that_shape_nothing_are_ignored(self, tmp_path: Path) -> None:
        first = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        second = inspect_checkpoint(write(tmp_path / "b", transformers_version="9"), WHOLE)
        assert first.fingerprint == second.fingerprint

    def test_index_that_names_other_shards_is_another_version(
        self, tmp_path: Path, limit: int
    ) -> None:
        """The index tells the loader which shard a tensor is read from."""
        folder = write(tmp_path)
        found = set()
        for shard in ("model.safetensors", "other.safetensors"):
            shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
            index = {"weight_map": {"w": shard, "b": shard}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            found.add(inspect_checkpoint(folder, limit).fingerprint)
        assert len(found) == 2


class TestFilesThatChange:
    def test_overwritten_in_place(self, tmp_path: Path) -> None:
        checkpoint = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        assert checkpoint.is_unchanged()
        write(tmp_path / "a", bump=1.0)
        os.utime(tmp_path / "a" / "model.safetensors", ns=(1, 1))
        assert not checkpoint.is_unchanged()

    def test_written_with_its_time_restored(self, tmp_path: Path) -> None:
        checkpoint = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        file = tmp_path / "a" / "model.safetensors"
        stat = file.stat()
        with file.open("r+b") as handle:
            handle.seek(-4, os.SEEK_END)
            handle.write(b"abcd")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert not checkpoint.is_unchanged()

    def test_sampled_identity_is_lost_when_a_file_is_touched(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "a")
        before = inspect_checkpoint(folder, SAMPLED)
        os.utime(folder / "model.safetensors", ns=(1, 1))
        after = inspect_checkpoint(folder, SAMPLED)
        assert before.fingerprint == after.fingerprint
        assert before.identity_key != after.identity_key
        assert inspect_checkpoint(folder, WHOLE).identity_key.startswith("sha256:")

    def test_removed(self, tmp_path: Path) -> None:
        checkpoint = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        shutil.rmtree(tmp_path / "a")
        assert not checkpoint.is_unchanged()


class TestShards:
    def test_only_shards_of_the_index_count(self, tmp_path: Path, limit: int) -> None:
        """The loader reads no others, so what they hold is no part of the version."""
        folder = write(tmp_path)
        weight_map = {"w": "model.safetensors", "b": "model.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        alone = inspect_checkpoint(folder, limit)
        save_file({"x": np.ones(4, np.float32)}, folder / "extra.safetensors")
        both = inspect_checkpoint(folder, limit)
        assert both.tensors.keys() == {"w", "b"}
        assert both.fingerprint == alone.fingerprint

    def test_shard_of_the_index_that_is_missing(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        weight_map = {"w": "model.safetensors", "b": "model-2.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=r"lacks model-2\.safetensors"):
            inspect_checkpoint(folder, WHOLE)

    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"weight_map": 1}', "[" * 100_000])
    def test_malformed_index(self, tmp_path: Path, content: str) -> None:
        folder = write(tmp_path)
        (folder / "model.safetensors.index.json").write_text(content)
        with pytest.raises(CheckpointError, match="no shard index"):
            inspect_checkpoint(folder, WHOLE)

    def test_pipe_is_no_shard(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        os.mkfifo(folder / "pipe.safetensors")
        with pytest.raises(CheckpointError, match="regular file"):
            inspect_checkpoint(folder, WHOLE)


class TestRefusals:
    def test_missing_folder_is_named(self) -> None:
        with pytest.raises(CheckpointError, match="'/nonexistent' is not a folder"):
            inspect_checkpoint("/nonexistent", WHOLE)

    def test_no_safetensors(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
            inspect_checkpoint(tmp_path, WHOLE)

    @pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
    def test_no_safetensors_inside(self, tmp_path: Path, content: bytes, limit: int) -> None:
        write(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match="safetensors"):
            inspect_checkpoint(tmp_path, limit)

    @pytest.mark.parametrize("config", ["", "[1]", "{", "[" * 100_000])
    def test_malformed_config(self, tmp_path: Path, config: str) -> None:
        write(tmp_path)
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            inspect_checkpoint(tmp_path, WHOLE)


class TestTensors:
    def test_other_shape_is_named(self, tmp_path: Path) -> None:
        served = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        update = inspect_checkpoint(write(tmp_path / "b", rows=32), WHOLE)
        with pytest.raises(CheckpointError, match=r"w has shape \[32, 512\], served \[64, 512\]"):
            require_same_tensors(served, update)

    def test_missing_and_unknown_tensors_are_named(self, tmp_path: Path) -> None:
        served = inspect_checkpoint(write(tmp_path / "a"), WHOLE)
        other = write(tmp_path / "b")
        save_file({"x": np.zeros(4, np.float32)}, other / "model.safetensors")
        with pytest.raises(CheckpointError, match="b is missing; w is missing; x is unknown"):
            require_same_tensors(served, inspect_checkpoint(other, WHOLE))


def test_multimodal_config_uses_its_text_part() -> None:
    nested = read_geometry({"model_type": "vl", "text_config": CONFIG})
    assert nested.digest == read_geometry(CONFIG).digest
