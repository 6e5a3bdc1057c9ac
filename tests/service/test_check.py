"""CheckCompat over a socket: the answer, the stored decision, and failing closed."""

from __future__ import annotations

import sqlite3

import pytest
from evidence_builders import ENGINE, LAYOUT, SOURCE, TARGET, make_flips, make_run, make_stratum
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.policy import STANDARD
from sglang_xver.client import Action, CallRefusedError, Confidence
from sglang_xver.decision import rule_from_answer
from sglang_xver.errors import ServiceUnavailableError
from sglang_xver.lineage import UNLIMITED

pytestmark = pytest.mark.service
CONDITIONS = {"layout": LAYOUT, "engine": ENGINE}


@pytest.fixture
def connection(database_url):
    with sqlite3.connect(database_url.removeprefix("sqlite:///")) as connection:
        yield connection


class TestAnswer:
    def test_no_evidence_is_an_answer(self, client):
        answer = client.check_compat(SOURCE, TARGET, task_families=["niah"], **CONDITIONS)
        assert (answer.action, answer.confidence) == (Action.EVICT, Confidence.NO_EVIDENCE)
        assert answer.reasons[0].code == "NO_EVIDENCE"
        assert rule_from_answer(answer, ["niah"]).keep_max_tokens == 0

    def test_good_evidence_keeps_up_to_its_length(self, client):
        recorded = client.record_run(make_run())
        answer = client.check_compat(SOURCE, TARGET, **CONDITIONS)
        assert (answer.action, answer.confidence) == (Action.KEEP, Confidence.PASS)
        assert rule_from_answer(answer, ["niah"]).keep_max_tokens == 2048
        assert rule_from_answer(answer, ["niah", "qa"]).families == {"niah": 2048, "qa": 0}
        assert answer.evidence_revision == recorded.evidence_revision
        assert answer.rules[0].reasons[0].run_ids == (recorded.run_id,)
        assert (answer.policy, answer.policy_revision) == ("standard", STANDARD.revision)
        assert answer.ttl_s == 300
        assert answer.rules[-1].prefix_tokens_max is None

    def test_bad_evidence_evicts_with_its_figures(self, client):
        client.record_run(make_run(make_stratum(flips=make_flips(40, 35))))
        answer = client.check_compat(SOURCE, TARGET, **CONDITIONS)
        assert (answer.action, answer.confidence) == (Action.EVICT, Confidence.FAIL)
        assert answer.reasons[0].message.startswith("harmful flips 35/40, upper bound")

    def test_evidence_is_never_chained(self, client):
        third = common.ModelVersion(fingerprint="sha256:cccc")
        client.record_run(make_run())
        client.record_run(make_run(source=TARGET, target=third))
        answer = client.check_compat(SOURCE, third, **CONDITIONS)
        assert answer.reasons[0].code == "NO_EVIDENCE"

    def test_evidence_has_a_direction(self, client):
        client.record_run(make_run())
        answer = client.check_compat(TARGET, SOURCE, **CONDITIONS)
        assert answer.reasons[0].code == "NO_EVIDENCE"

    def test_the_same_weights_keep_everything(self, client):
        answer = client.check_compat(SOURCE, SOURCE, **CONDITIONS)
        assert rule_from_answer(answer, ["niah", "anything"]).keep_max_tokens == UNLIMITED

    def test_other_geometry_evicts(self, client):
        client.record_run(make_run())
        other = common.CacheLayout(digest="layout:2")
        answer = client.check_compat(SOURCE, TARGET, target_layout=other, **CONDITIONS)
        assert answer.reasons[0].code == "GEOMETRY_MISMATCH"

    def test_the_policy_of_the_request_decides(self, client):
        client.record_run(make_run(make_stratum(flips=make_flips(160))))
        kept = client.check_compat(SOURCE, TARGET, policy="standard", **CONDITIONS)
        evicted = client.check_compat(SOURCE, TARGET, policy="strict", **CONDITIONS)
        assert (kept.action, evicted.action) == (Action.KEEP, Action.EVICT)

    def test_an_unknown_policy_is_refused(self, client):
        with pytest.raises(CallRefusedError) as caught:
            client.check_compat(SOURCE, TARGET, policy="lenient", **CONDITIONS)
        assert (caught.value.code, caught.value.reason) == ("INVALID_ARGUMENT", "UNKNOWN_POLICY")
        assert caught.value.violations[0][0] == "policy"

    def test_a_question_without_conditions_is_refused(self, client):
        with pytest.raises(CallRefusedError) as caught:
            client.check_compat(SOURCE, TARGET, layout=common.CacheLayout(), engine=common.Engine())
        assert [field for field, _ in caught.value.violations] == [
            "source_layout.digest",
            "engine.name",
            "engine.version",
        ]


class TestDecision:
    def test_every_answer_is_stored_with_what_it_was_made_of(self, client, connection):
        client.record_run(make_run())
        answer = client.check_compat(
            SOURCE, TARGET, task_families=["niah"], client_name="server-7", **CONDITIONS
        )
        row = connection.execute(
            "SELECT client, policy_revision, policy_content, evidence_revision, request, response"
            " FROM decisions WHERE decision_id = ?",
            (answer.decision_id,),
        ).fetchone()
        assert row[:2] == ("server-7", STANDARD.revision)
        assert STANDARD.model_validate_json(row[2]) == STANDARD
        assert row[3] == 1
        assert compat.CheckCompatRequest.FromString(row[4]).task_families == ["niah"]
        assert compat.CheckCompatResponse.FromString(row[5]).decision_id == answer.decision_id

    def test_identifiers_sort_by_time(self, client):
        answers = [client.check_compat(SOURCE, TARGET, **CONDITIONS) for _ in range(3)]
        by_time = sorted(answers, key=lambda a: a.decided_at)
        assert len({a.decision_id for a in answers}) == 3
        assert [a.decision_id[:16] for a in by_time] == sorted(a.decision_id[:16] for a in answers)

    def test_an_answer_that_cannot_be_stored_is_not_given(self, client, connection):
        client.record_run(make_run())
        connection.execute("DROP TABLE decisions")
        connection.commit()
        with pytest.raises(ServiceUnavailableError, match="UNAVAILABLE"):
            client.check_compat(SOURCE, TARGET, **CONDITIONS)
