"""The run record: counts, floor, plan and provenance as measured, accepted by the service."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.validation.requests import validate_record_run
from sglang_xver.calibrate.arms import PairMeasurement, PairRunner
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.errors import CalibrationError, InvalidRunError
from sglang_xver.calibrate.record import build_run, layout_from_server, request_id
from sglang_xver.identity import Checkpoint, Geometry
from tests.unit.calibrate.builders import ENGINE, LAYOUT, make_plan
from tests.unit.calibrate.fake_engine import FakeEngine

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def checkpoint(name: str) -> Checkpoint:
    return Checkpoint(Path(name), f"sha256:{name}", Geometry({}, {}), "llama", "tok", {}, ())


def measured(engine: FakeEngine | None = None) -> PairMeasurement:
    runner = PairRunner(cast(EngineClient, engine or FakeEngine()), make_plan())
    return runner.measure(Path("old"), Path("new"))


def recorded(engine: FakeEngine | None = None) -> evidence.Run:
    return build_run(
        measured(engine),
        checkpoint("aaaa"),
        checkpoint("bbbb"),
        labels=("model@1", "model@2"),
        measured_at=NOW,
    )


class TestRun:
    def test_the_service_accepts_it(self) -> None:
        run = recorded()
        validate_record_run(evidence.RecordRunRequest(request_id=request_id(run), run=run))

    def test_carries_identity_layout_engine_and_plan(self) -> None:
        run = recorded()
        assert (run.source.fingerprint, run.target.label) == ("sha256:aaaa", "model@2")
        assert run.provenance == evidence.PROVENANCE_MEASURED
        assert {f.name: v for f, v in run.layout.ListFields()}.items() <= LAYOUT.items()
        assert run.engine == common.Engine(**ENGINE)
        assert (run.sample_plan.planned_items, run.sample_plan.planned_looks) == (2, 1)

    def test_scored_stratum_has_flips_and_their_floor(self) -> None:
        qa = next(s for s in recorded().strata if s.task_family == "qa")
        assert (qa.flips.num_items, qa.flips.reference_correct, qa.flips.harmful) == (4, 4, 4)
        assert (qa.floor_flips.reference_correct, qa.floor_flips.harmful) == (4, 0)
        assert qa.source_correct == 4
        assert qa.reference_mismatches == 0
        assert qa.HasField("reference_mismatches")
        assert (qa.prefix_tokens_min, qa.prefix_tokens_max) == (6, 6)
        assert qa.num_documents == 2
        assert qa.synthetic

    def test_divergence_stands_beside_its_floor(self) -> None:
        for stratum in recorded().strata:
            assert stratum.divergence.mean > stratum.floor_divergence.mean
            assert stratum.divergence.method == evidence.DIVERGENCE_METHOD_FULL_VOCABULARY
            assert not stratum.divergence.HasField("remainder_mass")
            assert stratum.divergence.num_items == 2

    def test_text_has_no_answers_to_count(self) -> None:
        text = next(s for s in recorded().strata if s.task_family == "text")
        assert not text.HasField("flips")
        assert not text.HasField("source_correct")

    def test_a_top_k_list_says_that_it_is_a_lower_bound(self) -> None:
        engine = FakeEngine()
        full = engine.logits

        def top_four(reader: str, writer: str, ids: tuple[int, ...]) -> object:
            whole = full(reader, writer, ids)
            order = (-whole.logprobs).argsort(kind="stable")[:4]
            return whole._replace(token_ids=whole.token_ids[order], logprobs=whole.logprobs[order])

        engine.logits = top_four  # type: ignore[assignment]
        for stratum in recorded(engine).strata:
            assert stratum.divergence.method == evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND
            assert stratum.divergence.remainder_mass > 0.3

    def test_a_control_that_looks_like_the_target_voids_it(self) -> None:
        engine = FakeEngine()
        peaked = engine.logits
        engine.logits = lambda reader, writer, ids: peaked("same", "same", (3,))
        with pytest.raises(InvalidRunError, match="can't tell them apart"):
            recorded(engine)


class TestRequestId:
    def test_follows_the_content(self) -> None:
        run = recorded()
        again = evidence.Run.FromString(run.SerializeToString())
        assert request_id(again) == request_id(run)
        again.strata[0].flips.harmful -= 1
        assert request_id(again) != request_id(run)


class TestLayout:
    def test_of_another_plugin_version_is_refused(self) -> None:
        with pytest.raises(CalibrationError, match="same version"):
            layout_from_server({**LAYOUT, "new_field": 1})
