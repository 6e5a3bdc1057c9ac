"""Decisions: every answer with what it was made of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of decisions."""
    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.String(64), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source_fingerprint", sa.String(200), nullable=False),
        sa.Column("target_fingerprint", sa.String(200), nullable=False),
        sa.Column("client", sa.String(128), nullable=False),
        sa.Column("action", sa.Integer, nullable=False),
        sa.Column("confidence", sa.Integer, nullable=False),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("policy_revision", sa.String(80), nullable=False),
        sa.Column("policy_content", sa.String, nullable=False),
        sa.Column("evidence_revision", sa.BigInteger, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decisions"),
    )
    op.create_index(
        "ix_decisions_pair",
        "decisions",
        ["source_fingerprint", "target_fingerprint", "decided_at"],
    )
    op.create_index("ix_decisions_decided_at", "decisions", ["decided_at"])


def downgrade() -> None:
    """Drop the table; the audit trail is lost."""
    op.drop_table("decisions")
