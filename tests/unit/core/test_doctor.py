"""``sglang-xver doctor``: what each check finds, and that none of them can raise."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from xver.compat.v1 import evidence_pb2 as evidence
from xver.compat.v1 import evidence_pb2_grpc

from sglang_xver.config import CONFIG_PATH_VARIABLE
from sglang_xver.doctor import DoctorRequest, Finding, diagnose, installation, run_check
from sglang_xver.doctor.models import check_models
from sglang_xver.doctor.server import check_server
from sglang_xver.doctor.service import check_config, check_service
from sglang_xver.errors import ConfigError
from sglang_xver.identity import inspect_checkpoint
from tests.unit.core.test_identity import write

WHOLE = 2**40
BLOCK = {"mode": "on", "current_epoch": "initial", "failures": {}, "layout": {"digest": "d"}}


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


class TestRunCheck:
    def test_findings_are_passed_on(self) -> None:
        assert run_check("a", lambda: [Finding("a", "ok", "fine")]) == [Finding("a", "ok", "fine")]

    def test_error_of_this_project_fails_with_its_text(self) -> None:
        def judge() -> list[Finding]:
            raise ConfigError("value, rule, remedy")

        assert only(run_check("a", judge)) == Finding("a", "fail", "value, rule, remedy")

    def test_any_other_error_fails_and_is_named(self) -> None:
        def judge() -> Iterator[Finding]:
            yield Finding("a", "ok", "fine")
            raise ZeroDivisionError("of all things")

        found = only(run_check("a", judge))
        assert (found.check, found.status) == ("a", "fail")
        assert found.detail == "ZeroDivisionError: of all things"


class TestInstallation:
    @pytest.fixture(autouse=True)
    def no_sglang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def test_engine_checks_are_skipped_with_the_reason(self) -> None:
        found = by_check(installation.check_installation())
        for name in ("sglang", "torch", "engine", "kernels", "hook table", "plugin"):
            assert found[name] == Finding(name, "skipped", "sglang is not installed")

    def test_this_environment_is_fine(self) -> None:
        found = by_check(installation.check_installation())
        assert found["python"].status == "ok"
        assert found["packages"].status == "ok"
        assert f"grpcio {importlib.metadata.version('grpcio')}" in found["packages"].detail
        assert found["entry point"].detail == "sglang_xver.engine.plugin:register"

    def test_old_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installation, "_PYTHON_FLOOR", (99, 0))
        found = by_check(installation.check_installation())["python"]
        assert (found.status, found.remedy) == ("fail", "Use Python 99.0 or newer.")

    def test_packages_that_are_old_or_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = ["grpcio>=999.1", "no-such-package>=1", "rich>=14", "torch>=999; extra == 'x'"]
        monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
        found = by_check(installation.check_installation())["packages"]
        assert found.status == "fail"
        assert "grpcio" in found.detail
        assert "is older than 999.1" in found.detail
        assert "no-such-package is missing" in found.detail
        assert "rich" not in found.detail
        assert "torch" not in found.detail

    @pytest.mark.parametrize(
        "version, floor, satisfied",
        [
            ("1.81.1", "1.81.1", True),
            ("1.9", "1.81.1", False),
            ("2", "1.81.1", True),
            ("1.81.1rc1", "1.81.1", True),
            ("1.81", "1.81.1", False),
        ],
    )
    def test_versions_are_compared_as_numbers(
        self, monkeypatch: pytest.MonkeyPatch, version: str, floor: str, satisfied: bool
    ) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
        assert installation._package(f"grpcio>={floor}")[1] is satisfied

    def test_not_installed_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(name: str) -> Any:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "requires", absent)
        found = by_check(installation.check_installation())["packages"]
        assert (found.status, found.detail) == ("fail", "sglang-xver is not installed")

    def test_no_entry_point(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
        assert by_check(installation.check_installation())["entry point"].status == "fail"

    @pytest.mark.parametrize("allowed, status", [("a, xver", "ok"), ("a,b", "fail"), ("", "ok")])
    def test_plugins_that_the_environment_allows(
        self, monkeypatch: pytest.MonkeyPatch, allowed: str, status: str
    ) -> None:
        monkeypatch.setenv("SGLANG_PLUGINS", allowed)
        assert by_check(installation.check_installation())["entry point"].status == status


class TestConfig:
    def test_file_is_read_and_the_environment_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(CONFIG_PATH_VARIABLE, raising=False)
        file = tmp_path / "xver.toml"
        file.write_text('task_families = ["niah"]\nservice = "10.0.0.1:1"\n')
        findings, config = check_config(file)
        assert only(findings).status == "ok"
        assert str(file) in only(findings).detail
        assert config.service == "10.0.0.1:1"
        assert CONFIG_PATH_VARIABLE not in os.environ

    def test_unknown_key_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "xver.toml"
        file.write_text("task_familys = []\n")
        findings, config = check_config(file)
        assert only(findings).status == "fail"
        assert "unknown key 'task_familys'" in only(findings).detail
        assert config.timeout_ms == 2000

    def test_no_families_is_a_warning(self, tmp_path: Path) -> None:
        file = tmp_path / "xver.toml"
        file.write_text('mode = "on"\n')
        finding = only(check_config(file)[0])
        assert finding.status == "warn"
        assert "NO_TASK_FAMILY" in finding.remedy

    def test_missing_file(self, tmp_path: Path) -> None:
        finding = only(check_config(tmp_path / "absent.toml")[0])
        assert finding.status == "fail"
        assert "no such file" in finding.detail


class Evidence(evidence_pb2_grpc.EvidenceServiceServicer):
    """Knows as many pairs as it is told."""

    def __init__(self, pairs: int, more: bool = False) -> None:
        self.reply = evidence.ListPairsResponse(
            pairs=[evidence.Pair()] * pairs, next_page_token="t" if more else ""
        )

    def _list_pairs(self, request: Any, context: Any) -> Any:
        return self.reply

    ListPairs = _list_pairs


def serve(servicer: Evidence) -> tuple[grpc.Server, str]:
    server = grpc.server(ThreadPoolExecutor(1))
    evidence_pb2_grpc.add_EvidenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


class TestService:
    @pytest.mark.parametrize(
        "pairs, more, status, count",
        [(0, False, "warn", "0"), (3, False, "ok", "3"), (5, True, "ok", "5 or more")],
    )
    def test_reachable(self, pairs: int, more: bool, status: str, count: str) -> None:
        server, target = serve(Evidence(pairs, more))
        try:
            finding = only(check_service(target, 30.0))
        finally:
            server.stop(None)
        assert finding.status == status
        assert finding.detail == f"{target} answers; pairs of versions with evidence: {count}"

    def test_out_of_reach(self) -> None:
        server, target = serve(Evidence(0))
        server.stop(None).wait()
        finding = only(check_service(target, 5.0))
        assert finding.status == "fail"
        assert target in finding.detail
        assert "xver-compat serve" in finding.detail

    def test_not_this_service(self) -> None:
        server = grpc.server(ThreadPoolExecutor(1))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            finding = only(check_service(f"127.0.0.1:{port}", 30.0))
        finally:
            server.stop(None)
        assert finding.status == "fail"
        assert "UNIMPLEMENTED" in finding.detail


class TestModels:
    def test_none_given(self) -> None:
        assert only(check_models((), WHOLE)).status == "skipped"

    def test_fingerprint_and_geometry_are_shown(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "a")
        finding = only(check_models((folder,), WHOLE))
        assert finding.status == "ok"
        assert inspect_checkpoint(folder, WHOLE).fingerprint in finding.detail
        assert "num_hidden_layers=2" in finding.detail

    def test_broken_header(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "a")
        shard = next(folder.glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-1])
        assert only(check_models((folder,), WHOLE)).status == "fail"

    def test_one_broken_model_hides_no_other(self, tmp_path: Path) -> None:
        good, update = write(tmp_path / "a"), write(tmp_path / "b")
        findings = check_models((good, tmp_path / "absent", update), WHOLE)
        assert [(f.check, f.status) for f in findings] == [
            ("model", "ok"),
            ("model", "fail"),
            ("model", "ok"),
            ("pair", "ok"),
        ]
        assert "the same content" in findings[-1].detail

    def test_other_tensors(self, tmp_path: Path) -> None:
        folders = (write(tmp_path / "a"), write(tmp_path / "b", rows=32))
        finding = check_models(folders, WHOLE)[-1]
        assert (finding.check, finding.status) == ("pair", "fail")
        assert "w has shape [32, 512], served [64, 512]" in finding.detail

    def test_other_geometry(self, tmp_path: Path) -> None:
        other = write(tmp_path / "b", rope_theta=5.0)
        finding = check_models((write(tmp_path / "a"), other), WHOLE)[-1]
        assert (finding.check, finding.status) == ("pair", "warn")
        assert "rope_theta" in finding.detail

    def test_other_tokenizer(self, tmp_path: Path) -> None:
        first, second = write(tmp_path / "a"), write(tmp_path / "b", x=1)
        (second / "tokenizer.json").write_text("{}")
        finding = check_models((first, second), WHOLE)[-1]
        assert finding.status == "warn"
        assert "tokenizers differ" in finding.detail


@pytest.fixture
def sglang_server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server whose reply to ``/server_info`` the test decides."""
    reply: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/server_info" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", reply
    server.shutdown()
    thread.join()
    server.server_close()


