"""``xver-compat db``: the schema of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from compat_service.cli.output import ERROR_EXIT, console
from compat_service.config import load_settings
from compat_service.store.engine import Database, open_database
from compat_service.store.schema import SchemaState, schema_status, upgrade

app = typer.Typer(help="Inspect and upgrade the database schema.", no_args_is_help=True)
DatabaseOption = Annotated[
    str | None,
    typer.Option("--db", help="SQLAlchemy URL; default: a SQLite file in the data folder."),
]


@app.command("upgrade")
def upgrade_command(db: DatabaseOption = None) -> None:
    """Bring the schema to the newest revision; repeating it changes nothing."""
    with _opened(db) as database:
        before = upgrade(database)
        if before.state is SchemaState.CURRENT:
            line = f"{database.display_url} is at {before.head} already"
        else:
            line = f"{database.display_url}: upgraded from {before.current or 'empty'} "
            line += f"to {before.head}"
        console().print(line, markup=False)


@app.command("current")
def current_command(db: DatabaseOption = None) -> None:
    """Print the schema revision; exit status 1 when this version cannot serve it."""
    with _opened(db) as database:
        status = schema_status(database)
        console().print(
            f"{database.display_url}: revision {status.current or 'none'}, "
            f"needed {status.head} ({status.state.value})",
            markup=False,
        )
    if status.state is not SchemaState.CURRENT:
        raise typer.Exit(ERROR_EXIT)


@contextmanager
def _opened(url: str | None) -> Iterator[Database]:
    settings = load_settings({"database_url": url})
    database = open_database(settings.database_url, busy_timeout_ms=settings.busy_timeout_ms)
    try:
        yield database
    finally:
        database.close()
