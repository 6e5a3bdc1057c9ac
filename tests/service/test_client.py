"""Client: deadlines, a service that is down or comes back, threads and forks."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from evidence_builders import ENGINE, LAYOUT, SOURCE, TARGET, make_run
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.config import Settings
from compat_service.server import CompatServer
from sglang_xver.client import Action, CompatClient, Confidence
from sglang_xver.client.answer import answer_from_message
from sglang_xver.decision import rule_from_answer
from sglang_xver.errors import ServiceUnavailableError

pytestmark = pytest.mark.service
CONDITIONS = {"layout": LAYOUT, "engine": ENGINE}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TestServiceDown:
    def test_fails_fast(self):
        with CompatClient(f"127.0.0.1:{free_port()}", timeout_s=20.0) as client:
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError, match="xver-compat serve"):
                client.check_compat(SOURCE, TARGET, **CONDITIONS)
            assert time.monotonic() - started < 5.0

    def test_a_silent_peer_costs_the_deadline_and_no_more(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with CompatClient(address) as client:
                started = time.monotonic()
                with pytest.raises(ServiceUnavailableError):
                    client.check_compat(SOURCE, TARGET, timeout_s=0.5, **CONDITIONS)
                assert time.monotonic() - started < 3.0

    def test_a_proxy_of_the_environment_is_not_asked(self, server, monkeypatch):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("no_proxy", "")
        with CompatClient(str(server.endpoint), timeout_s=10.0) as client:
            assert client.check_compat(SOURCE, TARGET, **CONDITIONS).decision_id

    def test_waiting_for_readiness_ends(self):
        with (
            CompatClient(f"127.0.0.1:{free_port()}") as client,
            pytest.raises(ServiceUnavailableError, match="within"),
        ):
            client.wait_until_ready(0.3)

    def test_a_service_that_comes_back_is_found(self, database, database_url):
        port = free_port()
        settings = Settings(database_url=database_url, listen=f"127.0.0.1:{port}")
        with CompatClient(f"127.0.0.1:{port}", timeout_s=5.0) as client:
            with pytest.raises(ServiceUnavailableError):
                client.check_compat(SOURCE, TARGET, **CONDITIONS)
            for _ in range(2):
                server = CompatServer(settings, database)
                server.start()
                client.wait_until_ready(10.0)
                assert client.check_compat(SOURCE, TARGET, **CONDITIONS).decision_id
                server.stop()
                with pytest.raises(ServiceUnavailableError):
                    client.check_compat(SOURCE, TARGET, **CONDITIONS)


class TestSharing:
    def test_threads_share_one_client(self, client):
        answers = []

        def ask() -> None:
            answers.append(client.check_compat(SOURCE, TARGET, **CONDITIONS))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({answer.decision_id for answer in answers}) == 8

    def test_a_forked_child_opens_its_own_channel(self, client):
        parent_channel = client._open_channel()
        client._channel_pid = os.getpid() + 1  # what a child sees after a fork
        assert client._open_channel() is not parent_channel

    def test_works_again_after_close(self, client):
        client.check_compat(SOURCE, TARGET, **CONDITIONS)
        client.close()
        assert client.check_compat(SOURCE, TARGET, **CONDITIONS).decision_id


class TestRecording:
    def test_a_key_makes_a_repetition_harmless(self, client):
        first = client.record_run(make_run(), request_id="calibration-1")
        again = client.record_run(make_run(), request_id="calibration-1")
        assert again.already_recorded
        assert again.run_id == first.run_id
        assert client.get_run(first.run_id).strata == make_run().strata

    def test_validation_stores_nothing(self, client):
        assert client.record_run(make_run(), validate_only=True).run_id == ""


class TestReadingAnswers:
    def rule(self, low, high, action=common.ACTION_KEEP, confidence=common.CONFIDENCE_PASS):
        return compat.Rule(
            task_family="niah",
            prefix_tokens_min_exclusive=low,
            prefix_tokens_max=high,
            action=action,
            confidence=confidence,
        )

    def depth(self, *rules):
        message = compat.CheckCompatResponse(rules=rules)
        return rule_from_answer(answer_from_message(message), ["niah"]).keep_max_tokens

    def test_values_that_this_client_does_not_know_read_as_evict(self):
        message = compat.CheckCompatResponse(
            action=99, confidence=99, reasons=[compat.Reason(code=999)]
        )
        answer = answer_from_message(message)
        assert (answer.action, answer.confidence) == (Action.EVICT, Confidence.NO_EVIDENCE)
        assert answer.reasons[0].code == "CODE_999"

    def test_an_empty_answer_keeps_nothing(self):
        assert self.depth() == 0

    def test_a_gap_ends_the_depth(self):
        assert self.depth(self.rule(0, 512), self.rule(1024, 2048)) == 512

    def test_a_keep_without_pass_is_not_believed(self):
        assert self.depth(self.rule(0, 512, confidence=common.CONFIDENCE_MARGINAL)) == 0

    def test_a_remap_is_not_a_keep(self):
        assert self.depth(self.rule(0, 512, action=common.ACTION_REMAP)) == 0
