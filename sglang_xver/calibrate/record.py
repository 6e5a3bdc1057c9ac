"""Turns a measured pair into the run record that the compatibility service judges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from sglang_xver.calibrate.arms import Arm, ItemResult, PairMeasurement
from sglang_xver.calibrate.divergence import (
    DivergenceStats,
    ItemDivergence,
    require_control_caught,
    summarize,
    summarize_agreement,
)
from sglang_xver.calibrate.engine_types import ServerInfo
from sglang_xver.calibrate.errors import CalibrationError
from sglang_xver.calibrate.flips import FlipStats, count_flips
from sglang_xver.calibrate.plan import MeasurementPlan
from sglang_xver.calibrate.tasks import Task
from sglang_xver.identity import Checkpoint
from sglang_xver.layout import KvLayout

_PACKAGE = "sglang-xver"


def build_run(
    measurement: PairMeasurement,
    source: Checkpoint,
    target: Checkpoint,
    *,
    labels: tuple[str, str] = ("", ""),
    note: str = "",
    measured_at: datetime | None = None,
) -> evidence.Run:
    """Return the record of one measured pair.

    Layout and engine are what the server stated, verbatim. ``labels`` name source and target for
    people. ``measured_at`` is now unless given.

    Raises:
        InvalidRunError: the control arm can't be told from the noise floor.
        CalibrationError: the server stated no usable layout, or no item was measured.
    """
    timestamp = Timestamp()
    timestamp.FromDatetime(measured_at or datetime.now(UTC))
    prefix_tokens = measurement.plan.prefix_tokens
    return evidence.Run(
        source=model_version(source, labels[0]),
        target=model_version(target, labels[1]),
        layout=layout_from_server(measurement.server.layout),
        engine=engine_from_server(measurement.server),
        provenance=evidence.PROVENANCE_MEASURED,
        sample_plan=sample_plan(measurement.plan),
        strata=[
            stratum(task, _of_task(measurement.results, task), prefix_tokens)
            for task in measurement.plan.tasks
        ],
        tool_version=f"{_PACKAGE} {metadata.version(_PACKAGE)}",
        note=note,
        measured_at=timestamp,
    )


def request_id(run: evidence.Run) -> str:
    """Return the idempotency key of a run: equal content, equal key."""
    content = run.SerializeToString(deterministic=True)
    return "calibrate-" + hashlib.sha256(content).hexdigest()


def model_version(checkpoint: Checkpoint, label: str = "") -> common.ModelVersion:
    """Return the API's description of a checkpoint."""
    return common.ModelVersion(
        label=label,
        fingerprint=checkpoint.fingerprint,
        family=checkpoint.model_type,
        tokenizer_digest=checkpoint.tokenizer_digest,
    )


def layout_from_server(layout: Mapping[str, Any]) -> common.CacheLayout:
    """Return the ``layout`` block of ``/server_info`` as the API's message.

    Raises:
        CalibrationError: a field is missing or unknown: plugin and tool are of two versions.
    """
    known = {field.name for field in fields(KvLayout)}
    if layout.keys() != known:
        raise CalibrationError(
            f"the server's layout has the fields {sorted(layout)}, expected {sorted(known)}; "
            "use the same version of sglang-xver here and in the server"
        )
    return common.CacheLayout(**layout)


def engine_from_server(server: ServerInfo) -> common.Engine:
    """Return the engine that measured, in the words with which it asks for verdicts later.

    Raises:
        CalibrationError: the plugin didn't state it.
    """
    engine = server.xver.get("engine")
    if not isinstance(engine, Mapping):
        raise CalibrationError(
            "the server's xver block names no engine; "
            "use the same version of sglang-xver here and in the server"
        )
    return common.Engine(**engine)


def sample_plan(plan: MeasurementPlan) -> evidence.SamplePlan:
    """Return the sizes that were fixed before the first item."""
    return evidence.SamplePlan(
        planned_items=plan.planned_items,
        planned_looks=plan.planned_looks,
        hfr_limit=plan.hfr_limit,
        confidence_level=plan.confidence_level,
    )


def stratum(
    task: Task, results: Sequence[ItemResult], prefix_tokens: int
) -> evidence.StratumResult:
    """Return what was measured for one task at one prefix length.

    Raises:
        InvalidRunError: the control arm can't be told from the noise floor.
        CalibrationError: no item of the task has distributions.
    """
    divergences = [r.divergence for r in results if r.divergence is not None]
    floors = [r.floor for r in results if r.floor is not None]
    controls = [r.control for r in results if r.control is not None]
    require_control_caught(controls, floors)
    agreement = summarize_agreement(divergences)
    result = evidence.StratumResult(
        task_family=task.family,
        task=task.name,
        prefix_tokens_max=prefix_tokens,
        prefix_tokens_min=prefix_tokens,
        action=common.ACTION_KEEP,
        num_documents=len({r.document_id for r in results}),
        divergence=_summary(divergences),
        floor_divergence=_summary(floors),
        agreement=evidence.AgreementSummary(**agreement._asdict()),
        reference_mismatches=sum(not r.is_reference_repeated for r in results),
        synthetic=task.is_synthetic,
    )
    if task.is_correct is not None:
        reference = [r.is_correct(Arm.COLD) for r in results]
        reuse = count_flips(reference, [r.is_correct(Arm.REUSE) for r in results])
        warm = count_flips(reference, [r.is_correct(Arm.WARM) for r in results])
        result.flips.CopyFrom(_flip_counts(reuse))
        result.floor_flips.CopyFrom(_flip_counts(warm))
        result.source_correct = sum(r.is_correct(Arm.SOURCE) for r in results)
    return result


def _of_task(results: Sequence[ItemResult], task: Task) -> list[ItemResult]:
    return [result for result in results if result.item.task.name == task.name]


def _flip_counts(stats: FlipStats) -> evidence.FlipCounts:
    return evidence.FlipCounts(**stats._asdict())


def _summary(items: Sequence[ItemDivergence]) -> evidence.DivergenceSummary:
    stats = summarize(items)
    return evidence.DivergenceSummary(
        method=_method(stats),
        num_items=stats.num_items,
        positions_per_item=stats.positions_per_item,
        mean=stats.mean,
        mean_upper_bound=stats.mean_upper_bound,
        median=stats.median,
        p95=stats.p95,
        p99=stats.p99,
        max=stats.max,
        first_position_mean=stats.first_position_mean,
        remainder_mass=None if stats.is_full_vocabulary else stats.remainder_mass,
    )


def _method(stats: DivergenceStats) -> evidence.DivergenceMethod:
    if stats.is_full_vocabulary:
        return evidence.DIVERGENCE_METHOD_FULL_VOCABULARY
    return evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND
