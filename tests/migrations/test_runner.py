"""Walking versions: starts, refusals, and two at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, cast

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import ddl
from sa_jobqueue.errors import InvalidOptionError, SchemaError, SchemaMissingError, SchemaTooNewError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from tests.fixtures.holders import until_locks_are_waited_for
from tests.migrations.catalogs import catalog

JOBS = Layout("jobs", "mail_")


def test_migration_statements_run_in_order_up_and_down(next_version: int) -> None:
    names = {"schema": "jobs", "prefix": "mail_", "id_type": "uuid"}
    up = [step.upgrade(**names) for step in ddl.UNITS["queue"]]
    down = [step.downgrade(**names) for step in ddl.UNITS["queue"]]
    assert len(up) == next_version == 2
    assert runner.statements(JOBS, from_version=0, to_version=2) == [*up[0], *up[1]]
    assert runner.statements(JOBS, from_version=1, to_version=2) == up[1]
    assert runner.statements(JOBS, from_version=2, to_version=0) == [*down[1], *down[0]]
    assert runner.statements(JOBS, from_version=2, to_version=1) == down[1]
    assert runner.statements(JOBS, from_version=2, to_version=2) == []


def test_unknown_schema_versions_are_refused() -> None:
    beyond = ddl.LATEST + 1
    for first, last in ((0, beyond), (beyond, 0)):
        with pytest.raises(SchemaTooNewError, match=rf"version {beyond}, this library knows up to {ddl.LATEST}"):
            runner.statements(Layout(), from_version=first, to_version=last)
    with pytest.raises(InvalidOptionError, match="to_version"):
        runner.statements(Layout(), from_version=1, to_version=-1)
    with pytest.raises(InvalidOptionError, match="unit: must be 'queue' or 'pipeline', got 'spark'"):
        runner.statements(Layout(), from_version=0, to_version=1, unit=cast("Any", "spark"))


@pytest.mark.slow
def test_upgrade_is_idempotent(engine: Engine) -> None:
    for version in (0, ddl.LATEST, ddl.LATEST):
        with engine.begin() as connection:
            assert runner.upgrade(connection) == version
    with engine.begin() as connection:
        assert runner.current_version(connection, Layout()) == ddl.LATEST
        assert runner.upgrade(connection, JOBS) == 0  # another queue beside it


def test_a_rolled_back_migration_changes_nothing(engine: Engine) -> None:
    with engine.connect() as connection:
        before = catalog(connection)
        runner.upgrade(connection, JOBS)
        assert catalog(connection) != before
        connection.rollback()
        assert catalog(connection) == before


def test_a_database_newer_than_the_library_is_left_unchanged(engine: Engine) -> None:
    with engine.begin() as connection:
        runner.upgrade(connection)
        connection.execute(text("COMMENT ON TABLE job IS 'sa_jobqueue version=99'"))
    with engine.connect() as connection:
        assert runner.current_version(connection, Layout()) == 99
        with pytest.raises(SchemaTooNewError, match="table job is of version 99, this library knows up to"):
            runner.upgrade(connection)
        with pytest.raises(SchemaTooNewError):
            runner.downgrade(connection, to_version=0)


def test_a_foreign_table_named_job_raises_schema_error(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE job (id int)"))
        with pytest.raises(SchemaError, match=r"table job exists, .* queue_prefix=.* COMMENT ON TABLE job IS") as raised:
            runner.upgrade(connection)
    assert type(raised.value) is SchemaError


def test_a_migration_starts_only_at_its_from_version(engine: Engine, next_version: int) -> None:
    with engine.begin() as connection:
        with pytest.raises(SchemaMissingError, match="table job is not there; this migration starts at version 1"):
            runner.migrate(connection, Layout(), from_version=1, to_version=next_version)
        runner.upgrade(connection, to_version=1)
        with pytest.raises(SchemaError, match="table job is of version 1; this migration starts at version 0"):
            runner.migrate(connection, Layout(), from_version=0, to_version=next_version)


def test_of_two_concurrent_upgrades_one_migrates(engine: Engine) -> None:
    versions: list[int] = []

    def start(entered: threading.Event) -> None:
        with engine.begin() as connection:
            entered.set()
            versions.append(runner.upgrade(connection, JOBS))

    with engine.begin() as winner:
        assert runner.upgrade(winner, JOBS) == 0
        entered = threading.Event()
        loser = threading.Thread(target=start, args=(entered,))
        loser.start()
        assert entered.wait(60)
        until_locks_are_waited_for(engine)
    loser.join(60)
    assert versions == [ddl.LATEST]


def test_a_role_without_create_schema_rights_can_use_an_existing_schema(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("CREATE SCHEMA jobs"))
        connection.execute(text("CREATE ROLE migrator_without_rights"))
        connection.execute(text("GRANT USAGE, CREATE ON SCHEMA jobs TO migrator_without_rights"))
        connection.execute(text("SET LOCAL ROLE migrator_without_rights"))
        assert runner.upgrade(connection, JOBS) == 0
        assert runner.downgrade(connection, JOBS, to_version=0) == ddl.LATEST
        assert connection.scalar(text("SELECT to_regnamespace('jobs') IS NOT NULL"))  # not his to drop
        connection.rollback()


def test_a_schema_is_dropped_only_when_it_is_empty(engine: Engine) -> None:
    with engine.begin() as connection:
        runner.upgrade(connection, JOBS)
        connection.execute(text("CREATE TABLE jobs.other (id int)"))
        runner.downgrade(connection, JOBS, to_version=0)
        connection.execute(text("INSERT INTO jobs.other VALUES (1)"))


@pytest.mark.slow
def test_models_and_runner_need_no_alembic() -> None:
    code = "import sys, sa_jobqueue.models, sa_jobqueue.migrations.runner; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
