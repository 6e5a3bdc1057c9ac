"""Settings: where they come from, and what is refused before anything starts."""

from __future__ import annotations

import re
import time

import pytest

from compat_service import ids
from compat_service.config import Endpoint, is_loopback, load_settings, parse_endpoint
from compat_service.errors import ConfigError
from compat_service.store import open_database


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in ("LISTEN", "POLICY", "DATABASE_URL"):
        monkeypatch.delenv(f"XVER_COMPAT_{name}", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


class TestSources:
    def test_defaults_are_local(self, tmp_path):
        settings = load_settings()
        assert settings.endpoint == Endpoint("127.0.0.1", 50551)
        assert settings.database_url == f"sqlite:///{tmp_path}/sglang-xver/compat.sqlite3"
        assert settings.policy == "standard"

    def test_the_command_line_outranks_the_environment(self, monkeypatch):
        monkeypatch.setenv("XVER_COMPAT_POLICY", "strict")
        assert load_settings().policy == "strict"
        assert load_settings({"policy": "relaxed", "listen": None}).policy == "relaxed"

    def test_an_unknown_variable_is_refused(self, monkeypatch):
        monkeypatch.setenv("XVER_COMPAT_LISTENS", "127.0.0.1:1")
        with pytest.raises(ConfigError, match="XVER_COMPAT_LISTENS"):
            load_settings()

    def test_an_unknown_key_is_refused(self):
        with pytest.raises(ConfigError, match="listens"):
            load_settings({"listens": "127.0.0.1:1"})

    def test_an_unknown_policy_lists_the_known_ones(self):
        with pytest.raises(ConfigError, match="demo, relaxed, standard, strict"):
            load_settings({"policy": "lenient"})


class TestListen:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
    def test_loopback_is_accepted(self, host):
        assert load_settings({"listen": f"{host}:0"}).endpoint.port == 0

    @pytest.mark.parametrize(
        "listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50551", "example.org:1", "localhost.org:1"]
    )
    def test_what_others_can_reach_is_refused(self, listen):
        with pytest.raises(ConfigError, match="other machines"):
            load_settings({"listen": listen})

    @pytest.mark.parametrize(
        "listen", ["50551", "localhost:http", "127.0.0.1:99999", ":1", "::1:50551", "127.0.0.1:-1"]
    )
    def test_a_malformed_address_is_refused(self, listen):
        with pytest.raises(ConfigError, match="is not host:port"):
            load_settings({"listen": listen})

    def test_an_ipv6_address_is_written_in_brackets(self):
        assert str(parse_endpoint("[::1]:7")) == "[::1]:7"
        assert is_loopback("::1")


class TestDatabaseUrl:
    @pytest.mark.parametrize(
        "url,word",
        [
            ("sqlite://", "outlive"),
            ("sqlite:///:memory:", "outlive"),
            ("mysql://localhost/x", "not supported"),
            ("nonsense", "malformed"),
        ],
    )
    def test_an_unusable_url_is_refused(self, url, word):
        with pytest.raises(ConfigError, match=word):
            open_database(url)

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot create the database folder"):
            open_database(f"sqlite:///{tmp_path}/file/compat.sqlite3")


class TestIdentifiers:
    def test_are_version_7_uuids_behind_a_prefix(self):
        assert re.fullmatch(
            r"dec_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", ids.new_decision_id()
        )
        assert ids.new_run_id().startswith("run_")

    def test_sort_by_time(self):
        first = ids.new_run_id()
        time.sleep(0.002)
        assert first < ids.new_run_id()

    @pytest.mark.parametrize(
        "version,release", [("0.5.23", "0.5"), ("0.5.23rc1+cu129", "0.5"), ("1", "1"), ("", "")]
    )
    def test_a_release_is_major_and_minor(self, version, release):
        assert ids.engine_release(version) == release
