"""One name for several contents, several names for one, or copies that bear no name at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from examples.testbed.process import SglangServer
from sglang_xver.engine.combinations import require_supported
from sglang_xver.errors import UnsupportedError
from tests.cases.case import Case
from tests.cases.conftest import Versions
from tests.e2e.driver import prompt
from tests.e2e.evidence import fingerprint
from tests.e2e.weights import WeightClient, buckets, read_weights

PREFIX_TOKENS = 200
WARM = PREFIX_TOKENS - 1

STORAGE_OPTIONS: dict[str, dict[str, Any]] = {
    "hierarchical cache": {"enable_hierarchical_cache": True},
    **{
        f"storage backend {name}": {
            "enable_hierarchical_cache": True,
            "hicache_storage_backend": name,
        }
        for name in ("file", "mooncake", "hf3fs", "nixl", "aibrix", "eic", "dynamic")
    },
    "LMCache": {"enable_lmcache": True},
    "FlexKV": {"enable_flexkv": True},
    "external linker": {"enable_unified_cache_external_linker": True},
}
_labels = count()


@pytest.fixture
def label() -> str:
    """A weight version that no other test has used."""
    return f"step-{next(_labels)}"


def overwrite(folder: Path, source: Path) -> Path:
    """Put another checkpoint's files where those of an earlier one were."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(source, folder)


class TestK04StorageTier:
    """KV files in a storage tier came back after a flush, those of another model among them."""

    @pytest.mark.parametrize("option", STORAGE_OPTIONS)
    def test_every_tier_is_refused(self, option: str) -> None:
        arguments = ServerArgs(model_path="none", **STORAGE_OPTIONS[option])
        with pytest.raises(UnsupportedError) as refusal:
            require_supported(arguments, tree_components=1)
        for name in STORAGE_OPTIONS[option]:
            assert "--" + name.replace("_", "-") in str(refusal.value)
        assert "no version" in str(refusal.value)

    @pytest.mark.e2e
    def test_server_does_not_start_with_one(self, versions: Versions, tmp_path: Path) -> None:
        # With a size of its own, so that the memory that happens to be free does not matter.
        tier = ("--enable-hierarchical-cache", "--hicache-size", "1")
        arguments = (*tier, "--hicache-storage-backend", "file")
        server = SglangServer(versions.base, tmp_path / "server.log", arguments=arguments)
        with server:
            assert server.wait_exit(240) != 0
        log = server.log.read_text(errors="replace")
        assert "can't be combined with --enable-hierarchical-cache" in log

    @pytest.mark.e2e
    def test_tier_can_not_be_attached_to_a_running_server(self, case: Case) -> None:
        tokens = prompt(1, PREFIX_TOKENS)
        case.read(tokens)
        body = {"hicache_storage_backend": "file"}
        answer = case.driver.http.put("/hicache/storage-backend", json=body)
        assert answer.is_error
        case.driver.flush()
        assert case.read(tokens).cached == 0


@pytest.mark.e2e
class TestK06SameNameNewBytes:
    """An adapter was reloaded under its name and id with new bytes, and its KV reused."""

    def test_label_that_named_other_bytes(self, case: Case, versions: Versions, label: str) -> None:
        tokens = prompt(2, PREFIX_TOKENS)
        case.driver.update(versions.second, weight_version=label)
        case.read(tokens)
        reply = case.driver.update(versions.third, weight_version=label)
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "LABEL_REUSED")
        assert case.read(tokens).cached == 0

    def test_path_that_held_other_bytes(
        self, case: Case, versions: Versions, tmp_path: Path
    ) -> None:
        """The path is no identity: what lies there now is judged, not what lay there before."""
        tokens = prompt(3, PREFIX_TOKENS)
        place = overwrite(tmp_path / "checkpoint", versions.base)
        assert case.driver.update(place).xver["action"] == "SAME"
        case.read(tokens)
        overwrite(place, versions.harmful)
        reply = case.driver.update(place)
        assert reply.xver["action"] == "EVICT"
        assert reply.xver["reason"].startswith("HFR")
        assert case.read(tokens).cached == 0

    def test_path_and_label_that_held_the_same_bytes(
        self, case: Case, versions: Versions, label: str, tmp_path: Path
    ) -> None:
        tokens = prompt(4, PREFIX_TOKENS)
        place = overwrite(tmp_path / "checkpoint", versions.base)
        case.driver.update(place, weight_version=label)
        case.read(tokens)
        overwrite(place, versions.base)
        assert case.driver.update(place, weight_version=label).xver["action"] == "SAME"
        assert case.read(tokens).native == WARM

    def test_bytes_that_nobody_can_fingerprint(
        self, case: Case, versions: Versions, label: str
    ) -> None:
        """The very tensors that are served already, sent as tensors: unknown, so evicted."""
        tokens = prompt(5, PREFIX_TOKENS)
        case.driver.update(versions.base, weight_version=label)
        case.read(tokens)
        weights = WeightClient(case.driver.http)
        replies = weights.session(buckets(read_weights(versions.base), 2), weight_version=label)
        assert all(reply.success for reply in replies)
        assert case.read(tokens).cached == 0

    def test_adapters_are_refused(self, case: Case) -> None:
        """At the start, and on a server that was started without."""
        with pytest.raises(UnsupportedError, match="--enable-lora"):
            require_supported(ServerArgs(model_path="none", enable_lora=True), tree_components=1)
        body = {"lora_name": "adapter", "lora_path": "/nonexistent"}
        assert case.driver.http.post("/load_lora_adapter", json=body).is_error


