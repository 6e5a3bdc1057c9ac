"""Tables. Messages are stored whole; the columns beside them are what queries need."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

# SQLite assigns row numbers to INTEGER primary keys only.
RowNumber = BigInteger().with_variant(Integer, "sqlite")
_NAMES = {
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC times, on SQLite too, which drops the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to UTC before storing."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Restore the zone after loading."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Root of all tables."""

    metadata = MetaData(naming_convention=_NAMES)


class EvidenceClock(Base):
    """One row that counts changes of the evidence; decisions name the count they saw."""

    __tablename__ = "evidence_clock"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    revision: Mapped[int] = mapped_column(BigInteger)


class RunRow(Base):
    """A recorded run. Never changed and never deleted by the API."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_pair", "source_fingerprint", "target_fingerprint", "evidence_revision"),
        Index("ix_runs_evidence_revision", "evidence_revision"),
    )

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True)
    run_id: Mapped[str] = mapped_column(String(64), unique=True)
    request_id: Mapped[str] = mapped_column(String(200), unique=True)
    content_sha256: Mapped[str] = mapped_column(String(64))
    """Digest of the request, to tell a retry from a reused key."""
    source_fingerprint: Mapped[str] = mapped_column(String(200))
    target_fingerprint: Mapped[str] = mapped_column(String(200))
    provenance: Mapped[int] = mapped_column(Integer)
    """Number of ``xver.compat.v1.Provenance``."""
    layout_digest: Mapped[str] = mapped_column(String(200))
    engine_name: Mapped[str] = mapped_column(String(128))
    engine_release: Mapped[str] = mapped_column(String(128))
    """The major.minor part of the engine's version."""
    evidence_revision: Mapped[int] = mapped_column(BigInteger)
    """Value of the clock after this run."""
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime)
    payload: Mapped[bytes] = mapped_column(LargeBinary)
    """Serialized ``xver.compat.v1.Run``: the truth; all other columns repeat parts of it."""


class StratumRow(Base):
    """Which strata a run holds, for listings."""

    __tablename__ = "run_strata"
    __table_args__ = (Index("ix_run_strata_run_row_id", "run_row_id"),)

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True)
    run_row_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    task_family: Mapped[str] = mapped_column(String(64))
    prefix_tokens_max: Mapped[int] = mapped_column(Integer)


class DecisionRow(Base):
    """An answer of CheckCompat with all that it was made of."""

    __tablename__ = "decisions"
    __table_args__ = (
        Index("ix_decisions_pair", "source_fingerprint", "target_fingerprint", "decided_at"),
        Index("ix_decisions_decided_at", "decided_at"),
    )

    decision_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    decided_at: Mapped[datetime] = mapped_column(UtcDateTime)
    source_fingerprint: Mapped[str] = mapped_column(String(200))
    target_fingerprint: Mapped[str] = mapped_column(String(200))
    client: Mapped[str] = mapped_column(String(128))
    action: Mapped[int] = mapped_column(Integer)
    """Number of ``xver.compat.v1.Action``."""
    confidence: Mapped[int] = mapped_column(Integer)
    """Number of ``xver.compat.v1.Confidence``."""
    policy: Mapped[str] = mapped_column(String(64))
    policy_revision: Mapped[str] = mapped_column(String(80))
    policy_content: Mapped[str] = mapped_column(String)
    """The policy as JSON, so that the decision can be repeated when the policy is gone."""
    evidence_revision: Mapped[int] = mapped_column(BigInteger)
    request: Mapped[bytes] = mapped_column(LargeBinary)
    """Serialized ``CheckCompatRequest``."""
    response: Mapped[bytes] = mapped_column(LargeBinary)
    """Serialized ``CheckCompatResponse``; its reasons name the runs that were judged."""
