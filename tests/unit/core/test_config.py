"""Configuration: file, environment, and errors that name the key and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_xver.config import load_config
from sglang_xver.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SGLANG_XVER")]:
        monkeypatch.delenv(name)


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    path = folder / "xver.toml"
    path.write_text(text)
    monkeypatch.setenv("SGLANG_XVER_CONFIG", str(path))


def test_defaults_act_and_name_no_family() -> None:
    config = load_config()
    assert config.mode == "on"
    assert config.task_families == ()


def test_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, tmp_path, 'mode = "observe"\ntask_families = ["niah"]\ntimeout_ms = 100\n')
    monkeypatch.setenv("SGLANG_XVER_MODE", "off")
    monkeypatch.setenv("SGLANG_XVER_TASK_FAMILIES", "qa, niah")
    config = load_config()
    assert (config.mode, config.timeout_ms) == ("off", 100)
    assert config.task_families == ("qa", "niah")


@pytest.mark.parametrize(
    "text, message",
    [
        ('servise = "a:1"', "unknown key 'servise'.*known keys: .*service"),
        ('mode = "maybe"', "mode='maybe'"),
        ('service = "nowhere"', "host:port"),
        ('service = "host:0"', "host:port"),
        ("timeout_ms = 0", "timeout_ms=0"),
        ("max_age_updates = -1", "max_age_updates=-1"),
        ("mode = ", "must be readable TOML"),
    ],
)
def test_bad_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    use(monkeypatch, tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_config()


def test_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_XVER_CONFIG", "/nonexistent.toml")
    with pytest.raises(ConfigError, match=r"/nonexistent\.toml: no such file"):
        load_config()


def test_unknown_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_XVER_MODUS", "on")
    with pytest.raises(ConfigError, match="SGLANG_XVER_MODUS"):
        load_config()
