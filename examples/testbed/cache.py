"""A per-user folder of built artefacts: built once, complete or absent, safe between processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

RECIPE_FILE = "testbed_recipe.json"
_KEY_HEX_DIGITS = 16


class TestbedError(RuntimeError):
    """A testbed artefact can't be built or read; the message holds the remedy."""

    # Keeps pytest from taking the class for a test case because of its name.
    __test__ = False


def cache_root() -> Path:
    """Folder of this user's built artefacts (not created here).

    ``$XVER_CACHE_DIR``, else ``$XDG_CACHE_HOME/sglang-xver``, else ``~/.cache/sglang-xver``.
    """
    explicit = os.environ.get("XVER_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    parent = Path(xdg).expanduser().absolute() if xdg else Path.home() / ".cache"
    return parent / "sglang-xver"


def recipe_key(recipe: Mapping[str, object]) -> str:
    """First 16 hex digits of the SHA-256 of the recipe's canonical JSON.

    Raises TypeError when the recipe holds a value JSON can't carry.
    """
    return hashlib.sha256(_canonical(recipe)).hexdigest()[:_KEY_HEX_DIGITS]


def file_sha256(path: Path) -> str:
    """SHA-256 of one file's content, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def content_id(folder: Path) -> str:
    """What a checkpoint folder holds: its recipe key if this cache built it, else a content hash.

    Raises TestbedError when the folder has no ``config.json``.
    """
    recipe = folder / RECIPE_FILE
    if recipe.is_file():
        return file_sha256(recipe)[:_KEY_HEX_DIGITS]
    if not (folder / "config.json").is_file():
        raise TestbedError(
            f"{folder} holds no config.json, so it is no checkpoint folder; "
            "pass a folder made by examples.testbed or a Hugging Face snapshot"
        )
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(f"{path.name}:{file_sha256(path)}\n".encode())
    return digest.hexdigest()[:_KEY_HEX_DIGITS]


def artefact_path(name: str, recipe: Mapping[str, object]) -> Path:
    """Where :func:`build_once` puts this artefact, built or not."""
    return cache_root() / f"{name}-{recipe_key(recipe)}"


def build_once(name: str, recipe: Mapping[str, object], build: Callable[[Path], None]) -> Path:
    """Return the artefact's folder, calling ``build(folder)`` only if it isn't complete yet.

    ``build`` fills an empty temporary sibling that is renamed into place when it returns, so a
    reader never sees half a folder; an exception removes it and passes through. Processes that
    want the same artefact wait for one another. Treat the returned folder as read-only.
    """
    final = artefact_path(name, recipe)
    if _is_complete(final, recipe):
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final):
        if _is_complete(final, recipe):
            return final
        _remove_leftovers(final)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.building-", dir=final.parent))
        try:
            build(temporary)
            (temporary / RECIPE_FILE).write_bytes(_canonical(recipe))
            _make_readable(temporary)
            temporary.replace(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final


def _canonical(recipe: Mapping[str, object]) -> bytes:
    return json.dumps(recipe, sort_keys=True, separators=(",", ":")).encode()


def _is_complete(folder: Path, recipe: Mapping[str, object]) -> bool:
    # The recipe is written last, so a folder without it (or with another) was never finished.
    try:
        return (folder / RECIPE_FILE).read_bytes() == _canonical(recipe)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make_readable(folder: Path) -> None:
    # mkdtemp and safetensors write for the owner only; a server may run as another user.
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _remove_leftovers(final: Path) -> None:
    """Drop an incomplete folder and the temporary folders of builders that died (lock held)."""
    for leftover in [final, *final.parent.glob(f".{final.name}.building-*")]:
        if leftover.is_dir():
            shutil.rmtree(leftover)


@contextmanager
def _locked(final: Path) -> Iterator[None]:
    # flock, not a bare lock file: the kernel releases it when a builder is killed.
    lock_path = final.parent / f".{final.name}.lock"
    with lock_path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
