"""Whether this environment has what the plugin needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator

from sglang_xver.doctor.findings import Finding, run_check

_DISTRIBUTION = "sglang-xver"
_PLUGIN_GROUP = "sglang.srt.plugins"
_PLUGIN = "xver"
_PYTHON_FLOOR = (3, 11)
_ENGINE_CHECKS = ("sglang", "torch", "engine", "kernels", "hook table", "plugin")


def check_installation() -> list[Finding]:
    """Check Python, packages and the entry point, and SGLang itself where it is installed."""
    return [
        *run_check("python", _python),
        *run_check("packages", _packages),
        *run_check("entry point", _entry_point),
        *run_check("sglang", _engine),
    ]


def _python() -> Iterator[Finding]:
    version, floor = platform.python_version(), ".".join(map(str, _PYTHON_FLOOR))
    if sys.version_info[:2] >= _PYTHON_FLOOR:
        yield Finding("python", "ok", f"{version}, needed: {floor} or newer")
    else:
        yield Finding("python", "fail", f"{version} is too old", f"Use Python {floor} or newer.")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; ``1.81.1rc1`` counts as ``1.81.1``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _package(requirement: str) -> tuple[str, bool]:
    """Return ``name version`` of a requirement without extra, and whether it is satisfied."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    floor = re.search(r">=\s*([0-9.]+)", requirement)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is missing", False
    if floor is not None and _numbers(version) < _numbers(floor.group(1)):
        return f"{name} {version} is older than {floor.group(1)}", False
    return f"{name} {version}", True


def _packages() -> Iterator[Finding]:
    try:
        requirements = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pip install {_DISTRIBUTION} into this environment"
        yield Finding("packages", "fail", f"{_DISTRIBUTION} is not installed", remedy)
        return
    checked = [_package(text) for text in requirements if "extra ==" not in text]
    wrong = [text for text, satisfied in checked if not satisfied]
    if wrong:
        remedy = f"pip install --upgrade {_DISTRIBUTION}"
        yield Finding("packages", "fail", "; ".join(wrong), remedy)
    else:
        version = importlib.metadata.version(_DISTRIBUTION)
        names = [f"{_DISTRIBUTION} {version}", *(text for text, _ in checked)]
        yield Finding("packages", "ok", ", ".join(names))


def _entry_point() -> Iterator[Finding]:
    found = importlib.metadata.entry_points(group=_PLUGIN_GROUP, name=_PLUGIN)
    if not found:
        detail = f"no entry point {_PLUGIN!r} in group {_PLUGIN_GROUP}"
        remedy = f"Install {_DISTRIBUTION} into the environment that SGLang runs in."
        yield Finding("entry point", "fail", detail, remedy)
        return
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and _PLUGIN not in [name.strip() for name in allowed.split(",")]:
        remedy = f"Add {_PLUGIN} to the variable, or unset it."
        yield Finding("entry point", "fail", f"SGLANG_PLUGINS={allowed} leaves it out", remedy)
        return
    yield Finding("entry point", "ok", ", ".join(entry.value for entry in found))


def _engine() -> list[Finding]:
    if importlib.util.find_spec("sglang") is None:
        return [Finding(name, "skipped", "sglang is not installed") for name in _ENGINE_CHECKS]
    from sglang_xver.engine.doctor import engine_findings

    return engine_findings()
