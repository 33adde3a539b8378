"""The database of the demo: a server found or given, and the one schema on it that the demo owns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Engine, NullPool, Table, create_engine, text
from sqlalchemy.engine import make_url

from sa_jobqueue.cli.demo.app import SCHEMA, Base, FileCounts, Job, SourceFile
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.migrations import runner

_COMMENT: Final = "made by sa-jobqueue demo; dropped by its next run"
_LOCK_KEY: Final = 7_305_804_402_565_243_237  # any number; the same for all demos of one database


class DemoSchemaError(JobQueueError):
    """The demo's schema is in use or is somebody else's; nothing was changed."""


@contextmanager
def prepared(url: str, *, keep: bool) -> Iterator[Engine]:
    """Make the demo's schema, migrated, and drop it again unless told to keep it; give an engine on it.

    What an earlier run left is dropped first. Locks: a session's advisory lock, so that two demos never share it.
    Raises: DemoSchemaError when another demo is running there, or a schema of that name is not the demo's.
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
        raise DemoSchemaError(f"there is a schema {SCHEMA} in this database that no demo of this version made")
    connection.execute(text(f"DROP SCHEMA {SCHEMA} CASCADE"))
