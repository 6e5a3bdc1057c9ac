"""Schema of the database: which revision it has, which one is needed, and how to get there."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

import compat_service
from compat_service.errors import SchemaError, StoreUnavailableError
from compat_service.store.engine import Database

CONNECTION_ATTRIBUTE = "connection"


class SchemaState(Enum):
    """How a database relates to this version."""

    EMPTY = "empty"
    """No table at all: a new database."""
    BEHIND = "behind"
    CURRENT = "current"
    AHEAD = "ahead"
    """Its revision is unknown here: a newer version wrote it."""
    FOREIGN = "foreign"
    """It holds tables, but not ours."""


class SchemaStatus(NamedTuple):
    """State with the revisions behind it."""

    state: SchemaState
    current: str | None
    head: str


def migrations_folder() -> Path:
    """Return the folder of the revisions: inside an installed wheel, else beside the package.

    Raises:
        SchemaError: neither exists; the installation is broken.
    """
    package = Path(compat_service.__file__).resolve().parent
    candidates = (package / "migrations", package.parent / "migrations")
    for folder in candidates:
        if (folder / "env.py").is_file() and (folder / "versions").is_dir():
            return folder
    looked = " and ".join(str(folder) for folder in candidates)
    raise SchemaError(f"no migrations in {looked}; install the package again")


def schema_status(database: Database) -> SchemaStatus:
    """Compare the database with the revisions of this version.

    Raises:
        StoreUnavailableError: the database cannot be read.
    """
    scripts = ScriptDirectory.from_config(alembic_config())
    head = scripts.get_current_head()
    if head is None:
        raise SchemaError(f"no revision in {migrations_folder()}; install the package again")
    try:
        with database.engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            current = MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        raise StoreUnavailableError(
            f"the database {database.display_url} cannot be read ({error.orig}); check the URL "
            "and that it is a database file"
        ) from error
    return SchemaStatus(_state(scripts, tables, current, head), current, head)


def upgrade(database: Database, revision: str = "head") -> SchemaStatus:
    """Bring the schema up to ``revision``, in one transaction; returns the status before.

    Raises:
        SchemaError: the database is ahead of this version or not ours.
        StoreUnavailableError: the database failed; it is unchanged.
    """
    before = schema_status(database)
    if before.state in (SchemaState.AHEAD, SchemaState.FOREIGN):
        raise SchemaError(_refusal(before, database.display_url))
    config = alembic_config()
    with database.writing() as session:
        config.attributes[CONNECTION_ATTRIBUTE] = session.connection()
        command.upgrade(config, revision)
    return before


def require_current(database: Database) -> SchemaStatus:
    """Return the status of a database that this version can serve.

    Raises:
        SchemaError: it cannot; the message holds the command to run.
    """
    status = schema_status(database)
    if status.state is not SchemaState.CURRENT:
        raise SchemaError(_refusal(status, database.display_url))
    return status


def _state(
    scripts: ScriptDirectory, tables: list[str], current: str | None, head: str
) -> SchemaState:
    if current == head:
        return SchemaState.CURRENT
    if current is None:
        return SchemaState.EMPTY if set(tables) <= {"alembic_version"} else SchemaState.FOREIGN
    try:
        scripts.get_revision(current)
    except CommandError:
        return SchemaState.AHEAD
    return SchemaState.BEHIND


def _refusal(status: SchemaStatus, url: str) -> str:
    if status.state is SchemaState.FOREIGN:
        return (
            f"{url} holds tables but no schema revision of this project; name another database, "
            "or restore a backup"
        )
    if status.state is SchemaState.AHEAD:
        return (
            f"{url} has schema revision {status.current}, which this version does not know (its "
            f"newest is {status.head}); a newer version wrote it: upgrade the package or restore "
            "a backup"
        )
    found = status.current or "none"
    return (
        f"{url} has schema revision {found}, this version needs {status.head}; stop the servers "
        f"that use it and run: xver-compat db upgrade --db {url}"
    )


def alembic_config() -> Config:
    """Return the Alembic configuration of this installation; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config
