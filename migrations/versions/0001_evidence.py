"""Evidence: runs and their strata."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables of the evidence and start the evidence clock at zero."""
    clock = op.create_table(
        "evidence_clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_evidence_clock"),
    )
    op.bulk_insert(clock, [{"id": 1, "revision": 0}])
    op.create_table(
        "runs",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
        sa.Column("content_sha256", sa.String(64), nullable=False),
        sa.Column("source_fingerprint", sa.String(200), nullable=False),
        sa.Column("target_fingerprint", sa.String(200), nullable=False),
        sa.Column("provenance", sa.Integer, nullable=False),
        sa.Column("layout_digest", sa.String(200), nullable=False),
        sa.Column("engine_name", sa.String(128), nullable=False),
        sa.Column("engine_release", sa.String(128), nullable=False),
        sa.Column("evidence_revision", sa.BigInteger, nullable=False),
        sa.Column("recorded_at", _TIME, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("run_id", name="uq_runs_run_id"),
        sa.UniqueConstraint("request_id", name="uq_runs_request_id"),
    )
    op.create_index(
        "ix_runs_pair",
        "runs",
        ["source_fingerprint", "target_fingerprint", "evidence_revision"],
    )
    op.create_index("ix_runs_evidence_revision", "runs", ["evidence_revision"])
    op.create_table(
        "run_strata",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("run_row_id", _ROW_NUMBER, nullable=False),
        sa.Column("task_family", sa.String(64), nullable=False),
        sa.Column("prefix_tokens_max", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run_strata"),
        sa.ForeignKeyConstraint(
            ["run_row_id"], ["runs.id"], name="fk_run_strata_run_row_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_run_strata_run_row_id", "run_strata", ["run_row_id"])


def downgrade() -> None:
    """Drop the tables; recorded evidence is lost."""
    op.drop_table("run_strata")
    op.drop_table("runs")
    op.drop_table("evidence_clock")
