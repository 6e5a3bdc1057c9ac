"""EvidenceService over a socket: recording, idempotency, reading, listing, refusals."""

from __future__ import annotations

import sqlite3

import grpc
import pytest
from evidence_builders import make_request, make_run, make_stratum
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence
from xver.compat.v1 import evidence_pb2_grpc

pytestmark = pytest.mark.service


@pytest.fixture
def stub(channel):
    return evidence_pb2_grpc.EvidenceServiceStub(channel)


def details_of(error: grpc.RpcError):
    """Return (ErrorInfo, BadRequest) of a failed call."""
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(error).details:
        assert detail.Unpack(info) or detail.Unpack(bad_request)
    return info, bad_request


class TestRecordRun:
    def test_what_was_recorded_can_be_read(self, stub):
        answer = stub.RecordRun(make_request())
        assert answer.run_id.startswith("run_")
        assert (answer.evidence_revision, answer.already_recorded) == (1, False)
        run = stub.GetRun(evidence.GetRunRequest(run_id=answer.run_id)).run
        assert run.recorded_at.seconds > 0
        assert (run.run_id, run.evidence_revision) == (answer.run_id, 1)
        for field in ("run_id", "recorded_at", "evidence_revision"):
            run.ClearField(field)
        assert run == make_run()

    def test_a_repeated_request_stores_nothing_new(self, stub):
        first = stub.RecordRun(make_request())
        again = stub.RecordRun(make_request())
        assert again.already_recorded
        assert (again.run_id, again.evidence_revision) == (first.run_id, 1)

    def test_the_same_content_under_a_new_key_is_a_new_run(self, stub):
        first = stub.RecordRun(make_request())
        second = stub.RecordRun(make_request(request_id="request-2"))
        assert second.run_id != first.run_id
        assert second.evidence_revision == 2

    def test_a_reused_key_is_refused_with_the_run_it_belongs_to(self, stub):
        first = stub.RecordRun(make_request())
        other = make_run(make_stratum(prefix_tokens_max=4096))
        with pytest.raises(grpc.RpcError) as caught:
            stub.RecordRun(make_request(other))
        assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
        info, _ = details_of(caught.value)
        assert (info.reason, info.domain) == ("REQUEST_ID_REUSED", "compat.xver")
        assert info.metadata["run_id"] == first.run_id

    def test_validate_only_stores_nothing(self, stub):
        request = make_request()
        request.validate_only = True
        answer = stub.RecordRun(request)
        assert (answer.run_id, answer.evidence_revision) == ("", 0)
        assert not stub.ListPairs(evidence.ListPairsRequest()).pairs

    def test_bad_figures_are_refused_field_by_field(self, stub):
        request = make_request()
        request.run.strata[0].flips.harmful = 9999
        request.run.strata[0].divergence.mean = float("nan")
        with pytest.raises(grpc.RpcError) as caught:
            stub.RecordRun(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        info, bad_request = details_of(caught.value)
        assert info.reason == "INVALID_FIELD"
        assert {v.field: v.reason for v in bad_request.field_violations} == {
            "run.strata[0].flips.harmful": "OUT_OF_RANGE",
            "run.strata[0].divergence.mean": "NOT_FINITE",
        }
        assert not stub.ListPairs(evidence.ListPairsRequest()).pairs

    def test_too_large_a_message_is_refused_and_the_service_lives_on(self, stub):
        request = make_request()
        request.run.note = "x" * 300_000
        with pytest.raises(grpc.RpcError) as caught:
            stub.RecordRun(request)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.RecordRun(make_request()).evidence_revision == 1


class TestGetRun:
    def test_an_unknown_run_is_not_found(self, stub):
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetRun(evidence.GetRunRequest(run_id="run_x"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        info, _ = details_of(caught.value)
        assert (info.reason, info.metadata["run_id"]) == ("RUN_NOT_FOUND", "run_x")


class TestListPairs:
    def record(self, stub, number, **changes):
        version = common.ModelVersion(fingerprint=f"sha256:{number:04d}")
        run = make_run(target=version, **changes)
        stub.RecordRun(make_request(run, request_id=f"request-{number}-{len(changes)}"))

    def test_a_pair_is_summarized(self, stub):
        strata = (make_stratum(), make_stratum(task_family="qa", prefix_tokens_max=4096))
        stub.RecordRun(make_request(make_run(*strata), request_id="a"))
        other_layout = common.CacheLayout(digest="layout:2")
        stub.RecordRun(make_request(make_run(layout=other_layout), request_id="b"))
        (pair,) = stub.ListPairs(evidence.ListPairsRequest()).pairs
        assert (pair.num_runs, pair.prefix_tokens_max) == (2, 4096)
        assert list(pair.task_families) == ["niah", "qa"]
        assert pair.source.label == "model@1"
        assert [c.layout.digest for c in pair.conditions] == ["layout:2", "layout:1"]

    def test_pages_hold_every_pair_once_newest_first(self, stub):
        for number in range(7):
            self.record(stub, number)
        seen, token = [], ""
        while True:
            page = stub.ListPairs(evidence.ListPairsRequest(page_size=3, page_token=token))
            seen += [pair.target.fingerprint for pair in page.pairs]
            token = page.next_page_token
            if not token:
                break
        assert seen == [f"sha256:{number:04d}" for number in reversed(range(7))]

    def test_filters_narrow_the_listing(self, stub):
        for number in range(3):
            self.record(stub, number)
        request = evidence.ListPairsRequest(target_fingerprint="sha256:0001")
        (pair,) = stub.ListPairs(request).pairs
        assert pair.target.fingerprint == "sha256:0001"

    def test_a_forged_token_is_refused(self, stub):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListPairs(evidence.ListPairsRequest(page_token="forged"))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        _, bad_request = details_of(caught.value)
        assert bad_request.field_violations[0].field == "page_token"


class TestBrokenStore:
    def test_a_failing_database_is_unavailable_and_names_no_internals(self, stub, database_url):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as connection:
            connection.execute("DROP TABLE run_strata")
        with pytest.raises(grpc.RpcError) as caught:
            stub.RecordRun(make_request())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        info, _ = details_of(caught.value)
        assert info.reason == "STORE_UNAVAILABLE"
        assert "INSERT" not in caught.value.details()
