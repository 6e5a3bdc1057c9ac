"""Migrations: the revisions build exactly the tables that the code declares."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from evidence_builders import make_run
from sqlalchemy import inspect, text

from compat_service.store import Repository, open_database
from compat_service.store.models import Base
from compat_service.store.schema import (
    CONNECTION_ATTRIBUTE,
    SchemaState,
    alembic_config,
    schema_status,
    upgrade,
)


@pytest.fixture
def empty(database_url):
    database = open_database(database_url)
    yield database
    database.close()


class TestUpgrade:
    def test_builds_the_declared_tables(self, empty):
        assert schema_status(empty).state is SchemaState.EMPTY
        upgrade(empty)
        assert schema_status(empty).state is SchemaState.CURRENT
        with empty.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []

    def test_names_of_keys_and_indices_match_too(self, empty):
        upgrade(empty)
        inspector = inspect(empty.engine)
        for table in Base.metadata.sorted_tables:
            assert inspector.get_pk_constraint(table.name)["name"] == table.primary_key.name
            found = {index["name"] for index in inspector.get_indexes(table.name)}
            assert {index.name for index in table.indexes} <= found

    def test_can_be_repeated(self, empty):
        upgrade(empty)
        assert upgrade(empty).state is SchemaState.CURRENT

    def test_evidence_survives_a_later_revision(self, empty):
        upgrade(empty, "0001")
        repository = Repository(empty)
        stored = repository.record_run("request", make_run(), "digest")
        upgrade(empty)
        assert repository.get_run(stored.run_id).run_id == stored.run_id

    def test_every_step_can_be_undone(self, empty):
        upgrade(empty)
        config = alembic_config()
        with empty.writing() as session:
            config.attributes[CONNECTION_ATTRIBUTE] = session.connection()
            command.downgrade(config, "base")
        assert inspect(empty.engine).get_table_names() == ["alembic_version"]

    def test_a_failing_step_changes_nothing(self, empty, monkeypatch):
        upgrade(empty, "0001")

        def fail(*_args, **_kwargs):
            raise RuntimeError("stopped in the middle")

        monkeypatch.setattr("alembic.op.create_index", fail)
        with pytest.raises(RuntimeError, match="stopped"):
            upgrade(empty)
        assert schema_status(empty).current == "0001"
        assert "decisions" not in inspect(empty.engine).get_table_names()


class TestConnection:
    def test_sqlite_runs_with_the_settings_that_the_store_relies_on(self, database):
        with database.engine.connect() as connection:
            pragma = {
                name: connection.execute(text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
            }
        assert pragma == {
            "journal_mode": "wal",
            "foreign_keys": 1,
            "synchronous": 2,
            "busy_timeout": 5000,
        }

    def test_a_reader_sees_one_state_while_a_writer_commits(self, database):
        repository = Repository(database)
        with database.reading() as session:
            before = session.execute(text("SELECT count(*) FROM runs")).scalar()
            repository.record_run("request", make_run(), "digest")
            assert session.execute(text("SELECT count(*) FROM runs")).scalar() == before == 0
