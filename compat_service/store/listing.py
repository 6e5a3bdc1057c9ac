"""Listing of the pairs that have evidence."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.store.engine import Database
from compat_service.store.models import RunRow, StratumRow


class ConditionsSummary(NamedTuple):
    """Measured runs of a pair under equal conditions."""

    newest_run: evidence.Run
    num_runs: int


class PairSummary(NamedTuple):
    """A pair with evidence."""

    newest_revision: int
    """Revision of its newest run; the order and the cursor of the listing."""
    newest_run: evidence.Run
    num_runs: int
    task_families: tuple[str, ...]
    prefix_tokens_max: int
    conditions: tuple[ConditionsSummary, ...]
    """Newest first."""


def list_pairs(
    database: Database,
    *,
    limit: int,
    before_revision: int | None = None,
    source_fingerprint: str = "",
    target_fingerprint: str = "",
) -> list[PairSummary]:
    """Return pairs, newest evidence first, starting below ``before_revision``.

    Raises:
        StoreUnavailableError: the database failed.
    """
    newest = func.max(RunRow.evidence_revision)
    query = (
        select(RunRow.source_fingerprint, RunRow.target_fingerprint, newest, func.count())
        .group_by(RunRow.source_fingerprint, RunRow.target_fingerprint)
        .order_by(newest.desc())
        .limit(limit)
    )
    if source_fingerprint:
        query = query.where(RunRow.source_fingerprint == source_fingerprint)
    if target_fingerprint:
        query = query.where(RunRow.target_fingerprint == target_fingerprint)
    if before_revision is not None:
        query = query.having(newest < before_revision)
    with database.reading() as session:
        return [
            _summarize(session, source, target, revision, num_runs)
            for source, target, revision, num_runs in session.execute(query).all()
        ]


def _summarize(
    session: Session, source: str, target: str, newest_revision: int, num_runs: int
) -> PairSummary:
    strata = (
        select(StratumRow.task_family, func.max(StratumRow.prefix_tokens_max))
        .join(RunRow, RunRow.id == StratumRow.run_row_id)
        .where(RunRow.source_fingerprint == source, RunRow.target_fingerprint == target)
        .group_by(StratumRow.task_family)
        .order_by(StratumRow.task_family)
    )
    depths = [(family, depth) for family, depth in session.execute(strata)]
    return PairSummary(
        newest_revision=newest_revision,
        newest_run=_run_at(session, newest_revision),
        num_runs=num_runs,
        task_families=tuple(family for family, _ in depths),
        prefix_tokens_max=max((depth for _, depth in depths), default=0),
        conditions=_conditions(session, source, target),
    )


def _conditions(session: Session, source: str, target: str) -> tuple[ConditionsSummary, ...]:
    newest = func.max(RunRow.evidence_revision)
    query = (
        select(newest, func.count())
        .where(
            RunRow.source_fingerprint == source,
            RunRow.target_fingerprint == target,
            RunRow.provenance == evidence.PROVENANCE_MEASURED,
        )
        .group_by(RunRow.layout_digest, RunRow.engine_name, RunRow.engine_release)
        .order_by(newest.desc())
    )
    return tuple(
        ConditionsSummary(_run_at(session, revision), num_runs)
        for revision, num_runs in session.execute(query).all()
    )


def _run_at(session: Session, evidence_revision: int) -> evidence.Run:
    query = select(RunRow.payload).where(RunRow.evidence_revision == evidence_revision)
    return evidence.Run.FromString(session.scalars(query).one())
