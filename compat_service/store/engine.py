"""Database connections with the transaction rules that concurrent writers need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from compat_service.errors import ConfigError, StoreUnavailableError

_BEGIN_OPTION = "xver_sqlite_begin"
_DRIVERS = ("sqlite", "postgresql")


class Database:
    """Sessions for readers and writers of one database.

    On SQLite a writer takes the write lock at once (BEGIN IMMEDIATE): a transaction that reads
    first and writes later would fail as soon as another writer came between.
    """

    def __init__(self, engine: Engine, busy_timeout_ms: int) -> None:
        self.engine = engine
        self._writer_engine = engine.execution_options(**{_BEGIN_OPTION: "IMMEDIATE"})
        self._busy_timeout_s = busy_timeout_ms / 1000
        # SQLite's own waiting polls with growing pauses and starves some of many threads; a lock
        # in front serves them one after the other. Other processes still meet the busy timeout.
        self._writer_lock = threading.Lock() if self.is_sqlite else None

    @property
    def is_sqlite(self) -> bool:
        """True for a SQLite file."""
        return self.engine.dialect.name == "sqlite"

    @property
    def display_url(self) -> str:
        """URL for messages: without a password."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session with one consistent snapshot; it is rolled back.

        Raises:
            StoreUnavailableError: the database failed.
        """
        with _as_unavailable("read"), Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Yield a session that commits on success and rolls back on any exception.

        Raises:
            StoreUnavailableError: the database failed or stayed locked; nothing was stored.
        """
        with (
            self._turn(),
            _as_unavailable("written"),
            Session(self._writer_engine) as session,
            session.begin(),
        ):
            yield session

    def close(self) -> None:
        """Close all idle connections."""
        self.engine.dispose()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._writer_lock is None:
            yield
            return
        if not self._writer_lock.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailableError(
                f"the database stayed busy for {self._busy_timeout_s:g} s; nothing was stored, "
                "try again"
            )
        try:
            yield
        finally:
            self._writer_lock.release()


def open_database(url: str, *, busy_timeout_ms: int = 5000, pool_size: int = 16) -> Database:
    """Open a database; a missing SQLite file and its folder are created empty.

    Raises:
        ConfigError: the URL is malformed, in memory, or of a kind that is not supported.
    """
    parsed = _parse_url(url)
    options: dict[str, object] = {"pool_size": pool_size, "pool_pre_ping": False}
    if parsed.get_backend_name() == "sqlite":
        _prepare_folder(parsed)
        options["connect_args"] = {
            "timeout": busy_timeout_ms / 1000,
            "check_same_thread": False,
        }
    else:
        options["pool_pre_ping"] = True
    try:
        engine = create_engine(parsed, **options)
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigError(
            f"no driver for {parsed.render_as_string(hide_password=True)} ({error}); "
            "PostgreSQL needs the extra 'sglang-xver[postgres]'"
        ) from error
    if engine.dialect.name == "sqlite":
        _install_sqlite_rules(engine)
    return Database(engine, busy_timeout_ms)


def _parse_url(url: str) -> URL:
    example = "sqlite:////var/lib/xver/compat.sqlite3"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        # The URL may hold a password, so it is not repeated.
        raise ConfigError(f"the database URL is malformed; write it like {example}") from error
    kind = parsed.get_backend_name()
    if kind not in _DRIVERS:
        raise ConfigError(f"database kind {kind!r} is not supported; use sqlite or postgresql")
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(f"evidence must outlive the process; name a file, like {example}")
    return parsed


def _prepare_folder(url: URL) -> None:
    folder = Path(url.database or "").parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create the database folder {folder}: {error}") from error


def _install_sqlite_rules(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver's own BEGIN comes too late and is never IMMEDIATE; "begin" below replaces it.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        kind = connection.get_execution_options().get(_BEGIN_OPTION, "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {kind}")


@contextmanager
def _as_unavailable(verb: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise StoreUnavailableError(
            f"the database could not be {verb} ({error.orig}); nothing was stored, try again"
        ) from error
    except SQLAlchemyError as error:
        raise StoreUnavailableError(
            f"the database could not be {verb} ({error}); nothing was stored, try again"
        ) from error
