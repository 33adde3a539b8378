"""Objects of others with the names of a queue's are refused; so are leftovers of `create_all`, unless equal and unused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.errors import SchemaError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from tests.fixtures.jobs import enqueue
from tests.fixtures.variants import variants
from tests.migrations.applications import PLAIN_MODELS, Application
from tests.migrations.catalogs import catalog

OTHERS = {
    "table worker": "CREATE TABLE worker (id int)",
    "table queue": "CREATE TABLE queue (name text) PARTITION BY LIST (name)",
    "materialized view threshold": "CREATE MATERIALIZED VIEW threshold AS SELECT 1 AS name",
    "view job_chain": "CREATE VIEW job_chain AS SELECT 1 AS id",
    "sequence job_event": "CREATE SEQUENCE job_event",
    "index ix_job_claim": "CREATE TABLE job_claims (id int); CREATE INDEX ix_job_claim ON job_claims (id)",
    "index pk_worker": "CREATE TABLE workers (id int CONSTRAINT pk_worker PRIMARY KEY)",
    "type job_status": "CREATE TYPE job_status AS ENUM ('new', 'done')",
    "table job_status": "CREATE TABLE job_status (id int)",
    "type schedule": "CREATE TYPE schedule AS (day text, hour int)",
    "type job_audit": "CREATE TYPE job_audit AS RANGE (subtype = float8)",
    "domain rate_state": "CREATE DOMAIN rate_state AS text",
    "function job_stamp": "CREATE FUNCTION job_stamp(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "procedure job_notify_due": "CREATE PROCEDURE job_notify_due(text) LANGUAGE sql AS 'SELECT 1'",
}
"""Objects of an application, by the words that name them in an error."""

others = pytest.mark.parametrize("other", variants(OTHERS, default=list(OTHERS)[::4]))


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def snapshot(engine: Engine) -> Any:
    with engine.connect() as connection:
        return catalog(connection)


def execute(engine: Engine, script: str) -> None:
    with engine.begin() as connection:
        for statement in script.split(";"):
            connection.execute(text(statement))


@others
def test_a_migration_is_refused_before_it_changes_anything(engine: Engine, other: str) -> None:
    execute(engine, OTHERS[other])
    before = snapshot(engine)
    refused = pytest.raises(SchemaError, match=rf"^{other}: the job queue's own objects need this name.*queue_prefix")
    with refused, engine.begin() as connection:
        runner.upgrade(connection, Layout())
    assert snapshot(engine) == before
    with engine.begin() as connection:
        assert runner.upgrade(connection, Layout(prefix="jobs_")) == 0
        assert runner.upgrade(connection, Layout("jobs")) == 0
    with engine.begin() as connection:
        runner.downgrade(connection, Layout("jobs"), to_version=0)
        runner.downgrade(connection, Layout(prefix="jobs_"), to_version=0)
    assert snapshot(engine) == before


@others
def test_create_all_is_refused_before_it_changes_anything(engine: Engine, other: str) -> None:
    execute(engine, OTHERS[other])
    before = snapshot(engine)
    with pytest.raises(SchemaError, match=r"the job queue's own objects need this name.*queue_prefix"):
        Base.metadata.create_all(engine)
    assert snapshot(engine) == before


@others
def test_alembic_refuses_to_write_the_revision(tmp_path: Path, engine: Engine, other: str) -> None:
    execute(engine, OTHERS[other])
    application = Application(tmp_path, engine, PLAIN_MODELS)
    try:
        with pytest.raises(SchemaError, match=rf"^{other}: .*queue_prefix"):
            application.autogenerate()
        assert list(application.versions.iterdir()) == []
    finally:
        application.close()


def test_all_names_in_the_way_are_listed(engine: Engine) -> None:
    for table in ("worker", "queue", "schedule", "threshold", "quarantine", "job_event"):
        execute(engine, f"CREATE TABLE {table} (id int)")
    with engine.connect() as connection, pytest.raises(SchemaError, match=r"table threshold and 1 more: .* these names"):
        runner.upgrade(connection, Layout())


def test_an_enum_type_of_the_metadata_is_refused(tmp_path: Path, engine: Engine) -> None:
    class OwnBase(DeclarativeBase):
        pass

    class Build(OwnBase):
        __tablename__ = "build"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[Any] = mapped_column(sa.ARRAY(sa.Enum("new", "done", name="job_status")))

    class OwnJob(JobMixin, OwnBase):
        pass

    before = snapshot(engine)
    with pytest.raises(SchemaError, match=r"^type job_status of column build\.status: .*queue_prefix"):
        OwnBase.metadata.create_all(engine)
    assert snapshot(engine) == before
    build = "class Build(Base):\n    __tablename__ = 'build'\n    id: Mapped[int] = mapped_column(primary_key=True)\n"
    column = "    status: Mapped[str] = mapped_column(Enum('new', 'done', name='job_status'))\n"
    imports = "from sqlalchemy import Enum\nfrom sqlalchemy.orm import Mapped, mapped_column\n"
    models = imports + PLAIN_MODELS + build + column
    application = Application(tmp_path, engine, models)
    try:
        with pytest.raises(SchemaError, match=r"^type job_status of column build\.status"):
            application.autogenerate()
    finally:
        application.close()


def test_create_all_of_other_tables_leaves_nothing_of_the_queue(engine: Engine) -> None:
    Base.metadata.create_all(engine, tables=[Order.__table__])  # type: ignore[list-item]
    with engine.connect() as connection:
        assert {str(name) for name, *_ in catalog(connection)["types"]} == {"orders", "orders[]"}
        assert runner.upgrade(connection, Layout()) == 0
        connection.commit()
    Base.metadata.create_all(engine)
    Base.metadata.drop_all(engine, tables=[Order.__table__])  # type: ignore[list-item]
    with engine.connect() as connection:
        assert runner.current_version(connection, Layout()) == 1


def test_an_enum_type_that_is_left_over_does_not_hinder(make_engine: Callable[[], Engine]) -> None:
    migrated, left_over, created = make_engine(), make_engine(), make_engine()
    types = [statement for statement in runner.statements(Layout(), from_version=0, to_version=1) if "AS ENUM" in statement]
    for engine in (left_over, created):
        execute(engine, ";".join(types))
    with migrated.begin() as connection:
        runner.upgrade(connection, Layout())
    with left_over.begin() as connection:
        runner.upgrade(connection, Layout())
    Base.metadata.create_all(created, tables=[table for table in Base.metadata.tables.values() if table.name != "orders"])
    assert snapshot(migrated) == snapshot(left_over) == snapshot(created)


def test_an_equal_enum_type_that_a_table_of_others_uses_is_refused(engine: Engine) -> None:
    statements = runner.statements(Layout(), from_version=0, to_version=1)
    status = next(statement for statement in statements if "TYPE job_status" in statement)
    execute(engine, f"{status}; CREATE TABLE build (status job_status)")
    with engine.begin() as connection, pytest.raises(SchemaError, match=r"^type job_status: "):
        runner.upgrade(connection, Layout())


def test_a_revision_over_the_tables_of_create_all_names_the_stamp(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        with pytest.raises(
            SchemaError, match=r"table job is of version 1; this migration starts at version 0.*alembic stamp"
        ):
            runner.migrate(connection, Layout(), from_version=0, to_version=1)
        assert runner.upgrade(connection, Layout()) == 1
    enqueue(engine, Job("mail"))


def test_create_all_refuses_a_table_of_others_with_the_name_of_one_of_its_tables(engine: Engine) -> None:
    """SQLAlchemy would take the table for the queue's and leave it as it is."""
    execute(engine, "CREATE TABLE worker (id text PRIMARY KEY, name text)")
    before = snapshot(engine)
    with pytest.raises(SchemaError, match=r"^table worker: .*queue_prefix"):
        Base.metadata.create_all(engine)
    assert snapshot(engine) == before
    Base.metadata.create_all(engine, tables=[Order.__table__])  # type: ignore[list-item]
