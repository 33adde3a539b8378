"""The schema of the demo on a given or started server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Engine, NullPool, Table, create_engine, text
from sqlalchemy.engine import make_url

from sa_jobqueue.cli.demo.app import SCHEMA, Base, FileCounts, Job, SourceFile
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.migrations import runner

_COMMENT: Final = "created by sa-jobqueue demo; dropped by its next run"
_LOCK_KEY: Final = 7_305_804_402_565_243_237  # any number; the same for all demos of one database


class DemoSchemaError(JobQueueError):
    """The demo's schema is in use, or was not created by the demo. Nothing was changed."""


@contextmanager
def prepared(url: str, *, keep: bool) -> Iterator[Engine]:
    """Create and migrate the demo's schema, yield an engine, and drop the schema unless `keep`.

    The schema of an earlier run is dropped first. Locks: a session-level advisory lock, against concurrent demos.
    Raises: DemoSchemaError if another demo is running, or the schema was not created by the demo.
    """
    engine = create_engine(make_url(url), pool_pre_ping=True)
    guard = create_engine(make_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    try:
        with guard.connect() as connection:
            if not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}).scalar_one():
                raise DemoSchemaError("another sa-jobqueue demo is running in this database")
            _drop(connection)
            try:
                with engine.begin() as migrating:
                    _create(migrating)
                yield engine
            finally:
                engine.dispose()
                if not keep:
                    _drop(connection)
    finally:
        engine.dispose()
        guard.dispose()


def _create(connection: Connection) -> None:
    runner.upgrade(connection, Job.__jobqueue__)
    connection.execute(text(f"COMMENT ON SCHEMA {SCHEMA} IS '{_COMMENT}'"))
    tables: list[Any] = [SourceFile.__table__, FileCounts.__table__]
    own: list[Table] = tables
    Base.metadata.create_all(connection, tables=own)


def _drop(connection: Connection) -> None:
    found = connection.execute(
        text("SELECT obj_description(oid, 'pg_namespace') AS comment FROM pg_namespace WHERE nspname = :name"),
        {"name": SCHEMA},
    ).one_or_none()
    if found is None:
        return
    if found.comment != _COMMENT:
        raise DemoSchemaError(f"schema {SCHEMA} exists and was not created by this version of the demo; drop or rename it")
    connection.execute(text(f"DROP SCHEMA {SCHEMA} CASCADE"))
