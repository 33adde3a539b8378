"""Tables that another build of the same version made: recognised everywhere, and replaced as `UPGRADING.md` describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import Job, JobMixin, ddl
from sa_jobqueue.errors import SchemaBuildError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.models.base import verbatim
from tests.contracts.packages import ROOT
from tests.migrations.applications import PLAIN_MODELS, Application
from tests.migrations.catalogs import catalog
from tests.migrations.conftest import one_server

ANOTHER = r"table job was made by another build of version 1 \(not recorded; this library's is \w{8}\)"


@pytest.fixture
def old_engine(engine: Engine) -> Engine:
    """Give an engine on the tables of an older build: without a number, a table and a column, and with another function."""
    with engine.begin() as connection:
        runner.upgrade(connection, Layout())
        for statement in (
            "DROP TABLE threshold",
            "ALTER TABLE job_type DROP COLUMN queue",
            "DROP FUNCTION job_notify_due(text)",
            "CREATE FUNCTION job_notify_due(queue_key int) RETURNS void LANGUAGE sql AS ''",
            "COMMENT ON TABLE job IS 'sa_jobqueue version=1'",
            "INSERT INTO job (id, chain_id, queue, type_name, chain_type_name, priority, input, input_version, max_attempts)"
            " SELECT id, id, 'mail', 'send', 'send', 0, '{\"to\": \"ann\"}', 1, 20 FROM (SELECT gen_random_uuid() AS id) a",
        ):
            connection.execute(verbatim(statement))
    return engine


@one_server
def test_migrations_compare_the_build(old_engine: Engine) -> None:
    with old_engine.connect() as connection:
        before = catalog(connection)
        for migrate in (
            lambda: runner.upgrade(connection, Layout()),
            lambda: runner.migrate(connection, Layout(), from_version=0, to_version=1),
            lambda: runner.known_version(connection, Layout()),
        ):
            with pytest.raises(SchemaBuildError, match=ANOTHER):
                migrate()
        assert runner.current_version(connection, Layout()) == 1
        assert catalog(connection) == before


@one_server
def test_alembic_proposes_nothing_for_another_build(tmp_path: Path, old_engine: Engine) -> None:
    application = Application(tmp_path, old_engine, PLAIN_MODELS)
    try:
        for run in (application.check, application.autogenerate):
            with pytest.raises(SchemaBuildError, match=ANOTHER):
                run()
        assert list(application.versions.iterdir()) == []
    finally:
        application.close()


@one_server
def test_create_all_refuses_to_complete_the_tables_of_another_build(old_engine: Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class OwnJob(JobMixin, Base):
        pass

    with pytest.raises(SchemaBuildError, match=ANOTHER):
        Base.metadata.create_all(old_engine)


def test_the_steps_of_the_manual_keep_the_waiting_jobs(old_engine: Engine, make_engine: Callable[[], Engine]) -> None:
    page = (ROOT / "UPGRADING.md").read_text()
    section = page[page.index("## From a development build") :].partition("\n## ")[0]
    save, restore = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    with old_engine.begin() as connection:
        for statement in save.split(";\n"):
            if statement.strip():
                connection.execute(verbatim(statement))
    with old_engine.begin() as connection:
        assert runner.downgrade(connection, Layout(), to_version=0) == 1
    with old_engine.begin() as connection:
        assert runner.upgrade(connection, Layout(pipeline=True)) == 0
    with old_engine.begin() as connection:
        for statement in restore.split(";\n"):
            if statement.strip():
                connection.execute(verbatim(statement))
    new = make_engine()
    with new.begin() as connection:
        runner.upgrade(connection, Layout(pipeline=True))
    with old_engine.connect() as connection, new.connect() as new_connection:
        assert catalog(connection) == catalog(new_connection)
    with Session(old_engine) as session:
        job = session.query(Job).one()
        assert (job.type_name, job.queue, job.input, job.status) == ("send", "mail", {"to": "ann"}, "pending")
    with old_engine.connect() as connection:
        comment = connection.scalar(text("SELECT obj_description('job'::regclass, 'pg_class')"))
    assert ddl.read_stamp(comment) == ddl.stamp("queue", ddl.LATEST)
