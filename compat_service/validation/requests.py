"""Checks of whole requests. Each raises one error that names all violations."""

from __future__ import annotations

from collections.abc import Hashable

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.validation.common import (
    check_engine,
    check_layout,
    check_version,
    require_conditions,
)
from compat_service.validation.fields import (
    MAX_COUNT,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    Violations,
    shown,
)
from compat_service.validation.strata import check_stratum
from compat_service.verdict.compat import is_unknown

MAX_STRATA = 1000
MAX_FAMILIES = 64
MAX_PAGE_SIZE = 500
MAX_TOKEN_CHARS = 512
MAX_LOOKS = 3


def validate_record_run(request: evidence.RecordRunRequest) -> None:
    """Check a run before it becomes evidence.

    Raises:
        InvalidRequestError: with one violation per bad field.
    """
    found = Violations()
    if found.require(
        "request_id", request.request_id, "give a unique idempotency key, for example a UUID"
    ):
        found.text("request_id", request.request_id, MAX_ID_CHARS)
    if not request.HasField("run"):
        found.add("run", "REQUIRED", "is unset; give the run to record")
        found.raise_if_any()
    _check_run(found, "run", request.run)
    found.raise_if_any()


def validate_check(request: compat.CheckCompatRequest) -> None:
    """Check a question. An unknown fingerprint is no violation: its answer is EVICT.

    Raises:
        InvalidRequestError: with one violation per bad field.
    """
    found = Violations()
    check_version(found, "source", request.source)
    check_version(found, "target", request.target)
    check_layout(found, "source_layout", request.source_layout)
    check_engine(found, "engine", request.engine)
    require_conditions(found, "source_layout", request.source_layout, "engine", request.engine)
    if request.HasField("target_layout"):
        check_layout(found, "target_layout", request.target_layout)
        found.require(
            "target_layout.digest",
            request.target_layout.digest,
            "give the digest, or leave target_layout unset when it equals source_layout",
        )
    if found.list_size("task_families", request.task_families, MAX_FAMILIES):
        for index, family in enumerate(request.task_families):
            found.family(f"task_families[{index}]", family)
    found.text("policy", request.policy, MAX_NAME_CHARS)
    found.text("client", request.client, MAX_NAME_CHARS)
    found.raise_if_any()


def validate_get_run(request: evidence.GetRunRequest) -> None:
    """Check the identifier of a run.

    Raises:
        InvalidRequestError: it is empty or malformed.
    """
    found = Violations()
    if found.require("run_id", request.run_id, "give the run_id that RecordRun returned"):
        found.text("run_id", request.run_id, MAX_ID_CHARS)
    found.raise_if_any()


def validate_list_pairs(request: evidence.ListPairsRequest) -> None:
    """Check page size, token length and filters.

    Raises:
        InvalidRequestError: with one violation per bad field.
    """
    found = Violations()
    found.count("page_size", request.page_size, 0, MAX_PAGE_SIZE, "0 takes the default of 50")
    found.text("page_token", request.page_token, MAX_TOKEN_CHARS)
    for name in ("source_fingerprint", "target_fingerprint"):
        value = getattr(request, name)
        if value:
            found.fingerprint(name, value)
    found.raise_if_any()


def _check_run(found: Violations, path: str, run: evidence.Run) -> None:
    _check_assigned_fields(found, path, run)
    for name in ("source", "target"):
        version = getattr(run, name)
        check_version(found, f"{path}.{name}", version)
        if is_unknown(version.fingerprint):
            found.add(
                f"{path}.{name}.fingerprint",
                "REQUIRED",
                f"{shown(version.fingerprint)} identifies nothing; evidence needs the content "
                "fingerprint of the weights",
            )
    check_layout(found, f"{path}.layout", run.layout)
    check_engine(found, f"{path}.engine", run.engine)
    if run.provenance == evidence.PROVENANCE_MEASURED:
        require_conditions(found, f"{path}.layout", run.layout, f"{path}.engine", run.engine)
    elif run.provenance != evidence.PROVENANCE_PUBLISHED:
        found.add(
            f"{path}.provenance",
            "BAD_VALUE",
            f"{run.provenance} does not say where the figures come from; give "
            "PROVENANCE_MEASURED or PROVENANCE_PUBLISHED",
        )
    if run.HasField("sample_plan"):
        _check_plan(found, f"{path}.sample_plan", run.sample_plan)
    found.text(f"{path}.tool_version", run.tool_version, MAX_NAME_CHARS)
    found.text(f"{path}.note", run.note, MAX_NOTE_CHARS, multiline=True)
    if run.HasField("measured_at"):
        _check_measured_at(found, f"{path}.measured_at", run)
    _check_strata(found, f"{path}.strata", run)


def _check_assigned_fields(found: Violations, path: str, run: evidence.Run) -> None:
    assigned = {
        "run_id": bool(run.run_id),
        "recorded_at": run.HasField("recorded_at"),
        "evidence_revision": run.evidence_revision != 0,
    }
    for name, is_set in assigned.items():
        if is_set:
            found.add(f"{path}.{name}", "BAD_VALUE", "is assigned by the service; leave it unset")


def _check_plan(found: Violations, path: str, plan: evidence.SamplePlan) -> None:
    found.count(
        f"{path}.planned_items", plan.planned_items, 1, MAX_COUNT, "plan the items beforehand"
    )
    found.count(
        f"{path}.planned_looks",
        plan.planned_looks,
        1,
        MAX_LOOKS,
        "plan one look, or at most three with alpha spending",
    )
    found.open_share(f"{path}.hfr_limit", plan.hfr_limit)
    found.open_share(f"{path}.confidence_level", plan.confidence_level)


def _check_measured_at(found: Violations, path: str, run: evidence.Run) -> None:
    try:
        run.measured_at.ToDatetime()
    except (ValueError, OverflowError) as error:
        found.add(path, "OUT_OF_RANGE", f"is not a valid time ({error})")


def _check_strata(found: Violations, path: str, run: evidence.Run) -> None:
    if not run.strata:
        found.add(path, "REQUIRED", "is empty; a run needs at least one stratum")
        return
    if not found.list_size(path, run.strata, MAX_STRATA):
        return
    seen: dict[Hashable, int] = {}
    for index, stratum in enumerate(run.strata):
        check_stratum(found, f"{path}[{index}]", stratum)
        first = seen.setdefault(_stratum_key(stratum), index)
        if first != index:
            found.add(
                f"{path}[{index}]",
                "DUPLICATE",
                f"repeats family, task, prefix length and action of strata[{first}]; give each "
                "stratum once",
            )


def _stratum_key(stratum: evidence.StratumResult) -> tuple[str, str, int, common.Action, str]:
    return (
        stratum.task_family,
        stratum.task,
        stratum.prefix_tokens_max,
        stratum.action,
        stratum.mapper.sha256,
    )
