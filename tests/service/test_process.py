"""``xver-compat`` as a process: start, refusals with remedies, health, reflection, end."""

from __future__ import annotations

import signal
import socket
import sqlite3

import grpc
import pytest
from evidence_builders import ENGINE, LAYOUT, SOURCE, TARGET, make_flips, make_run, make_stratum
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from compat_service.store import open_database
from compat_service.store.schema import upgrade
from sglang_xver.client import CompatClient
from sglang_xver.decision import rule_from_answer

pytestmark = pytest.mark.service


class TestServe:
    def test_serves_announces_its_port_and_ends_on_sigterm(self, start_serve, database_url):
        process, address = start_serve("--db", database_url, "--listen", "127.0.0.1:0")
        with CompatClient(address, timeout_s=10.0) as client:
            client.record_run(make_run())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert "stopped" in process.stdout.read()

    def test_what_was_recorded_survives_a_restart(self, start_serve, database_url):
        arguments = ("--db", database_url, "--listen", "127.0.0.1:0")
        process, address = start_serve(*arguments)
        with CompatClient(address, timeout_s=10.0) as client:
            run_id = client.record_run(make_run()).run_id
        process.kill()
        process.wait()
        _, address = start_serve(*arguments)
        with CompatClient(address, timeout_s=10.0) as client:
            assert client.get_run(run_id).run_id == run_id
            answer = client.check_compat(SOURCE, TARGET, layout=LAYOUT, engine=ENGINE)
            assert rule_from_answer(answer, ["niah"]).keep_max_tokens == 2048

    def test_health_and_reflection_answer(self, start_serve, database_url):
        _, address = start_serve("--db", database_url, "--listen", "127.0.0.1:0")
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "xver.compat.v1.CompatService", "xver.compat.v1.EvidenceService"):
                answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert {"xver.compat.v1.CompatService", "xver.compat.v1.EvidenceService"} <= set(services)


class TestRefusals:
    def test_a_port_in_use_is_named_with_the_remedy(self, run_cli, database_url):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run_cli("serve", "--db", database_url, "--listen", f"127.0.0.1:{port}")
        assert result.returncode == 1
        assert f"port {port} on 127.0.0.1 is in use" in result.stderr
        assert "--listen" in result.stderr
        assert "Traceback" not in result.stderr

    def test_two_servers_cannot_share_a_port(self, start_serve, run_cli, database_url):
        _, address = start_serve("--db", database_url, "--listen", "127.0.0.1:0")
        result = run_cli("serve", "--db", database_url, "--listen", address)
        assert result.returncode == 1
        assert "in use" in result.stderr

    def test_an_address_that_others_can_reach_is_refused(self, run_cli, database_url):
        result = run_cli("serve", "--db", database_url, "--listen", "0.0.0.0:0")
        assert result.returncode == 1
        assert "127.0.0.1" in result.stderr
        assert "TLS" in result.stderr

    def test_a_schema_that_is_behind_names_the_command(self, run_cli, database_url):
        database = open_database(database_url)
        upgrade(database, "0001")
        database.close()
        result = run_cli("serve", "--db", database_url, "--listen", "127.0.0.1:0")
        assert result.returncode == 1
        assert "schema revision 0001, this version needs" in result.stderr
        assert f"xver-compat db upgrade --db {database_url}" in result.stderr
        current = run_cli("db", "current", "--db", database_url)
        assert (current.returncode, "behind" in current.stdout) == (1, True)
        assert run_cli("db", "upgrade", "--db", database_url).returncode == 0
        assert run_cli("db", "current", "--db", database_url).returncode == 0

    def test_a_newer_schema_is_refused(self, run_cli, database, database_url):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        for command in (("serve", "--listen", "127.0.0.1:0"), ("db", "upgrade")):
            result = run_cli(*command, "--db", database_url)
            assert result.returncode == 1
            assert "9999" in result.stderr

    def test_tables_of_another_application_are_left_alone(self, run_cli, database_url):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as connection:
            connection.execute("CREATE TABLE customers (name TEXT)")
        for command in (("serve", "--listen", "127.0.0.1:0"), ("db", "upgrade")):
            result = run_cli(*command, "--db", database_url)
            assert result.returncode == 1
            assert "name another database" in result.stderr

    def test_a_file_that_is_no_database_is_refused(self, run_cli, tmp_path):
        file = tmp_path / "notes.txt"
        file.write_text("no database " * 100)
        result = run_cli("serve", "--db", f"sqlite:///{file}", "--listen", "127.0.0.1:0")
        assert result.returncode == 1
        assert "cannot be read" in result.stderr
        assert file.read_text().startswith("no database")

    def test_an_unknown_setting_is_refused(self, run_cli):
        result = run_cli("db", "current", XVER_COMPAT_LISTENS="127.0.0.1:1")
        assert result.returncode == 1
        assert "XVER_COMPAT_LISTENS" in result.stderr


class TestCommands:
    def check(self, run_cli, address, source, target, *more):
        return run_cli("check", "--source", source, "--target", target, "--address", address, *more)

    def test_check_and_pairs_speak_for_the_evidence(self, start_serve, run_cli, database_url):
        _, address = start_serve("--db", database_url, "--listen", "127.0.0.1:0")
        good, bad = SOURCE.fingerprint, TARGET.fingerprint
        with CompatClient(address, timeout_s=10.0) as client:
            client.record_run(make_run())
            harm = make_stratum(flips=make_flips(40, 8))
            client.record_run(make_run(harm, source=TARGET, target=SOURCE))
        kept = self.check(run_cli, address, good, bad)
        assert kept.returncode == 0, kept.stdout + kept.stderr
        assert kept.stdout.startswith("KEEP (PASS)")
        assert "1..2048" in kept.stdout
        evicted = self.check(run_cli, address, bad, good)
        assert evicted.returncode == 3
        assert "harmful flips 8/40, upper bound 33.2 % >= limit 2 %" in evicted.stdout
        unknown = self.check(run_cli, address, good, "sha256:ffff", "--family", "niah")
        assert unknown.returncode == 4
        assert "NO_EVIDENCE" in unknown.stdout
        other_layout = self.check(run_cli, address, good, bad, "--layout", "layout:2")
        assert other_layout.returncode == 4
        assert "LAYOUT_MISMATCH" in other_layout.stdout
        pairs = run_cli("pairs", "--address", address)
        assert pairs.returncode == 0
        assert "model@1" in pairs.stdout

    def test_a_missing_service_is_an_error_with_the_remedy(self, run_cli):
        result = self.check(run_cli, "127.0.0.1:1", "sha256:a", "sha256:b")
        assert result.returncode == 1
        assert "xver-compat serve" in result.stderr

    def test_a_bad_question_is_an_error(self, start_serve, run_cli, database_url):
        _, address = start_serve("--db", database_url, "--listen", "127.0.0.1:0")
        result = self.check(run_cli, address, "not-a-fingerprint", "sha256:b")
        assert result.returncode == 1
        assert "INVALID_FIELD" in result.stderr
