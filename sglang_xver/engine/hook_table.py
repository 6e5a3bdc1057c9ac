"""Checks every SGLang attribute in use against the installed version before any is hooked."""

from __future__ import annotations

import dis
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from packaging.specifiers import SpecifierSet

from sglang_xver.engine.symbols import Symbol
from sglang_xver.engine.symbols_server import (
    CPU_HOOKED_PATHS,
    MANAGER,
    SERVER_SYMBOLS,
    STATE,
    STREAMER,
    TOKENIZER,
)
from sglang_xver.engine.symbols_tree import TREE_SYMBOLS
from sglang_xver.errors import HookError

__all__ = [
    "HOOKED_PATHS",
    "MANAGER",
    "SGLANG_RANGE",
    "STATE",
    "STREAMER",
    "SYMBOLS",
    "TOKENIZER",
    "Symbol",
    "installed_version",
    "is_supported_version",
    "mismatches",
    "require_applied_hooks",
    "require_matching_sglang",
]

SYMBOLS: tuple[Symbol, ...] = (*SERVER_SYMBOLS, *TREE_SYMBOLS)

SGLANG_RANGE = ">=0.5.23,<0.5.24"

HOOKED_PATHS: frozenset[str] = (
    frozenset(s.path for s in SYMBOLS if s.use == "hook") - CPU_HOOKED_PATHS
) | {f"{TOKENIZER}.__init__"}


def _parameters(target: Callable[..., Any]) -> tuple[str, ...]:
    fields = getattr(target, "__struct_fields__", None)
    if fields is not None:
        # The signature of a msgspec class can't be read where its annotations are imports for
        # type checkers only.
        return tuple(fields)
    return tuple(inspect.signature(inspect.unwrap(target)).parameters)


def _functions(owner: type) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, FunctionType):
            yield function


def _stores(function: FunctionType, name: str) -> bool:
    """Whether ``function`` contains ``self.<name> = ...``."""
    if name not in function.__code__.co_names:
        return False
    previous: Any = None
    for step in dis.get_instructions(function):
        if step.opname == "STORE_ATTR" and step.argval == name:
            # From Python 3.13 on one step may load two names.
            loaded = previous.argval if isinstance(previous.argval, tuple) else (previous.argval,)
            if loaded[-1] == "self":
                return True
        previous = step
    return False


def _offers(owner: Any, name: str) -> bool:
    """Whether ``owner`` has ``name``, be it only on instances."""
    if hasattr(owner, name):
        return True
    return isinstance(owner, type) and any(
        name in vars(base).get("__annotations__", {})
        or any(_stores(function, name) for function in _functions(base))
        for base in owner.__mro__
    )


def _field_problem(symbol: Symbol) -> str | None:
    owner, _, name = symbol.path.rpartition(".")
    return None if _offers(pkgutil.resolve_name(owner), name) else "missing"


def _signature_problem(symbol: Symbol) -> str | None:
    actual, wanted = _parameters(pkgutil.resolve_name(symbol.path)), symbol.parameters
    fits = set(wanted) <= set(actual) if symbol.use == "call" else wanted == actual
    if fits:
        return None
    return f"parameters are ({', '.join(actual)}), needed ({', '.join(wanted)})"


def _problem(symbol: Symbol) -> str | None:
    try:
        if symbol.use == "field":
            return _field_problem(symbol)
        return _signature_problem(symbol)
    except (ImportError, AttributeError) as error:
        return f"missing ({error})"
    except Exception as error:
        return f"can't be looked into ({error!r})"


def mismatches() -> list[str]:
    """Return one sentence for every symbol that the installed SGLang lacks or shapes otherwise."""
    found = ((symbol, _problem(symbol)) for symbol in SYMBOLS)
    return [f"{symbol.path} ({symbol.use}): {problem}" for symbol, problem in found if problem]


def installed_version() -> str:
    """Return the version of the installed SGLang."""
    return importlib.metadata.version("sglang")


def is_supported_version(version: str) -> bool:
    """Whether ``version`` lies in the range that was tested."""
    return SpecifierSet(SGLANG_RANGE).contains(version, prereleases=True)


def require_matching_sglang() -> None:
    """Raise :class:`HookError` with all mismatches at once if the installed SGLang doesn't fit.

    A version outside the range is refused even if every signature fits: what a private method does
    may change without its parameters.
    """
    version, problems = installed_version(), mismatches()
    supported = is_supported_version(version)
    if supported and not problems:
        return
    name = f"SGLang {version}"
    if not supported:
        name += f" is outside the supported range {SGLANG_RANGE} and"
    problem = "has signatures that fit, but nobody checked what it does"
    if problems:
        problem = f"does not offer what sglang-xver hooks into: {'; '.join(problems)}"
    raise HookError(f"{name} {problem}. Install sglang{SGLANG_RANGE}.")


def require_applied_hooks() -> None:
    """Raise :class:`HookError` unless every hook of the table was applied in this process.

    SGLang logs a hook that failed and goes on. A cache backend without its hooks would serve
    stale KV in silence, so the server must not start.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = sorted(HOOKED_PATHS - HookRegistry._patched)
    if missing:
        raise HookError(
            f"hooks were not applied: {', '.join(missing)}. The server must not start without "
            f"them; see the log above for the cause, and install sglang{SGLANG_RANGE}."
        )
