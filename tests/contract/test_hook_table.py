"""The hook table against the installed SGLang."""

from __future__ import annotations

import pytest
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_xver.engine import hook_table
from sglang_xver.engine.hook_table import SYMBOLS, Symbol
from sglang_xver.errors import HookError

load_plugins()


def test_installed_sglang_matches() -> None:
    assert hook_table.mismatches() == []


def test_every_hook_was_applied() -> None:
    hook_table.require_applied_hooks()
    assert HookRegistry._patched >= hook_table.HOOKED_PATHS


def test_every_registered_hook_is_in_the_table() -> None:
    ours = {
        path
        for path, hooks in HookRegistry._hooks.items()
        if any(hook.__module__.endswith(("scheduler_hooks", "main_hooks")) for _, hook, _ in hooks)
    }
    assert ours == hook_table.HOOKED_PATHS


@pytest.mark.parametrize("path", sorted(hook_table.HOOKED_PATHS))
def test_one_missing_hook_stops_the_start(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {path})
    with pytest.raises(HookError, match=path.rsplit(".", 1)[1]):
        hook_table.require_applied_hooks()


def test_all_mismatches_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (
        Symbol("sglang.srt.nowhere.Nothing.nothing", "hook", ("self",)),
        Symbol(SYMBOLS[0].path, "hook", ("self", "something", "else")),
        Symbol("sglang.srt.managers.scheduler.Scheduler.flush_cache", "call", ("absent",)),
    )
    monkeypatch.setattr(hook_table, "SYMBOLS", broken)
    with pytest.raises(HookError) as caught:
        hook_table.require_matching_sglang()
    text = str(caught.value)
    assert "nowhere" in text
    assert "something" in text
    assert "absent" in text
    assert "Install sglang" in text
