"""Validation: every bad field is named with its path, value, rule and remedy."""

from __future__ import annotations

import math

import pytest
from evidence_builders import ENGINE, LAYOUT, SOURCE, TARGET, make_request, make_run, make_stratum
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.errors import InvalidRequestError
from compat_service.services.page_token import decode_page_token, encode_page_token
from compat_service.validation import (
    validate_check,
    validate_get_run,
    validate_list_pairs,
    validate_record_run,
)


def violations_of(validate, request):
    """Return {field: reason}; empty for a valid request."""
    try:
        validate(request)
    except InvalidRequestError as error:
        found = error.violations()
    else:
        return {}
    assert all(violation.description for violation in found)
    return {violation.field: violation.reason for violation in found}


def change(request, path, value):
    """Set a field of a request by its path, for example ``run.strata.0.flips.harmful``."""
    *parents, last = path.split(".")
    message = request
    for name in parents:
        message = message[int(name)] if name.isdigit() else getattr(message, name)
    setattr(message, last, value)


def full_request():
    stratum = make_stratum(
        agreement=evidence.AgreementSummary(
            total_variation=0.01, jensen_shannon=0.01, top1_agreement=0.99, top10_overlap=0.9
        ),
        ttft=evidence.TtftSummary(ratio_lower=2.0, ratio_median=3.0, ratio_upper=4.0, num_pairs=20),
        floor_flips=evidence.FlipCounts(num_items=310, reference_correct=300, harmful=1),
        num_documents=20,
        stop_mismatches=1,
        source_correct=290,
    )
    return make_request(make_run(stratum))


BAD_RUN_FIELDS = [
    ("request_id", "", "REQUIRED"),
    ("request_id", "x" * 201, "TOO_LONG"),
    ("request_id", "a\nb", "BAD_CHARACTER"),
    ("run.run_id", "run_1", "BAD_VALUE"),
    ("run.evidence_revision", 4, "BAD_VALUE"),
    ("run.source.fingerprint", "", "REQUIRED"),
    ("run.target.fingerprint", "unknown:x", "REQUIRED"),
    ("run.source.fingerprint", "model@1", "BAD_FORMAT"),
    ("run.source.label", "x" * 10_000, "TOO_LONG"),
    ("run.source.lineage_step", -1, "OUT_OF_RANGE"),
    ("run.layout.digest", "", "REQUIRED"),
    ("run.layout.num_layers", -2, "OUT_OF_RANGE"),
    ("run.engine.name", "", "REQUIRED"),
    ("run.engine.version", "", "REQUIRED"),
    ("run.provenance", 0, "BAD_VALUE"),
    ("run.provenance", 77, "BAD_VALUE"),
    ("run.note", "x" * 5000, "TOO_LONG"),
    ("run.sample_plan.planned_items", 0, "OUT_OF_RANGE"),
    ("run.sample_plan.planned_looks", 4, "OUT_OF_RANGE"),
    ("run.sample_plan.hfr_limit", 2.0, "OUT_OF_RANGE"),
    ("run.sample_plan.confidence_level", 1.0, "OUT_OF_RANGE"),
    ("run.strata.0.task_family", "", "REQUIRED"),
    ("run.strata.0.task_family", "NIAH one", "BAD_FORMAT"),
    ("run.strata.0.task", "", "REQUIRED"),
    ("run.strata.0.prefix_tokens_max", 0, "OUT_OF_RANGE"),
    ("run.strata.0.prefix_tokens_min", 4000, "BAD_ORDER"),
    ("run.strata.0.prefix_tokens_min", -1, "OUT_OF_RANGE"),
    ("run.strata.0.action", 0, "BAD_VALUE"),
    ("run.strata.0.action", common.ACTION_EVICT, "BAD_VALUE"),
    ("run.strata.0.mapper.sha256", "m1", "BAD_VALUE"),
    ("run.strata.0.num_documents", 999, "OUT_OF_RANGE"),
    ("run.strata.0.reference_mismatches", 311, "OUT_OF_RANGE"),
    ("run.strata.0.stop_mismatches", -1, "OUT_OF_RANGE"),
    ("run.strata.0.source_correct", 311, "OUT_OF_RANGE"),
    ("run.strata.0.flips.num_items", 0, "OUT_OF_RANGE"),
    ("run.strata.0.flips.reference_correct", 311, "OUT_OF_RANGE"),
    ("run.strata.0.flips.harmful", 301, "OUT_OF_RANGE"),
    ("run.strata.0.flips.harmful", -1, "OUT_OF_RANGE"),
    ("run.strata.0.flips.beneficial", 11, "OUT_OF_RANGE"),
    ("run.strata.0.floor_flips.harmful", 301, "OUT_OF_RANGE"),
    ("run.strata.0.divergence.method", 0, "BAD_VALUE"),
    ("run.strata.0.divergence.num_items", 0, "OUT_OF_RANGE"),
    ("run.strata.0.divergence.positions_per_item", 0, "OUT_OF_RANGE"),
    ("run.strata.0.divergence.mean", -0.1, "OUT_OF_RANGE"),
    ("run.strata.0.divergence.mean", 0.5, "BAD_ORDER"),
    ("run.strata.0.divergence.mean_upper_bound", math.inf, "NOT_FINITE"),
    ("run.strata.0.divergence.median", 0.02, "BAD_ORDER"),
    ("run.strata.0.divergence.p95", 0.03, "BAD_ORDER"),
    ("run.strata.0.divergence.p99", 1.0, "BAD_ORDER"),
    ("run.strata.0.divergence.p99", -1.0, "OUT_OF_RANGE"),
    ("run.strata.0.divergence.remainder_mass", 1.5, "OUT_OF_RANGE"),
    ("run.strata.0.floor_divergence.mean", math.nan, "NOT_FINITE"),
    ("run.strata.0.agreement.top1_agreement", 98.0, "OUT_OF_RANGE"),
    ("run.strata.0.agreement.total_variation", math.nan, "NOT_FINITE"),
    ("run.strata.0.ttft.ratio_lower", 3.5, "BAD_ORDER"),
    ("run.strata.0.ttft.num_pairs", 0, "OUT_OF_RANGE"),
]


