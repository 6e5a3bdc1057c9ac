"""A server that could serve stale KV must not start, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.testbed.process import SglangServer
from tests.e2e.support import Models

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 180.0

SABOTEUR = """
def register():
    from sglang.srt.plugins.hook_registry import HookRegistry

    original = HookRegistry._apply_target.__func__

    def fail(cls, target, hooks):
        if target.endswith("flush_cache_after_weight_update"):
            raise RuntimeError("injected: hook can't be applied")
        return original(cls, target, hooks)

    HookRegistry._apply_target = classmethod(fail)
"""


def end_of(model: Path, folder: Path, **options: object) -> tuple[int, str]:
    """Start a server that must end by itself; return its exit code and its log."""
    server = SglangServer(model, folder / "server.log", **options)  # type: ignore[arg-type]
    with server:
        code = server.wait_exit(START_TIMEOUT_S)
    return code, server.log.read_text(errors="replace")


@pytest.fixture
def saboteur(tmp_path: Path) -> Path:
    """Return a folder with a second SGLang plugin that keeps one of our hooks from applying."""
    (tmp_path / "saboteur.py").write_text(SABOTEUR)
    info = tmp_path / "saboteur-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: saboteur\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\naaa_saboteur = saboteur:register\n"
    )
    return tmp_path


class TestRefusesToStart:
    def test_without_its_hooks(self, models: Models, tmp_path: Path, saboteur: Path) -> None:
        code, log = end_of(models.base, tmp_path, environment={"PYTHONPATH": str(saboteur)})
        assert code != 0
        assert "hooks were not applied" in log
        assert "flush_cache_after_weight_update" in log

    def test_without_the_plugin(self, models: Models, tmp_path: Path) -> None:
        code, log = end_of(models.base, tmp_path, environment={"SGLANG_PLUGINS": "none"})
        assert code != 0
        assert "xver" in log

    def test_with_an_unknown_configuration_key(self, models: Models, tmp_path: Path) -> None:
        config = tmp_path / "xver.toml"
        config.write_text('mode = "on"\nservise = "127.0.0.1:1"\n')
        code, log = end_of(models.base, tmp_path, environment={"SGLANG_XVER_CONFIG": str(config)})
        assert code != 0
        assert "unknown key 'servise'" in log
        assert "known keys" in log

    def test_with_an_option_that_was_not_checked(self, models: Models, tmp_path: Path) -> None:
        code, log = end_of(models.base, tmp_path, arguments=("--enable-streaming-session",))
        assert code != 0
        assert "can't be combined with --enable-streaming-session" in log
