"""``sglang-xver`` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sglang_xver import cli
from sglang_xver.doctor import DoctorRequest, Finding
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


FINDINGS = [
    Finding("python", "ok", "3.11"),
    Finding("service", "warn", "[no] evidence", "Calibrate."),
    Finding("model", "skipped", "no --model was given"),
]
BROKEN = Finding("hook table", "fail", "Scheduler.x (field): missing", "pip install sglang")


@pytest.mark.parametrize("findings, status", [(FINDINGS, 0), ([*FINDINGS, BROKEN], 1)])
@pytest.mark.parametrize("form", ["human", "json"])
class TestDoctor:
    @pytest.fixture
    def shown(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        findings: list[Finding],
        status: int,
        form: str,
    ) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(cli, "diagnose", lambda request: findings)
        assert run(monkeypatch, "doctor", "--format", form) == status
        return capsys.readouterr().out

    def test_every_finding_is_shown_whole(
        self, shown: str, findings: list[Finding], status: int, form: str
    ) -> None:
        if form == "json":
            assert json.loads(shown)["checks"] == [finding.to_dict() for finding in findings]
            assert json.loads(shown)["ok"] is (status == 0)
            return
        for finding in findings:
            line = next(line for line in shown.splitlines() if finding.check in line)
            assert all(part in line for part in (finding.status, finding.detail, finding.remedy))


def test_doctor_looks_at_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[DoctorRequest] = []

    def note(request: DoctorRequest) -> list[Finding]:
        asked.append(request)
        return []

    monkeypatch.setattr(cli, "diagnose", note)
    options = [
        "--config",
        "c.toml",
        "--service",
        "h:1",
        "--model",
        "a",
        "--model",
        "b",
        "--server",
        "http://s",
    ]
    assert run(monkeypatch, "doctor", *options) == 0
    assert asked == [DoctorRequest(Path("c.toml"), "h:1", (Path("a"), Path("b")), "http://s")]
