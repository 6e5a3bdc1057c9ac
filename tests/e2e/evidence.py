"""Evidence that the end-to-end tests record: plausible counts with a known verdict."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from sglang_xver.client import CacheLayout, CompatClient, Engine, ModelVersion
from sglang_xver.identity import inspect_checkpoint

FAMILY = "niah"


def fingerprint(checkpoint: Path) -> str:
    """Return the checkpoint's content fingerprint."""
    return inspect_checkpoint(checkpoint, 2**40).fingerprint


def _divergence(mean: float) -> evidence.DivergenceSummary:
    return evidence.DivergenceSummary(
        method=evidence.DIVERGENCE_METHOD_FULL_VOCABULARY,
        num_items=200,
        positions_per_item=8,
        mean=mean,
        mean_upper_bound=mean * 1.2,
        median=mean * 0.8,
        p95=mean * 2,
        p99=mean * 3,
        max=mean * 4,
        first_position_mean=mean,
    )


def _stratum(family: str, prefix_tokens_max: int, harmful: int) -> evidence.StratumResult:
    return evidence.StratumResult(
        task_family=family,
        task=f"{family}_single@1",
        prefix_tokens_min=1,
        prefix_tokens_max=prefix_tokens_max,
        action=common.ACTION_KEEP,
        num_documents=200,
        flips=evidence.FlipCounts(num_items=200, reference_correct=180, harmful=harmful),
        floor_flips=evidence.FlipCounts(num_items=200, reference_correct=180),
        divergence=_divergence(0.002 if harmful == 0 else 1.5),
        floor_divergence=_divergence(0.001),
        reference_mismatches=0,
        stop_mismatches=0,
        synthetic=True,
    )


def record(
    client: CompatClient,
    status: dict[str, Any],
    source: Path,
    target: Path,
    *,
    prefix_tokens_max: int = 2048,
    harmful: int = 0,
    family: str = FAMILY,
) -> str:
    """Record a run for the server that ``status`` describes and return its id."""
    run = evidence.Run(
        source=ModelVersion(fingerprint=fingerprint(source), family="tiny"),
        target=ModelVersion(fingerprint=fingerprint(target), family="tiny"),
        layout=CacheLayout(**status["layout"]),
        engine=Engine(**status["engine"]),
        provenance=evidence.PROVENANCE_MEASURED,
        sample_plan=evidence.SamplePlan(
            planned_items=200, planned_looks=1, hfr_limit=0.02, confidence_level=0.95
        ),
        strata=[_stratum(family, prefix_tokens_max, harmful)],
        tool_version="test",
    )
    run.measured_at.GetCurrentTime()
    return client.record_run(run, request_id=uuid.uuid4().hex, timeout_s=10).run_id
