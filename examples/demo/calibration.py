"""Measures the demonstration's two pairs and records the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from xver.compat.v1 import evidence_pb2 as evidence

from sglang_xver.calibrate.arms import Arm, ItemResult, PairMeasurement, PairRunner, Progress
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.plan import MeasurementPlan
from sglang_xver.calibrate.record import build_run, request_id
from sglang_xver.calibrate.tasks import Document
from sglang_xver.client import CompatClient
from sglang_xver.identity import inspect_checkpoint

# What the plan is made for; the policy "demo" judges by the same figures. They allow a few items
# to decide, so they prove nothing about rare harm.
HFR_LIMIT = 0.35
CONFIDENCE_LEVEL = 0.80
_RECORD_TIMEOUT_S = 20.0
_HASH_WHOLE_BYTES = 8 * 1024**3


class MeasuredPair(NamedTuple):
    """A recorded pair and its items."""

    run: evidence.Run
    run_id: str
    results: tuple[ItemResult, ...]
    seconds_by_arm: Mapping[str, float]


@dataclass(frozen=True)
class HarmExample:
    """One measured item that reuse answers wrong and the target itself answers right."""

    document: Document
    item_id: str
    question: str
    question_ids: tuple[int, ...]
    gold: str
    target_answer: str
    reuse_answer: str


def measure_pair(
    client: EngineClient,
    source: Path,
    target: Path,
    documents: tuple[Document, ...],
    label: str,
    on_progress: Callable[[Progress], None],
) -> tuple[PairMeasurement, evidence.Run]:
    """Measure all arms of one pair; ``label`` names the target for people."""
    plan = MeasurementPlan(documents, hfr_limit=HFR_LIMIT, confidence_level=CONFIDENCE_LEVEL)
    measurement = PairRunner(client, plan, on_progress).measure(source, target)
    run = build_run(
        measurement,
        inspect_checkpoint(source, _HASH_WHOLE_BYTES),
        inspect_checkpoint(target, _HASH_WHOLE_BYTES),
        labels=("base", label),
        note="Demonstration: few items. Arms S, C and C' prefill each document once, so one item "
        "per document is cold and the others read what it wrote.",
    )
    return measurement, run


def record(service_address: str, measurement: PairMeasurement, run: evidence.Run) -> MeasuredPair:
    """Send the run to the service; the same run is stored once however often it is sent."""
    with CompatClient(service_address, timeout_s=_RECORD_TIMEOUT_S) as service:
        recorded = service.record_run(run, request_id=request_id(run))
    return MeasuredPair(run, recorded.run_id, measurement.results, measurement.seconds_by_arm)


def find_harm(documents: tuple[Document, ...], pair: MeasuredPair) -> HarmExample | None:
    """Return an item that arm C answers right and arm R wrong; None when there is none.

    One that the source answers right as well comes first: there the reuse alone is to blame.
    """
    harmed = [
        result
        for result in pair.results
        if result.item.task.is_correct is not None
        and result.is_correct(Arm.COLD)
        and not result.is_correct(Arm.REUSE)
    ]
    if not harmed:
        return None
    chosen = max(harmed, key=lambda result: result.is_correct(Arm.SOURCE))
    by_id = {document.document_id: document for document in documents}
    return HarmExample(
        document=by_id[chosen.document_id],
        item_id=chosen.item.item_id,
        question=chosen.item.question,
        question_ids=chosen.item.question_ids,
        gold=chosen.item.gold,
        target_answer=chosen.answers[Arm.COLD].text,
        reuse_answer=chosen.answers[Arm.REUSE].text,
    )


def evidence_lines(pair: MeasuredPair) -> list[str]:
    """One sentence per stratum with the counts behind it."""
    return [_stratum_line(stratum) for stratum in pair.run.strata]


def _stratum_line(stratum: evidence.StratumResult) -> str:
    parts = [f"{stratum.task_family} up to {stratum.prefix_tokens_max} tokens:"]
    if stratum.HasField("flips"):
        flips = stratum.flips
        parts.append(
            f"{flips.harmful} of {flips.reference_correct} right answers broken, "
            f"{flips.beneficial} of {flips.num_items - flips.reference_correct} wrong ones "
            f"repaired (warm hit alone: {stratum.floor_flips.harmful} broken);"
        )
    divergence, floor = stratum.divergence, stratum.floor_divergence
    method = evidence.DivergenceMethod.Name(divergence.method)
    parts.append(
        f"FCD {divergence.mean:.4f} nats, upper bound {divergence.mean_upper_bound:.4f}, "
        f"floor {floor.mean:.4f} ({divergence.num_items} items x {divergence.positions_per_item} "
        f"positions, {method.removeprefix('DIVERGENCE_METHOD_').lower().replace('_', ' ')})"
    )
    return " ".join(parts)


def evidence_json(pair: MeasuredPair) -> dict[str, Any]:
    """The recorded run and every item's answers, ready for JSON."""
    from google.protobuf.json_format import MessageToDict

    return {
        "run_id": pair.run_id,
        "seconds_by_arm": {arm: round(value, 1) for arm, value in pair.seconds_by_arm.items()},
        "run": MessageToDict(pair.run, preserving_proto_field_name=True),
        "items": [
            {
                "item": result.item.item_id,
                "gold": result.item.gold,
                "answers": {str(arm): answer.text for arm, answer in result.answers.items()},
                "fcd": None if result.divergence is None else result.divergence.mean_kl,
                "fcd_floor": None if result.floor is None else result.floor.mean_kl,
                "fcd_control": None if result.control is None else result.control.mean_kl,
            }
            for result in pair.results
        ],
    }
