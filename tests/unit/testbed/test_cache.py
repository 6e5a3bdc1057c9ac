"""The artefact cache: complete or absent, built once, keyed by content."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from examples.testbed import cache

RECIPE = {"kind": "demo", "version": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XVER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_payload(folder: Path) -> None:
    (folder / "payload").write_text("whole")


def slow_build_and_count(counter_file: str) -> None:
    def build(folder: Path) -> None:
        with Path(counter_file).open("a") as handle:
            handle.write("x")
        time.sleep(0.2)
        write_payload(folder)

    folder = cache.build_once("shared", RECIPE, build)
    assert (folder / "payload").read_text() == "whole"


class TestCacheRoot:
    def test_the_explicit_variable_wins(self, own_cache: Path) -> None:
        assert cache.cache_root() == own_cache

    def test_xdg_then_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("XVER_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.cache_root() == tmp_path / "xdg" / "sglang-xver"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert cache.cache_root() == tmp_path / "home" / ".cache" / "sglang-xver"


class TestRecipeKey:
    def test_depends_on_content_not_on_order(self) -> None:
        assert cache.recipe_key({"a": 1, "b": 2}) == cache.recipe_key({"b": 2, "a": 1})
        assert cache.recipe_key({"a": 1}) != cache.recipe_key({"a": 2})

    def test_refuses_what_json_cannot_carry(self) -> None:
        with pytest.raises(TypeError):
            cache.recipe_key({"a": object()})


class TestBuildOnce:
    def test_second_call_does_not_build(self) -> None:
        first = cache.build_once("demo", RECIPE, write_payload)

        def fail(folder: Path) -> None:
            raise AssertionError("built twice")

        assert cache.build_once("demo", RECIPE, fail) == first
        assert (first / "payload").read_text() == "whole"

    def test_a_failed_build_leaves_nothing(self, own_cache: Path) -> None:
        def half(folder: Path) -> None:
            write_payload(folder)
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            cache.build_once("demo", RECIPE, half)
        assert [p for p in own_cache.iterdir() if p.is_dir()] == []

    def test_an_incomplete_folder_is_rebuilt(self) -> None:
        folder = cache.artefact_path("demo", RECIPE)
        folder.mkdir(parents=True)
        (folder / "payload").write_text("half")
        assert cache.build_once("demo", RECIPE, write_payload) == folder
        assert (folder / "payload").read_text() == "whole"

    def test_leftovers_of_a_killed_builder_are_removed(self, own_cache: Path) -> None:
        final = cache.artefact_path("demo", RECIPE)
        leftover = own_cache / f".{final.name}.building-dead"
        leftover.mkdir(parents=True)
        cache.build_once("demo", RECIPE, write_payload)
        assert not leftover.exists()

    def test_other_recipe_other_folder(self) -> None:
        one = cache.build_once("demo", RECIPE, write_payload)
        two = cache.build_once("demo", {**RECIPE, "version": 2}, write_payload)
        assert one != two

    def test_two_processes_build_once(self, tmp_path: Path) -> None:
        counter = tmp_path / "builds"
        context = multiprocessing.get_context("fork")
        workers = [
            context.Process(target=slow_build_and_count, args=(str(counter),)) for _ in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=30)
        assert [w.exitcode for w in workers] == [0, 0, 0]
        assert counter.read_text() == "x"


class TestContentId:
    def test_follows_the_weights(self, tmp_path: Path) -> None:
        for name, payload in (("a", b"1"), ("b", b"1"), ("c", b"2")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text("{}")
            (tmp_path / name / "model.safetensors").write_bytes(payload)
        ids = {name: cache.content_id(tmp_path / name) for name in "abc"}
        assert ids["a"] == ids["b"] != ids["c"]

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(cache.TestbedError, match=r"config\.json"):
            cache.content_id(tmp_path)
