"""An empty database on each server, and a version of the DDL that the library does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateSchema, DropSchema

from sa_jobqueue import ddl
from sa_jobqueue.layout import Layout
from sa_jobqueue.testing.databases import create_database, drop_database
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.database import extreme
from tests.migrations.applications import Application
from tests.migrations.catalogs import KEPT_VALUE

MakeApplication = Callable[..., Application]
MakeEngine = Callable[[], Engine]

_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"


# The older server is left to the long run: every other suite makes the newest tables there, and uses them.
@pytest.fixture(params=[pytest.param("oldest", marks=pytest.mark.long), "newest"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Give the oldest server at hand, then the newest."""
    return extreme(request, request.param)


@pytest.fixture(scope="session")
def _empty_databases() -> Iterator[dict[str, list[str]]]:
    databases: dict[str, list[str]] = {}
    yield databases
    for url in [url for urls in databases.values() for url in urls]:
        with suppress(OperationalError):  # its server is gone, and it with it
            drop_database(url)


@pytest.fixture
def make_engine(server: PostgresServer, _empty_databases: dict[str, list[str]]) -> Iterator[MakeEngine]:
    """Give a function that finds an empty database and an engine on it, which keeps no connection open.

    They are emptied after the test and used again: that is quicker than making one.
    """
    free = _empty_databases.setdefault(server.url, [])
    engines: list[Engine] = []

    def make() -> Engine:
        url = free.pop() if free else create_database(server.url)
        engines.append(create_engine(url, poolclass=NullPool))
        return engines[-1]

    yield make
    for engine in engines:
        with engine.begin() as connection:
            for schema in connection.scalars(text(_SCHEMAS)).all():
                connection.execute(DropSchema(schema, cascade=True))
            connection.execute(CreateSchema("public"))
        free.append(engine.url.render_as_string(hide_password=False))


one_server = pytest.mark.parametrize("server", ["newest"], indirect=True)
"""Runs a test on one server, whose subject is not the server."""


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """Give an engine on an empty database."""
    return make_engine()


@pytest.fixture
def make_application(tmp_path: Path, engine: Engine) -> Iterator[MakeApplication]:
    """Give a function that writes an application on the test's empty database."""
    applications: list[Application] = []

    def make(models: str, **options: str) -> Application:
        applications.append(Application(tmp_path, engine, models, **options))
        return applications[-1]

    yield make
    for application in applications:
        application.close()


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """Register a made-up next version for the length of a test."""
    return register_next_version(monkeypatch)


def register_next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """Add a version: more of everything, and less by an index and a constraint. The models know nothing of it."""
    latest: int = ddl.LATEST

    def upgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
        q = Layout(schema, prefix).qualified("")
        return [
            f"ALTER TABLE {q}job ADD COLUMN remark text",
            f"CREATE INDEX {prefix}ix_job_remark ON {q}job (remark) WHERE remark IS NOT NULL",
            f"ALTER TABLE {q}job ADD COLUMN note text DEFAULT 'at 100%: fine' NOT NULL",
            f"CREATE INDEX {prefix}ix_job_note ON {q}job (note)",
            f"ALTER TABLE {q}job DROP CONSTRAINT {prefix}ck_job_timeout",
            f"DROP INDEX {q}ix_job_running",
            f"CREATE TABLE {q}job_note (LIKE {q}job)",
            f"ALTER TYPE {q}job_status ADD VALUE IF NOT EXISTS '{KEPT_VALUE}'",
            f"COMMENT ON TABLE {q}job IS '{ddl.Stamp(latest + 1, 'next').comment}'",
        ]

    def downgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
        q = Layout(schema, prefix).qualified("")
        return [
            f"DROP TABLE {q}job_note",
            f"CREATE INDEX {prefix}ix_job_running ON {q}job (leased_by, changed_xid, leased_until) WHERE status = 'running'",
            f"ALTER TABLE {q}job ADD CONSTRAINT {prefix}ck_job_timeout CHECK (timeout > '0'::interval)",
            f"ALTER TABLE {q}job DROP COLUMN note, DROP COLUMN remark",
            f"COMMENT ON TABLE {q}job IS '{ddl.stamp('queue', latest).comment}'",
        ]

    def stamped(written: ddl.Stamp) -> Callable[..., list[str]]:
        def stamp(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
            q = Layout(schema, prefix).qualified("")
            return [f"COMMENT ON TABLE {q}job_bulk_write IS '{written.comment}'"]

        return stamp

    steps = {
        "queue": SimpleNamespace(upgrade=upgrade, downgrade=downgrade, BUILD="next"),
        "pipeline": SimpleNamespace(
            upgrade=stamped(ddl.Stamp(latest + 1, "next")), downgrade=stamped(ddl.stamp("pipeline", latest)), BUILD="next"
        ),
    }
    monkeypatch.setattr(ddl, "UNITS", {unit: (*unit_steps, steps[unit]) for unit, unit_steps in ddl.UNITS.items()})
    monkeypatch.setattr(ddl, "LATEST", latest + 1)
    monkeypatch.setattr(ddl, "RETIRED", ddl.RETIRED | {"note", "remark", "ix_job_note", "ix_job_remark", "job_note"})
    return latest + 1
