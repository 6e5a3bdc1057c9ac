"""Reads and writes of evidence and decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.errors import RequestIdReusedError, RunNotFoundError, StoreUnavailableError
from compat_service.ids import engine_release, new_run_id
from compat_service.store.engine import Database
from compat_service.store.models import DecisionRow, EvidenceClock, RunRow, StratumRow

_CLOCK_ID = 1


class StoredRun(NamedTuple):
    """Outcome of storing a run."""

    run_id: str
    evidence_revision: int
    already_recorded: bool


class PairEvidence(NamedTuple):
    """All runs of one pair, and the state of the evidence they belong to."""

    evidence_revision: int
    runs: tuple[evidence.Run, ...]


class DecisionRecord(NamedTuple):
    """A decision to store."""

    decision_id: str
    decided_at: datetime
    source_fingerprint: str
    target_fingerprint: str
    client: str
    action: int
    confidence: int
    policy: str
    policy_revision: str
    policy_content: str
    evidence_revision: int
    request: bytes
    response: bytes


class Repository:
    """The queries that exist. Every method is one transaction and safe to call from any thread.

    All methods raise ``StoreUnavailableError`` when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_run(self, request_id: str, run: evidence.Run, content_sha256: str) -> StoredRun:
        """Store a run once per ``request_id``. ``run`` is not changed.

        Raises:
            RequestIdReusedError: the key was used with other content.
        """
        with self._database.writing() as session:
            known = session.scalar(select(RunRow).where(RunRow.request_id == request_id))
            if known is not None:
                _require_same_content(known, content_sha256)
                return StoredRun(known.run_id, known.evidence_revision, already_recorded=True)
            stored = evidence.Run()
            stored.CopyFrom(run)
            stored.run_id = new_run_id()
            stored.evidence_revision = _advance_clock(session)
            recorded_at = datetime.now(UTC)
            stored.recorded_at.FromDatetime(recorded_at)
            row = RunRow(
                run_id=stored.run_id,
                request_id=request_id,
                content_sha256=content_sha256,
                source_fingerprint=run.source.fingerprint,
                target_fingerprint=run.target.fingerprint,
                provenance=run.provenance,
                layout_digest=run.layout.digest,
                engine_name=run.engine.name,
                engine_release=engine_release(run.engine.version),
                evidence_revision=stored.evidence_revision,
                recorded_at=recorded_at,
                payload=stored.SerializeToString(deterministic=True),
            )
            session.add(row)
            session.flush()
            session.add_all(
                StratumRow(
                    run_row_id=row.id,
                    task_family=stratum.task_family,
                    prefix_tokens_max=stratum.prefix_tokens_max,
                )
                for stratum in stored.strata
            )
        return StoredRun(stored.run_id, stored.evidence_revision, already_recorded=False)

    def find_request(self, request_id: str, content_sha256: str) -> StoredRun | None:
        """Return what an earlier call with that key stored, or None.

        Raises:
            RequestIdReusedError: the key was used with other content.
        """
        with self._database.reading() as session:
            known = session.scalar(select(RunRow).where(RunRow.request_id == request_id))
            if known is None:
                return None
            _require_same_content(known, content_sha256)
            return StoredRun(known.run_id, known.evidence_revision, already_recorded=True)

    def get_run(self, run_id: str) -> evidence.Run:
        """Return one run.

        Raises:
            RunNotFoundError: there is none with that identifier.
        """
        with self._database.reading() as session:
            payload = session.scalar(select(RunRow.payload).where(RunRow.run_id == run_id))
        if payload is None:
            raise RunNotFoundError(
                f"run {run_id[:80]!r} is not recorded here; RecordRun returns the identifiers",
                run_id=run_id[:80],
            )
        return evidence.Run.FromString(payload)

    def evidence_revision(self) -> int:
        """Return the number of changes of the evidence so far."""
        with self._database.reading() as session:
            return _read_clock(session)

    def pair_evidence(self, source_fingerprint: str, target_fingerprint: str) -> PairEvidence:
        """Return all runs of exactly this pair, oldest first, from one snapshot."""
        query = (
            select(RunRow.payload)
            .where(
                RunRow.source_fingerprint == source_fingerprint,
                RunRow.target_fingerprint == target_fingerprint,
            )
            .order_by(RunRow.evidence_revision)
        )
        with self._database.reading() as session:
            revision = _read_clock(session)
            payloads = session.scalars(query).all()
        return PairEvidence(revision, tuple(evidence.Run.FromString(p) for p in payloads))

    def store_decision(self, record: DecisionRecord) -> None:
        """Store a decision; when this returns, it is on disk."""
        with self._database.writing() as session:
            session.add(DecisionRow(**record._asdict()))


def _require_same_content(known: RunRow, content_sha256: str) -> None:
    if known.content_sha256 != content_sha256:
        raise RequestIdReusedError(
            f"request_id {known.request_id!r} already stored {known.run_id} with other content; "
            "use a new request_id for a new run",
            request_id=known.request_id,
            run_id=known.run_id,
        )


def _read_clock(session: Session) -> int:
    revision = session.scalar(select(EvidenceClock.revision).where(EvidenceClock.id == _CLOCK_ID))
    return _clock_value(revision)


def _advance_clock(session: Session) -> int:
    statement = (
        update(EvidenceClock)
        .where(EvidenceClock.id == _CLOCK_ID)
        .values(revision=EvidenceClock.revision + 1)
        .returning(EvidenceClock.revision)
    )
    return _clock_value(session.scalar(statement))


def _clock_value(revision: int | None) -> int:
    if revision is None:
        raise StoreUnavailableError(
            "the evidence clock is missing from the database; restore a backup"
        )
    return revision