@pytest.mark.e2e
class TestK08SameIdOtherModel:
    """KV of one fine-tune was accepted by another that has the same model id."""

    def test_folder_of_the_same_name(self, case: Case, versions: Versions, tmp_path: Path) -> None:
        tokens = prompt(6, PREFIX_TOKENS)
        mine = overwrite(tmp_path / "mine" / "model", versions.base)
        other = overwrite(tmp_path / "other" / "model", versions.harmful)
        case.driver.update(mine)
        case.read(tokens)
        reply = case.driver.update(other)
        assert reply.xver["action"] == "EVICT"
        assert case.read(tokens).cached == 0

    def test_operator_sees_both_fingerprints(
        self, case: Case, versions: Versions, label: str, tmp_path: Path
    ) -> None:
        case.driver.update(versions.second, weight_version=label)
        case.read(prompt(7, PREFIX_TOKENS))
        case.driver.update(versions.third, weight_version=label)
        sentence = (
            f"label '{label}' named {fingerprint(versions.second)}, "
            f"now {fingerprint(versions.third)}"
        )
        assert sentence in case.log()
        assert sentence in case.driver.status()["last_update"]["detail"]
        assert case.driver.status()["current_epoch"] == fingerprint(versions.third)


@pytest.mark.e2e
class TestK09LabelAndWeightsPart:
    """Label without weights, weights without label, and a generated label that came up again."""

    def test_label_changes_without_weights(
        self, case: Case, versions: Versions, label: str
    ) -> None:
        tokens = prompt(8, PREFIX_TOKENS)
        case.read(tokens)
        case.driver.relabel(label)
        assert case.read(tokens).native == WARM
        reply = case.driver.update(versions.second, weight_version=label)
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "LABEL_REUSED")
        assert case.read(tokens).cached == 0

    def test_weights_change_without_label(self, case: Case, versions: Versions, label: str) -> None:
        """SGLang goes on to report the old label; what is kept is decided by content."""
        tokens = prompt(9, PREFIX_TOKENS)
        case.driver.update(versions.base, weight_version=label)
        case.read(tokens)
        assert case.driver.update(versions.second).xver["action"] == "KEEP"
        assert case.read(tokens).kept_old == WARM
        assert case.driver.update(versions.harmful).xver["action"] == "EVICT"
        assert case.read(tokens).cached == 0
        reply = case.driver.update(versions.second, weight_version=label)
        assert reply.xver["reason"] == "LABEL_REUSED"

    @pytest.mark.parametrize("first", ["disk", "tensors", "label"])
    def test_generated_label_comes_up_again(
        self, case: Case, versions: Versions, label: str, first: str
    ) -> None:
        uses: dict[str, Callable[[], object]] = {
            "disk": lambda: case.driver.update(versions.third, weight_version=label),
            "tensors": lambda: WeightClient(case.driver.http).session(
                buckets(read_weights(versions.third), 2), weight_version=label
            ),
            "label": lambda: case.driver.relabel(label),
        }
        uses[first]()
        case.driver.update(versions.base)
        tokens = prompt(10, PREFIX_TOKENS)
        case.driver.flush()
        case.read(tokens)
        reply = case.driver.update(versions.second, weight_version=label)
        assert (reply.xver["action"], reply.xver["reason"]) == ("EVICT", "LABEL_REUSED")
        assert case.read(tokens).cached == 0

    def test_label_that_stays_with_its_bytes(
        self, case: Case, versions: Versions, label: str
    ) -> None:
        tokens = prompt(11, PREFIX_TOKENS)
        case.driver.update(versions.second, weight_version=label)
        case.driver.update(versions.base)
        case.driver.flush()
        case.read(tokens)
        reply = case.driver.update(versions.second, weight_version=label)
        assert reply.xver["action"] == "KEEP"
        assert case.read(tokens).kept_old == WARM