class TestServer:
    def test_skipped(self) -> None:
        assert only(check_server(None)).status == "skipped"

    @pytest.mark.parametrize(
        "block, status, text",
        [
            (BLOCK, "ok", "mode on, current epoch initial, no failures"),
            ({**BLOCK, "failures": {"APPLY_RAISED": 2}}, "warn", "APPLY_RAISED: 2"),
            ({**BLOCK, "layout": None}, "warn", "layout is unknown"),
            (None, "fail", "without the backend"),
            ({}, "fail", "KeyError"),
        ],
    )
    def test_block(
        self, sglang_server: tuple[str, dict[str, Any]], block: Any, status: str, text: str
    ) -> None:
        url, reply = sglang_server
        reply["internal_states"] = [{} if block is None else {"xver": block}]
        finding = only(check_server(url))
        assert finding.status == status
        assert text in finding.detail

    def test_every_state_is_looked_at(self, sglang_server: tuple[str, dict[str, Any]]) -> None:
        url, reply = sglang_server
        reply["internal_states"] = [{"xver": BLOCK}, {}]
        assert [f.status for f in check_server(f"{url}/")] == ["ok", "fail"]

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1", "not an address", "http://[::"])
    def test_out_of_reach(self, url: str) -> None:
        finding = only(check_server(url))
        assert finding.status == "fail"
        assert url in finding.detail


class TestWithoutSglang:
    def test_an_ops_machine_needs_neither_torch_nor_sglang(self, tmp_path: Path) -> None:
        script = (
            "import sys\n"
            "sys.modules.update(dict.fromkeys(['torch', 'sglang', 'sgl_kernel']))\n"
            "import importlib.util as u\n"
            "find = u.find_spec\n"
            "u.find_spec = lambda n, *a: None if n == 'sglang' else find(n, *a)\n"
            "from sglang_xver.doctor import *\n"
            "found = diagnose(DoctorRequest(service='127.0.0.1:1'))\n"
            "print({f.check: f.status for f in found})\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert "'hook table': 'skipped'" in done.stdout
        assert "'service': 'fail'" in done.stdout

    def test_everything_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        checks = [f.check for f in diagnose(DoctorRequest(service="127.0.0.1:1"))]
        assert checks[:3] == ["python", "packages", "entry point"]
        assert checks[-4:] == ["config", "service", "model", "server"]
