"""The engine's side of ``sglang-xver doctor``."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from sglang.srt.mem_cache import registry
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_xver.doctor.findings import Finding
from sglang_xver.engine import doctor, hook_table
from sglang_xver.engine.hook_table import Symbol

VARIABLE = "SGLANG_USE_CPU_ENGINE"
BROKEN = (
    Symbol("sglang.srt.nowhere.x", "field"),
    Symbol("sglang.srt.managers.scheduler.Scheduler.no_such", "field"),
)


@pytest.fixture(autouse=True)
def cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


def found(check: str) -> list[Finding]:
    return [finding for finding in doctor.engine_findings() if finding.check == check]


def only(check: str) -> Finding:
    findings = found(check)
    assert len(findings) == 1, findings
    return findings[0]


def test_installed_sglang_fits() -> None:
    findings = {finding.check: finding.status for finding in doctor.engine_findings()}
    assert findings.pop("kernels") in {"ok", "warn"}
    assert findings == dict.fromkeys(("sglang", "torch", "engine", "hook table", "plugin"), "ok")


def test_version_outside_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_table, "installed_version", lambda: "0.5.22")
    finding = only("sglang")
    assert (finding.status, finding.detail) == ("fail", "0.5.22 is outside >=0.5.23,<0.5.24")
    assert finding.remedy == "pip install 'sglang>=0.5.23,<0.5.24'"


class TestHookTable:
    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hook_table, "SYMBOLS", BROKEN)

    def test_every_mismatch_has_a_line(self) -> None:
        findings = found("hook table")
        assert [finding.status for finding in findings] == ["fail", "fail"]
        for symbol, finding in zip(BROKEN, findings, strict=True):
            assert symbol.path in finding.detail

    def test_the_plugin_is_not_loaded_then(self) -> None:
        assert only("plugin").status == "skipped"


class TestPlugin:
    def test_a_hook_that_was_not_applied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        path = min(hook_table.HOOKED_PATHS)
        monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {path})
        finding = only("plugin")
        assert finding.status == "fail"
        assert path in finding.detail

    def test_a_backend_that_is_not_registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "_RADIX_CACHE_REGISTRY", {})
        finding = only("plugin")
        assert finding.status == "fail"
        assert "'xver' is not registered" in finding.detail


class TestKernels:
    def import_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(name: str) -> ModuleType:
            raise ImportError("libcuda.so.1: cannot open\nand more")

        monkeypatch.setattr(importlib, "import_module", refuse)

    def test_stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.import_fails(monkeypatch)
        monkeypatch.setattr(doctor, "ensure_sgl_kernel", lambda: True)
        finding = next(iter(doctor._kernels()))
        assert finding.status == "warn"
        assert finding.detail.endswith("libcuda.so.1: cannot open")

    def test_broken_on_a_gpu_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.import_fails(monkeypatch)
        monkeypatch.setattr(doctor, "ensure_sgl_kernel", lambda: False)
        assert next(iter(doctor._kernels())).status == "fail"

    def test_real(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib, "import_module", ModuleType)
        monkeypatch.setattr(doctor, "ensure_sgl_kernel", lambda: False)
        assert next(iter(doctor._kernels())).status == "ok"


class TestEngine:
    def test_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
        finding = next(iter(doctor._engine()))
        assert finding.status == "warn"
        assert finding.detail.startswith("8 x cuda")

    def test_neither(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
        finding = next(iter(doctor._engine()))
        assert (finding.status, finding.remedy) == (
            "warn",
            f"Set {VARIABLE}=1 to serve on the CPU.",
        )
