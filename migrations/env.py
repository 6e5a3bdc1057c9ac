"""Alembic environment: runs the revisions on the connection that ``xver-compat db`` hands over."""

from __future__ import annotations

from alembic import context

from compat_service.store.models import Base


def run() -> None:
    """Run the revisions inside the caller's transaction."""
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise SystemExit("start migrations with: xver-compat db upgrade")
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        # SQLite changes tables by copying them.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    context.run_migrations()


run()
