"""Finds what the engine adapter takes from SGLang, by reading the adapter's source.

Types are unknown in Python source, so the search errs on the side of finding too much: a name that
is neither ours nor the standard library's nor torch's has to be SGLang's.
"""

from __future__ import annotations

import array
import ast
import asyncio
import collections
import contextvars
import dis
import hashlib
import inspect
import logging
import pathlib
import textwrap
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import packaging.specifiers
import prometheus_client
import pydantic
import torch

import sglang_xver
import sglang_xver.engine

PACKAGE = pathlib.Path(sglang_xver.__file__).parent
ENGINE = pathlib.Path(sglang_xver.engine.__file__).parent
FOREIGN_TYPES = (
    str, bytes, int, float, list, tuple, dict, set, frozenset, type, object, Exception,
    array.array, memoryview, slice, range, property, collections.Counter, collections.deque,
    collections.OrderedDict, logging.Logger, asyncio.Future, asyncio.Lock, pathlib.Path,
    torch.Tensor, torch.dtype, inspect.Signature, inspect.Parameter, dis.Instruction,
    types.FunctionType, types.MethodType, types.CodeType, contextvars.ContextVar, msgspec.Struct,
    pydantic.BaseModel, prometheus_client.Counter, prometheus_client.Gauge,
    prometheus_client.Histogram, packaging.specifiers.SpecifierSet, type(hashlib.sha256()),
)  # fmt: skip


class SourceFile(NamedTuple):
    """A module of the package, parsed."""

    path: pathlib.Path
    tree: ast.Module


def sources(root: pathlib.Path) -> list[SourceFile]:
    """Return every module under ``root``, without the stand-in for compiled kernels."""
    return [
        SourceFile(path, ast.parse(path.read_text()))
        for path in sorted(root.rglob("*.py"))
        if "stub" not in path.relative_to(root).parts
    ]


def imported_from_sglang(tree: ast.Module) -> set[str]:
    """Return the dotted paths that ``tree`` imports from SGLang."""
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang"
        for alias in node.names
    }


def _foreign_modules(tree: ast.Module) -> set[str]:
    """Return the local names of modules that are not SGLang's; their attributes are not either."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] != "sglang"
    }


def attributes_used(tree: ast.Module) -> set[str]:
    """Return every attribute name that is read, written or asked for by ``getattr`` and friends."""
    modules = _foreign_modules(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if not (isinstance(root, ast.Name) and root.id in modules):
                found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.update(_named_by_builtin(node))
    return found


def _named_by_builtin(call: ast.Call) -> Iterator[str]:
    if call.func.id in {"getattr", "hasattr", "setattr"} and isinstance(call.args[1], ast.Constant):  # type: ignore[attr-defined]
        yield str(call.args[1].value)


def names_defined(tree: ast.Module) -> set[str]:
    """Return every name that a module defines as class, function, field or ``self`` attribute."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            found.update(_assigned(node))
    return found


def _assigned(node: ast.AnnAssign | ast.Assign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id
            elif (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            ):
                yield part.attr


def foreign_names() -> set[str]:
    """Return the attribute names of the types that are neither ours nor SGLang's."""
    return {name for kind in FOREIGN_TYPES for name in dir(kind)}


def self_uses(own_class: type) -> set[str]:
    """Return the names that ``own_class`` reads off ``self`` or ``super()``."""
    body = ast.parse(textwrap.dedent(inspect.getsource(own_class)))
    return {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and _is_self_or_super(node.value)
    }


def _is_self_or_super(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id == "self"
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "super"
    )


def sglang_bases(own_class: type) -> list[type]:
    """Return the classes of SGLang that ``own_class`` inherits from."""
    return [c for c in own_class.__mro__ if c.__module__.split(".")[0] == "sglang"]


def own_subclasses(modules: list[Any]) -> list[type]:
    """Return the classes that ``modules`` define on top of SGLang's."""
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and sglang_bases(value)
    ]
