"""The hook table against the installed SGLang."""

from __future__ import annotations

import msgspec
import pytest
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_xver.engine import hook_table
from sglang_xver.engine.cpu.attention import _LAST_LOC_TARGET
from sglang_xver.engine.hook_table import SYMBOLS, Symbol
from sglang_xver.engine.symbols_server import CPU_HOOKED_PATHS
from sglang_xver.errors import HookError

load_plugins()

HERE = __name__
BROKEN = (
    Symbol("sglang.srt.nowhere.Nothing.nothing", "hook", ("self",)),
    Symbol(SYMBOLS[0].path, "hook", ("self", "something", "else")),
    Symbol("sglang.srt.managers.scheduler.Scheduler.flush_cache", "call", ("absent",)),
    Symbol("sglang.srt.managers.schedule_batch.Req.no_such_field", "field"),
)


class Fields:
    """Every way in which a class may come to have an attribute."""

    annotated: int
    constant = 1

    def __init__(self, value: int) -> None:
        self.stored = value
        self.unpacked, self.typed = value, value
        value.someone_elses = 0  # type: ignore[attr-defined]

    @property
    def computed(self) -> int:
        return self.read_only

    def later(self) -> None:
        self.late = None


class Heir(Fields):
    """A class that inherits all of them."""


class Struct(msgspec.Struct):
    member: int = 0


def is_field(path: str) -> bool:
    return hook_table._field_problem(Symbol(f"{HERE}.{path}", "field")) is None


@pytest.fixture(autouse=True)
def resolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the classes of this module be found by a dotted path."""

    def resolve(path: str, original: object = hook_table.pkgutil.resolve_name) -> object:
        prefix = f"{HERE}."
        if path.startswith(prefix):
            return globals()[path.removeprefix(prefix)]
        return original(path)  # type: ignore[operator]

    monkeypatch.setattr(hook_table.pkgutil, "resolve_name", resolve)


class TestInstalledSglang:
    def test_matches(self) -> None:
        assert hook_table.mismatches() == []
        hook_table.require_matching_sglang()

    def test_every_hook_was_applied(self) -> None:
        hook_table.require_applied_hooks()
        assert HookRegistry._patched >= hook_table.HOOKED_PATHS

    def test_every_registered_hook_is_in_the_table(self) -> None:
        ours = {
            path
            for path, hooks in HookRegistry._hooks.items()
            if any(hook.__module__.startswith("sglang_xver.") for _, hook, _ in hooks)
        }
        # The other one of these is registered when the backend is created.
        resolution = next(path for path in CPU_HOOKED_PATHS if ".attention_hook." in path)
        assert ours - {_LAST_LOC_TARGET} == hook_table.HOOKED_PATHS | {resolution}
        assert {resolution, _LAST_LOC_TARGET} == CPU_HOOKED_PATHS

    @pytest.mark.parametrize("path", sorted(hook_table.HOOKED_PATHS))
    def test_one_missing_hook_stops_the_start(
        self, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {path})
        with pytest.raises(HookError, match=path.rsplit(".", 1)[1]):
            hook_table.require_applied_hooks()

    def test_no_symbol_is_listed_twice_for_one_use(self) -> None:
        seen = [(symbol.path, symbol.use) for symbol in SYMBOLS]
        assert sorted(seen) == sorted(set(seen))


class TestRefusal:
    def test_all_mismatches_are_told_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hook_table, "SYMBOLS", BROKEN)
        with pytest.raises(HookError) as caught:
            hook_table.require_matching_sglang()
        text = str(caught.value)
        assert all(word in text for word in ("nowhere", "something", "absent", "no_such_field"))
        assert text.startswith(f"SGLang {hook_table.installed_version()} does not offer")
        assert text.endswith(f"Install sglang{hook_table.SGLANG_RANGE}.")

    def test_older_version_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hook_table, "SYMBOLS", BROKEN)
        monkeypatch.setattr(hook_table, "installed_version", lambda: "0.5.22")
        with pytest.raises(
            HookError,
            match=r"SGLang 0\.5\.22 is outside the supported range .* and does not offer .*"
            r"no_such_field.* Install sglang>=",
        ):
            hook_table.require_matching_sglang()

    def test_newer_version_is_refused_even_if_every_signature_fits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hook_table, "installed_version", lambda: "0.5.24")
        with pytest.raises(HookError, match=r"0\.5\.24 .* nobody checked what it does"):
            hook_table.require_matching_sglang()

    @pytest.mark.parametrize(
        "version, supported",
        [("0.5.22", False), ("0.5.23", True), ("0.5.23.post1", True), ("0.5.24rc1", False)],
    )
    def test_range(self, version: str, supported: bool) -> None:
        assert hook_table.is_supported_version(version) is supported

    def test_nothing_is_registered_when_something_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang_xver.engine import plugin

        registered: list[str] = []
        monkeypatch.setattr(hook_table, "SYMBOLS", BROKEN)
        for step in ("_register_cpu_attention", "_register_backend", "_register_hooks"):
            monkeypatch.setattr(plugin, step, lambda step=step: registered.append(step))
        with pytest.raises(HookError):
            plugin.register()
        assert registered == []


class TestFields:
    @pytest.mark.parametrize("owner", ["Fields", "Heir"])
    @pytest.mark.parametrize(
        "name", ["annotated", "constant", "stored", "unpacked", "typed", "computed", "late"]
    )
    def test_found(self, owner: str, name: str) -> None:
        assert is_field(f"{owner}.{name}")

    def test_of_a_struct(self) -> None:
        assert is_field("Struct.member")

    @pytest.mark.parametrize("name", ["absent", "read_only", "someone_elses"])
    def test_not_found(self, name: str) -> None:
        assert not is_field(f"Fields.{name}")
