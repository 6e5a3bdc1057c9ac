"""A second SGLang plugin, for tests: breaks named functions of a running server on demand.

SGLang loads it in every process that has :func:`install`'s environment. ``arm`` writes the name of
a function into a file, which the function reads whenever it is called; each time that it breaks it
leaves a line with the process's id, so that a test can tell where the fault struck.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sglang_xver.engine.cpu.kernel_stub import ensure_sgl_kernel

FOLDER_VARIABLE = "FAULTY_PLUGIN_FOLDER"

_ENGINE = "sglang_xver.engine"
TARGETS = {
    "plan_walk": f"{_ENGINE}.plan_walk:PlanWalk.run",
    "matching_plan": f"{_ENGINE}.updates:UpdateController._matching_plan",
    "record": f"{_ENGINE}.journal:Journal.record",
    "status": f"{_ENGINE}.journal:Journal.status",
    "condemn": f"{_ENGINE}.cache:XverRadixCache._condemn",
    "purge": f"{_ENGINE}.cache:XverRadixCache._purge",
    "remove_leaf": f"{_ENGINE}.cache:XverRadixCache._remove_leaf",
    "release_slots": f"{_ENGINE}.tree:XverTreeCore._release_all_component_layers",
    "visible_tokens": f"{_ENGINE}.tree:XverTreeCore._visible_tokens",
    "foreign_overlap": f"{_ENGINE}.tree:XverTreeCore.foreign_overlap",
    "place": f"{_ENGINE}.placement:RequestPlacer.place",
    "prepare": f"{_ENGINE}.gate:UpdateGate.prepare",
    "conclude": f"{_ENGINE}.gate:UpdateGate.conclude",
}
"""Functions that can be broken, by the name that :func:`Faults.arm` takes."""


class Faults:
    """The test's side: breaks functions and reads where they broke."""

    def __init__(self, folder: Path) -> None:
        self._armed = folder / "armed"
        self._hits = folder / "hits"

    @contextmanager
    def arm(self, name: str) -> Iterator[None]:
        """Break ``name`` until the block ends; it must have been called by then."""
        assert name in TARGETS
        self._hits.unlink(missing_ok=True)
        self._armed.write_text(name)
        try:
            yield
        finally:
            self._armed.unlink()
        assert self.hit_pids(), f"{name} was never called"

    def hit_pids(self) -> set[int]:
        """Return the ids of the processes in which the armed function broke."""
        if not self._hits.exists():
            return set()
        return {int(line) for line in self._hits.read_text().split()}


def install(folder: Path) -> dict[str, str]:
    """Make ``folder`` hold the plugin's entry point; return the environment that loads it."""
    info = folder / "faulty_plugin-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty_plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        f"[sglang.srt.plugins]\nfaulty_plugin = {__name__}:register\n"
    )
    repository = Path(__file__).resolve().parents[2]
    return {
        FOLDER_VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join([str(folder), str(repository), str(repository / "proto")]),
    }


def register() -> None:
    """Called by SGLang in each of its processes."""
    # This plugin may come first, and its targets import SGLang's kernels.
    ensure_sgl_kernel()
    folder = Path(os.environ[FOLDER_VARIABLE])
    for name, path in TARGETS.items():
        _make_breakable(name, path, folder)
    _do_without_a_gpu()


def _make_breakable(name: str, path: str, folder: Path) -> None:
    module, _, attribute = path.partition(":")
    owner_name, _, method = attribute.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original = getattr(owner, method)
    armed, hits = folder / "armed", folder / "hits"

    def breakable(*args: Any, **kwargs: Any) -> Any:
        if armed.exists() and armed.read_text() == name:
            with hits.open("a") as file:
                file.write(f"{os.getpid()}\n")
            raise RuntimeError(f"injected into {name}")
        return original(*args, **kwargs)

    setattr(owner, method, breakable)


def _do_without_a_gpu() -> None:
    """Let SGLang release and resume memory on CPU, where it waits for a GPU all the same."""
    original = torch.get_device_module

    def get_device_module(device: Any = None) -> Any:
        return torch.cpu if device is None else original(device)

    torch.get_device_module = get_device_module
