"""The protocol: who wrote the KV that each arm reads, and that a wrong hit voids the run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sglang_xver.calibrate.arms import Arm, PairMeasurement, PairRunner, Progress
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.engine_types import Generation
from sglang_xver.calibrate.errors import CalibrationError, InvalidRunError
from sglang_xver.calibrate.plan import MeasurementPlan
from tests.unit.calibrate.builders import make_documents, make_plan
from tests.unit.calibrate.fake_engine import FakeEngine

SOURCE, TARGET = Path("old"), Path("new")


def measure(engine: FakeEngine, plan: MeasurementPlan | None = None) -> PairMeasurement:
    return PairRunner(cast(EngineClient, engine), plan or make_plan()).measure(SOURCE, TARGET)


class TestArms:
    def test_only_reuse_reads_what_the_source_wrote(self) -> None:
        for result in measure(FakeEngine()).results:
            found = {arm: answer.text for arm, answer in result.answers.items()}
            expected = {Arm.COLD: "right", Arm.COLD_AGAIN: "right", Arm.WARM: "right"}
            expected |= {Arm.REUSE: "wrong"}
            if result.item.task.is_correct is not None:
                expected |= {Arm.SOURCE: "right"}
            assert found == expected

    def test_weights_are_loaded_twice_and_the_source_kv_survives(self) -> None:
        for documents in (2, 6):
            engine = FakeEngine()
            measure(engine, make_plan(documents=make_documents(documents)))
            assert engine.updates == [("old", True), ("new", False)]

    def test_floor_is_measured_and_zero_for_the_same_weights(self) -> None:
        results = [r for r in measure(FakeEngine()).results if r.floor is not None]
        assert {r.item.item_id for r in results} == {"d0/q0", "d0/t0", "d1/q0", "d1/t0"}
        for result in results:
            assert result.divergence is not None
            assert result.floor is not None
            assert result.floor.mean_kl == 0.0
            assert result.divergence.mean_kl > 1.0

    def test_control_is_another_document_once_per_task(self) -> None:
        controls = [r for r in measure(FakeEngine()).results if r.control is not None]
        assert [r.item.item_id for r in controls] == ["d0/q0", "d0/t0", "d1/q0", "d1/t0"]
        assert all(r.control is not None and r.control.mean_kl > 1.0 for r in controls)

    def test_forced_positions_follow_the_task(self) -> None:
        for result in measure(FakeEngine()).results:
            if result.divergence is not None:
                assert len(result.divergence.positions) == result.item.task.forced_positions

    def test_an_unstable_reference_is_seen(self) -> None:
        engine = FakeEngine()
        plan = make_plan()
        original = engine.generate

        def unstable(input_ids: tuple[int, ...], **options: object) -> Generation:
            answer = original(input_ids, **options)  # type: ignore[arg-type]
            is_again = str(options["cache_salt"]).startswith(f"{plan.run_salt}/C'/d1")
            return answer._replace(output_ids=(5,)) if is_again else answer

        engine.generate = unstable  # type: ignore[assignment, method-assign]
        found = {r.item.item_id: r.is_reference_repeated for r in measure(engine, plan).results}
        assert found == {i: i.startswith("d0") for i in found}

    def test_every_item_can_be_cold(self) -> None:
        engine = FakeEngine()
        plan = make_plan(is_cold_every_item=True)
        measure(engine, plan)
        cold = {salt for salt in engine.salts if salt.startswith(f"{plan.run_salt}/C/")}
        assert len(cold) == 6

    def test_progress_ends_at_its_total(self) -> None:
        seen: list[Progress] = []
        PairRunner(cast(EngineClient, FakeEngine()), make_plan(), seen.append).measure(
            SOURCE, TARGET
        )
        assert [p.done for p in seen] == list(range(1, seen[-1].total + 1))


class TestVoid:
    @pytest.mark.parametrize("arm", ["S", "C", "C'", "W", "R"])
    def test_kv_that_was_there_before(self, arm: str) -> None:
        engine, plan = FakeEngine(), make_plan()
        document = plan.documents[0]
        original = engine.update_weights_from_disk

        def polluted(path: Path, *, flush_cache: bool = True) -> object:
            reply = original(path, flush_cache=flush_cache)
            if flush_cache:
                engine.generate(
                    document.prefix_ids, max_new_tokens=1, cache_salt=plan.salt(arm, document)
                )
            return reply

        engine.update_weights_from_disk = polluted  # type: ignore[assignment, method-assign]
        with pytest.raises(InvalidRunError, match=r"the arm demands 0"):
            measure(engine, plan)

    def test_source_kv_that_was_lost(self) -> None:
        engine = FakeEngine()
        original = engine.update_weights_from_disk
        engine.update_weights_from_disk = (  # type: ignore[method-assign]
            lambda path, *, flush_cache=True: original(path, flush_cache=True)
        )
        with pytest.raises(InvalidRunError, match=r"arm R.*demands 6"):
            measure(engine)

    @pytest.mark.parametrize("mode", ["on", "observe", ""])
    def test_only_mode_off_measures(self, mode: str) -> None:
        engine = FakeEngine(mode=mode)
        with pytest.raises(CalibrationError, match="SGLANG_XVER_MODE=off"):
            measure(engine)
        assert engine.updates == []

    def test_a_pool_that_is_too_small_is_refused_before_anything_runs(self) -> None:
        engine = FakeEngine(pool_tokens=100)
        with pytest.raises(CalibrationError, match="fewer documents"):
            measure(engine)
        assert engine.updates == []


class TestPlan:
    def test_salts_are_unique_per_run(self) -> None:
        document = make_documents()[0]
        assert make_plan().salt("W", document) != make_plan().salt("W", document)

    def test_planned_items_are_those_of_the_smallest_stratum(self) -> None:
        assert make_plan(documents=make_documents(3)).planned_items == 3

    def test_one_document_leaves_no_control(self) -> None:
        with pytest.raises(CalibrationError, match="control"):
            make_plan(documents=make_documents(1))

    def test_one_length_per_run(self) -> None:
        mixed = (make_documents(2)[0], make_documents(2, prefix_tokens=7)[1])
        with pytest.raises(CalibrationError, match="one length"):
            make_plan(documents=mixed)

    def test_ids_are_unique(self) -> None:
        document = make_documents()[0]
        with pytest.raises(CalibrationError, match="used twice"):
            make_plan(documents=(document, document))