class TestRecordRun:
    def test_a_complete_run_is_accepted(self):
        assert violations_of(validate_record_run, full_request()) == {}

    def test_a_control_run_with_equal_versions_is_accepted(self):
        assert violations_of(validate_record_run, make_request(make_run(target=SOURCE))) == {}

    def test_a_published_run_needs_no_layout_and_no_engine(self):
        run = make_run(provenance=evidence.PROVENANCE_PUBLISHED, layout=None, engine=None)
        assert violations_of(validate_record_run, make_request(run)) == {}

    @pytest.mark.parametrize("path,value,reason", BAD_RUN_FIELDS)
    def test_a_bad_field_is_named(self, path, value, reason):
        request = full_request()
        change(request, path, value)
        field = path.replace(".0.", "[0].")
        assert violations_of(validate_record_run, request).get(field) == reason

    def test_all_violations_come_in_one_answer(self):
        request = full_request()
        change(request, "request_id", "")
        change(request, "run.source.fingerprint", "model@1")
        change(request, "run.strata.0.flips.harmful", 301)
        assert list(violations_of(validate_record_run, request)) == [
            "request_id",
            "run.source.fingerprint",
            "run.strata[0].flips.harmful",
        ]

    def test_the_message_holds_value_rule_and_remedy(self):
        request = full_request()
        change(request, "run.strata.0.flips.harmful", 301)
        with pytest.raises(InvalidRequestError, match=r"301 is outside 0\.\.300; only the"):
            validate_record_run(request)

    def test_a_missing_run_is_named(self):
        request = evidence.RecordRunRequest(request_id="x")
        assert violations_of(validate_record_run, request) == {"run": "REQUIRED"}

    def test_no_stratum_is_named(self):
        request = make_request()
        del request.run.strata[:]
        assert violations_of(validate_record_run, request) == {"run.strata": "REQUIRED"}

    def test_a_stratum_without_figures_is_named(self):
        run = make_run(make_stratum(flips=None, divergence=None))
        assert violations_of(validate_record_run, make_request(run)) == {
            "run.strata[0]": "REQUIRED"
        }

    def test_a_repeated_stratum_is_named(self):
        run = make_run(make_stratum(), make_stratum())
        assert violations_of(validate_record_run, make_request(run)) == {
            "run.strata[1]": "DUPLICATE"
        }

    def test_remap_needs_its_mapper(self):
        run = make_run(make_stratum(action=common.ACTION_REMAP))
        assert violations_of(validate_record_run, make_request(run)) == {
            "run.strata[0].mapper.sha256": "REQUIRED"
        }

    def test_too_many_strata_are_refused_as_a_whole(self):
        run = make_run(*[make_stratum(prefix_tokens_max=2000 + i) for i in range(1001)])
        assert violations_of(validate_record_run, make_request(run)) == {"run.strata": "TOO_MANY"}

    def test_the_answer_stays_small_for_a_thoroughly_bad_run(self):
        run = make_run(*[make_stratum(task_family="", task="") for _ in range(500)])
        with pytest.raises(InvalidRequestError) as caught:
            validate_record_run(make_request(run))
        assert len(caught.value.violations()) == 100

    def test_an_impossible_time_is_named(self):
        request = make_request()
        request.run.measured_at.seconds = 2**60
        assert violations_of(validate_record_run, request) == {"run.measured_at": "OUT_OF_RANGE"}


