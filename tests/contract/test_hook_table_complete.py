"""Nothing of SGLang is in use that the hook table doesn't list.

Four nets with different meshes: what is imported, what own subclasses override or inherit, names
that nobody but SGLang can mean, and names that a class of the table offers. A name that is ours
and SGLang's at once is caught by the second and the fourth. Types are unknown, so a name that is
listed for one class counts as listed for all: a field of the same name on a second class has to be
added by hand.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any, Protocol

import pytest
from sglang.srt.plugins import load_plugins

import sglang_xver.engine
from sglang_xver.engine import hook_table
from sglang_xver.engine.hook_table import SYMBOLS
from tests.contract import attribute_uses as uses

load_plugins()

PATHS = {symbol.path for symbol in SYMBOLS}
NAMES = {part for path in PATHS for part in path.split(".")}
OVERRIDES = {symbol.path for symbol in SYMBOLS if symbol.use == "override"}
ENGINE_SOURCES = uses.sources(uses.ENGINE)
OWN_NAMES = {name for file in uses.sources(uses.PACKAGE) for name in uses.names_defined(file.tree)}
FOREIGN_NAMES = uses.foreign_names()
USED = {name for file in ENGINE_SOURCES for name in uses.attributes_used(file.tree)}
OURS_TOO = {
    "lock": "asyncio.Lock of the update gate; no engine object's lock is touched",
    "open_session": "method of UpdateController, about weight updates",
    "close_session": "method of UpdateController, about weight updates",
}
BY_FILE = pytest.mark.parametrize("file", ENGINE_SOURCES, ids=lambda f: f.path.stem)


def own_subclasses() -> list[type]:
    names = (
        module.name
        for module in pkgutil.walk_packages(sglang_xver.engine.__path__, "sglang_xver.engine.")
    )
    return uses.own_subclasses([importlib.import_module(n) for n in names if ".stub" not in n])


def owners() -> dict[str, type]:
    """Return the classes whose attributes are in the table, by dotted path."""
    found = {}
    for path in {path.rpartition(".")[0] for path in PATHS}:
        try:
            owner = pkgutil.resolve_name(path)
        except (ImportError, AttributeError):
            continue
        if isinstance(owner, type) and not issubclass(owner, str):
            found[path] = owner
    return found


OWNERS = owners()


@functools.cache
def offered(owner: type) -> frozenset[str]:
    """Return every name that SGLang's classes behind ``owner`` define or may store on ``self``."""
    bases = uses.sglang_bases(owner)
    mentioned = {
        name
        for base in bases
        for function in hook_table._functions(base)
        for name in function.__code__.co_names
    }
    defined = {n for b in bases for n in (*vars(b), *vars(b).get("__annotations__", {}))}
    return frozenset(defined | {n for n in mentioned & USED if hook_table._offers(owner, n)})


def first_definition(bases: list[type], name: str) -> type | None:
    return next((base for base in bases if name in vars(base)), None)


def told(missing: Iterable[str]) -> str:
    return "add to engine/symbols_server.py or symbols_tree.py: " + ", ".join(sorted(missing))


def path_of(owner: type, name: str) -> str:
    return f"{owner.__module__}.{owner.__qualname__}.{name}"


def is_pythons(name: str) -> bool:
    if name == "__init__":
        return False
    return hasattr(Protocol, name) or name in {"__module__", "__annotations__", "__slots__"}


def parameters_of(value: Any) -> str:
    return " ".join(hook_table._parameters(value)) if callable(value) else "(a field)"


@BY_FILE
def test_every_import_is_listed(file: uses.SourceFile) -> None:
    imported = uses.imported_from_sglang(file.tree)
    listed = {i for i in imported if any(p == i or p.startswith(f"{i}.") for p in PATHS)}
    assert imported == listed, told(imported - listed)


@BY_FILE
def test_every_name_that_only_sglang_can_mean_is_listed(file: uses.SourceFile) -> None:
    unknown = uses.attributes_used(file.tree) - OWN_NAMES - FOREIGN_NAMES - NAMES
    missing = [name for name in unknown if not name.startswith("xver_")]
    assert not missing, told(missing)


@BY_FILE
def test_every_name_that_a_listed_class_offers_is_listed(file: uses.SourceFile) -> None:
    candidates = uses.attributes_used(file.tree) - NAMES - OURS_TOO.keys()
    missing = [
        path_of(owner, name)
        for name in sorted(candidates)
        if not name.startswith("__")
        for owner in OWNERS.values()
        if name in offered(owner)
    ]
    assert not missing, told(missing)


@pytest.mark.parametrize("own_class", own_subclasses(), ids=lambda c: c.__name__)
class TestOwnSubclasses:
    def test_every_override_is_listed_with_its_parameters(self, own_class: type) -> None:
        bases = uses.sglang_bases(own_class)
        missing = [
            f"{path_of(base, name)}: {parameters_of(vars(base)[name])}"
            for name in vars(own_class)
            if not is_pythons(name)
            and (base := first_definition(bases, name)) is not None
            and path_of(base, name) not in OVERRIDES
        ]
        assert not missing, told(missing)

    def test_everything_inherited_and_used_is_listed(self, own_class: type) -> None:
        bases = uses.sglang_bases(own_class)
        missing = [
            path_of(bases[0], name)
            for name in sorted(uses.self_uses(own_class))
            if not is_pythons(name)
            and name in offered(bases[0])
            and not any(path_of(base, name) in PATHS for base in bases)
        ]
        assert not missing, told(missing)


class TestTheNetsHold:
    """Each net is shown a use that nobody listed."""

    def test_own_subclasses_were_found(self) -> None:
        assert {c.__name__ for c in own_subclasses()} >= {"XverRadixCache", "XverTreeCore"}

    def test_names(self) -> None:
        import ast

        tree = ast.parse(
            "from sglang.srt.utils import get_ip\n"
            "def f(req, scheduler):\n"
            "    req.kv_committed_len = getattr(scheduler, 'running_mbs', None)\n"
        )
        assert uses.imported_from_sglang(tree) == {"sglang.srt.utils.get_ip"}
        assert uses.attributes_used(tree) == {"kv_committed_len", "running_mbs"}

    def test_a_name_of_ours_that_an_engine_class_has_too(self) -> None:
        assert "_session" in NAMES
        path = "sglang.srt.managers.scheduler_components.weight_updater"
        owner = OWNERS[f"{path}.SchedulerWeightUpdaterManager"]
        assert hook_table._offers(owner, "stashed_model_static_state")

    def test_no_exception_outlives_its_use(self) -> None:
        assert OURS_TOO.keys() <= USED
