"""``sglang-xver`` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sglang_xver import cli
from sglang_xver.identity import inspect_checkpoint
from tests.unit.core.test_identity import write


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sglang-xver", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("extra, limit", [((), 2**40), (("--sampled",), 0)])
def test_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    extra: tuple[str, ...],
    limit: int,
) -> None:
    folder = write(tmp_path / "a")
    assert run(monkeypatch, "fingerprint", str(folder), *extra) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fingerprint"] == inspect_checkpoint(folder, limit).fingerprint
    assert shown["geometry"]["num_hidden_layers"] == 2


def test_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "fingerprint", "/nonexistent") == 1
    assert capsys.readouterr().err.startswith("sglang-xver: checkpoint '/nonexistent'")