class TestCheck:
    def request(self, **changes):
        fields = {
            "source": SOURCE,
            "target": TARGET,
            "source_layout": LAYOUT,
            "engine": ENGINE,
            "task_families": ["niah"],
        }
        return compat.CheckCompatRequest(**{**fields, **changes})

    def test_a_question_is_accepted(self):
        assert violations_of(validate_check, self.request()) == {}

    def test_an_unknown_version_is_a_question_too(self):
        empty = common.ModelVersion()
        assert violations_of(validate_check, self.request(source=empty, target=empty)) == {}

    def test_conditions_are_required(self):
        found = violations_of(validate_check, self.request(source_layout=None, engine=None))
        assert set(found) == {"source_layout.digest", "engine.name", "engine.version"}

    def test_a_given_target_layout_needs_its_digest(self):
        found = violations_of(
            validate_check, self.request(target_layout=common.CacheLayout(num_layers=3))
        )
        assert found == {"target_layout.digest": "REQUIRED"}

    def test_bad_families_are_named(self):
        found = violations_of(validate_check, self.request(task_families=["ok", "*"]))
        assert found == {"task_families[1]": "BAD_FORMAT"}


class TestReads:
    def test_an_empty_run_id_is_named(self):
        assert violations_of(validate_get_run, evidence.GetRunRequest()) == {"run_id": "REQUIRED"}

    @pytest.mark.parametrize("size", [-1, 501])
    def test_page_sizes_have_limits(self, size):
        request = evidence.ListPairsRequest(page_size=size)
        assert violations_of(validate_list_pairs, request) == {"page_size": "OUT_OF_RANGE"}

    def test_a_token_comes_back_as_it_was(self):
        assert decode_page_token(encode_page_token(17, ("a", "")), ("a", "")) == 17

    @pytest.mark.parametrize(
        "token", ["garbage", "e30=", "WzEsMiwieCJd", "", "\u00fc", "W1tbW1tb" * 50]
    )
    def test_a_forged_token_is_refused(self, token):
        with pytest.raises(InvalidRequestError, match="page_token"):
            decode_page_token(token, ("", ""))

    def test_a_token_of_another_listing_is_refused(self):
        with pytest.raises(InvalidRequestError, match="other filters"):
            decode_page_token(encode_page_token(17, ("a", "")), ("b", ""))
