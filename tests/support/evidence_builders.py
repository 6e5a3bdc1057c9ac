"""Builders of evidence for tests: valid and passing unless told otherwise."""

from __future__ import annotations

from typing import Any

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

SOURCE = common.ModelVersion(label="model@1", fingerprint="sha256:aaaa", family="tiny")
TARGET = common.ModelVersion(label="model@2", fingerprint="sha256:bbbb", family="tiny")
LAYOUT = common.CacheLayout(digest="layout:1", num_layers=2, kv_dtype="bfloat16")
ENGINE = common.Engine(name="sglang", version="0.5.23", attention_backend="torch_native")


def make_flips(correct: int = 300, harmful: int = 0, beneficial: int = 0) -> evidence.FlipCounts:
    """Return counts with ten items that the reference got wrong."""
    return evidence.FlipCounts(
        num_items=correct + 10,
        reference_correct=correct,
        harmful=harmful,
        beneficial=beneficial,
    )


def make_divergence(mean: float = 0.004, **changes: Any) -> evidence.DivergenceSummary:
    """Return a summary whose bound and percentiles follow from the mean."""
    fields: dict[str, Any] = {
        "method": evidence.DIVERGENCE_METHOD_FULL_VOCABULARY,
        "num_items": 300,
        "positions_per_item": 32,
        "mean": mean,
        "mean_upper_bound": mean * 1.2,
        "median": mean * 0.8,
        "p95": mean * 3,
        "p99": mean * 5,
        "max": mean * 9,
        "first_position_mean": mean,
    }
    return evidence.DivergenceSummary(**{**fields, **changes})


def make_stratum(**changes: Any) -> evidence.StratumResult:
    """Return a stratum that passes the standard policy; a value of None leaves a field unset."""
    fields: dict[str, Any] = {
        "task_family": "niah",
        "task": "niah_single@1",
        "prefix_tokens_max": 2048,
        "prefix_tokens_min": 1900,
        "action": common.ACTION_KEEP,
        "flips": make_flips(),
        "divergence": make_divergence(),
        "floor_divergence": make_divergence(0.002),
        "reference_mismatches": 0,
    }
    return evidence.StratumResult(**{**fields, **changes})


def make_run(*strata: evidence.StratumResult, **changes: Any) -> evidence.Run:
    """Return a measured run with a completed plan."""
    fields: dict[str, Any] = {
        "source": SOURCE,
        "target": TARGET,
        "layout": LAYOUT,
        "engine": ENGINE,
        "provenance": evidence.PROVENANCE_MEASURED,
        "sample_plan": evidence.SamplePlan(
            planned_items=10, planned_looks=1, hfr_limit=0.02, confidence_level=0.95
        ),
        "strata": strata or (make_stratum(),),
    }
    return evidence.Run(**{**fields, **changes})


def make_request(
    run: evidence.Run | None = None, request_id: str = "request-1"
) -> evidence.RecordRunRequest:
    """Return a request to record ``run``."""
    return evidence.RecordRunRequest(request_id=request_id, run=run or make_run())
