"""Migrations of a queue in a schema whose name is any identifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.models.base import verbatim
from tests.fixtures.schemas import NASTY_SCHEMA
from tests.migrations.applications import Application, both_scopes, commands
from tests.migrations.catalogs import catalog

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue.models import JobMixin


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base, queue_schema=SCHEMA, queue_prefix="mail_", queue_pipeline=True):
    pass
"""
ADDED = "    tenant: Mapped[str | None] = mapped_column(index=True)\n"
# SQLAlchemy warns when it reflects an enum type whose schema has parentheses.
REFLECTED = NASTY_SCHEMA.replace("(", "").replace(")", "")
# Alembic reads a dot in the `schema` of its own operations as one between two names.
UNDOTTED = REFLECTED.replace(".", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "added"), [(REFLECTED, ""), (UNDOTTED, ADDED)], ids=["alone", "with columns of the application"]
)
@both_scopes
def test_alembic_migrates_a_schema_of_any_name_up_and_down(
    tmp_path: Path, engine: Engine, make_engine: Callable[[], Engine], schema: str, added: str, configure: str
) -> None:
    models = MODELS.replace("SCHEMA", repr(schema)).replace("=True):\n    pass\n", f"=True):\n{added or '    pass'}\n")
    application = Application(tmp_path, engine, models, configure=configure)
    try:
        with engine.connect() as connection:
            nothing = catalog(connection)
        assert len(commands(application.autogenerate())) == (4 if added else 2)
        script = application.upgrade(sql=True)
        application.upgrade()
        application.check()
        assert commands(application.autogenerate()) == []
        created, printed = make_engine(), make_engine()
        application.models.Base.metadata.create_all(created)
        with printed.connect() as connection:  # whole and without parameters, as psql executes it
            connection.connection.cursor().execute(script)
        catalogs = []
        for each in (engine, printed, created):
            with each.connect() as connection:
                catalogs.append(catalog(connection))
        migrated, offline, direct = catalogs
        assert migrated == offline
        # Added columns lie behind the library's, and the order of columns is the only difference.
        assert {kind: rows for kind, rows in migrated.items() if kind != "columns"} == {
            kind: rows for kind, rows in direct.items() if kind != "columns"
        }
        application.models.Base.metadata.drop_all(created)
        assert inspect(created).get_table_names(schema) == []
        application.downgrade("base")
        with engine.connect() as connection:
            assert catalog(connection) == nothing
    finally:
        application.close()


def test_columns_and_indexes_of_a_schema_of_any_name_are_prepared(engine: Engine, next_version: int) -> None:
    layout = Layout(NASTY_SCHEMA, "mail_")
    with engine.begin() as connection:
        runner.upgrade(connection, layout, to_version=next_version - 1)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert runner.prepare(connection, layout) == ["remark", "mail_ix_job_remark"]
        assert runner.prepare(connection, layout) == []
    with engine.begin() as connection:
        assert runner.upgrade(connection, layout) == next_version - 1


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["a\n--;\nb", "x" * 63, "é" * 31, "public.job", "a$$b", "$_$$$"])
def test_a_schema_of_any_name_can_be_created_and_dropped(engine: Engine, schema: str) -> None:
    layout = Layout(schema, "p" * 20, "text", pipeline=True)
    with engine.begin() as connection:
        assert runner.upgrade(connection, layout) == 0
        connection.execute(verbatim(f"INSERT INTO {layout.qualified('job_queue')} (type_name) VALUES ('mail')"))
    with engine.begin() as connection:
        assert runner.downgrade(connection, layout, to_version=0) == 1
        assert schema not in inspect(connection).get_schema_names()
