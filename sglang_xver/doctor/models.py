"""Whether checkpoints can be fingerprinted, and fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sglang_xver.doctor.findings import Finding, run_check
from sglang_xver.errors import CheckpointError
from sglang_xver.identity import Checkpoint, inspect_checkpoint, require_same_tensors


def check_models(paths: tuple[Path, ...], full_hash_limit_bytes: int) -> list[Finding]:
    """Check each checkpoint, and every later one as an update of the first."""
    if not paths:
        return [Finding("model", "skipped", "no --model was given")]
    findings: list[Finding] = []
    found: list[Checkpoint] = []
    for path in paths:
        findings += run_check("model", partial(_model, path, full_hash_limit_bytes, found))
    for update in found[1:]:
        findings += run_check("pair", partial(_pair, found[0], update))
    return findings


def _model(path: Path, limit_bytes: int, found: list[Checkpoint]) -> Iterator[Finding]:
    checkpoint = inspect_checkpoint(path, limit_bytes)
    found.append(checkpoint)
    geometry = {**checkpoint.geometry.values, **checkpoint.geometry.rope}
    values = ", ".join(f"{name}={value}" for name, value in sorted(geometry.items()))
    detail = (
        f"{checkpoint.path}: {checkpoint.fingerprint}, {checkpoint.model_type}, "
        f"{len(checkpoint.tensors)} tensors, {values}"
    )
    yield Finding("model", "ok", detail)


def _pair(served: Checkpoint, update: Checkpoint) -> Iterator[Finding]:
    names = f"{served.path} -> {update.path}"
    try:
        require_same_tensors(served, update)
    except CheckpointError as error:
        yield Finding("pair", "fail", f"{names}: {error}")
        return
    differences = served.geometry.differences(update.geometry)
    if served.fingerprint == update.fingerprint:
        yield Finding("pair", "ok", f"{names}: the same content, an update keeps everything")
    elif differences:
        remedy = "The update loads, but all KV is evicted, whatever was measured."
        yield Finding("pair", "warn", f"{names}: {'; '.join(differences)}", remedy)
    elif served.tokenizer_digest != update.tokenizer_digest:
        remedy = "Serve both with one tokenizer: the tree's keys are token ids."
        yield Finding("pair", "warn", f"{names}: the tokenizers differ", remedy)
    else:
        yield Finding("pair", "ok", f"{names}: same tensors and geometry")
