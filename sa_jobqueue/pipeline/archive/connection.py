"""The archiver's one connection: bounded, and holding the lock that makes it the only one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.connections import unavailable
from sa_jobqueue.db.detached import detached
from sa_jobqueue.db.sessions import own_engine
from sa_jobqueue.db.urls import for_psycopg, read_url
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations import check_schema
from sa_jobqueue.pipeline.archive.errors import ArchiveBusyError, ArchiveError, UnarchivedColumnsError
from sa_jobqueue.pipeline.archive.options import ArchiveOptions
from sa_jobqueue.pipeline.rights import missing_right
from sa_jobqueue.pipeline.statements import archiving

_LOCKED: Final = "55P03"


@contextmanager
def opened(
    database: Engine | URL | str, model: JobClass, options: ArchiveOptions, *, alone: bool = True
) -> Iterator[Connection]:
    """Connect, apart from every pool; `alone` with the lock on the queue's archive, which goes with the connection.

    Raises: DatabaseUnavailableError, SchemaError, UnsupportedServerError; ArchiveBusyError when another archiver has it for
    longer than `options.lock_timeout`; ArchiveError for a user without the rights of an operator, or of an observer.
    """
    engine = _engine(database)
    with ExitStack() as stack:
        stack.enter_context(_rights_named("operator" if alone else "observer"))
        try:
            # What is set here must not come back to anybody from a pool.
            connection = stack.enter_context(detached(engine, isolation_level="READ COMMITTED"))
        except DBAPIError as error:
            raise unavailable(error, engine.url) from error
        driver: Any = connection.connection.dbapi_connection
        # Nothing is prepared: a plan that knows its arrays looks them up by hash, and its ranges in statistics.
        driver.prepare_threshold = None
        with Session(connection) as session:
            check_schema(session, unit="pipeline", model=model)
        connection.rollback()
        bounded(connection, options, guarded=True)
        if alone:
            try:
                with connection.begin():
                    connection.execute(archiving.lock(model))
            except DBAPIError as error:
                if diagnose(error).sqlstate != _LOCKED:
                    raise
                raise ArchiveBusyError() from error
        yield connection


@contextmanager
def _rights_named(role: Literal["observer", "operator"]) -> Iterator[None]:
    """Name the role that a refused statement needs."""
    try:
        yield
    except DBAPIError as error:
        refusal = missing_right(error, role)
        if refusal is None:
            raise
        raise ArchiveError(refusal) from error


def bounded(connection: Connection, options: ArchiveOptions, *, guarded: bool) -> None:
    """Set how long things may take, and, where `guarded`, that plans go by indexes."""
    timeouts = {"statement_timeout": options.statement_timeout, "lock_timeout": options.lock_timeout}
    with connection.begin():
        connection.execute(archiving.settings(**timeouts, guarded=guarded))


def check_columns(connection: Connection, model: JobClass) -> None:
    """Check that the archive keeps every column of the tables whose rows it deletes.

    It keeps the columns of the job table that `model` maps, and those of the other tables that the library has.
    Raises: UnarchivedColumnsError.
    """
    archived_tables = {model.__table__: model.__table__} | {
        getattr(model, name).__table__: getattr(Job, name).__table__ for name in ("Attempt", "DeadLetter", "Blocker")
    }
    there = connection.execute(archiving.columns(archived_tables)).all()
    for table, archived_table in archived_tables.items():
        if lost := sorted(
            row.attname for row in there if row.relname == table.name and row.attname not in archived_table.columns
        ):
            cure = "copy them elsewhere and drop them"
            if archived_table is model.__table__:
                cure = "map them on the model, and pass --app MODULE:ATTRIBUTE (in Python, model=)"
            raise UnarchivedColumnsError(table.name, lost, cure)


def instant(connection: Connection, before: timedelta | datetime) -> datetime:
    """Return the instant that is meant; an age counts from the database's present."""
    age = before if isinstance(before, timedelta) else timedelta(0)
    with connection.begin():
        row = connection.execute(archiving.cutoff(), {"age": age}).one()
    if isinstance(before, datetime) and before > row.now:
        raise InvalidOptionError("before", f"must not lie in the future, which {before.isoformat()} does")
    cutoff: datetime = row.cutoff if isinstance(before, timedelta) else before
    return cutoff


def _engine(database: Engine | URL | str) -> Engine:
    if isinstance(database, Engine) and database.dialect.driver == "psycopg" and not database.dialect.is_async:
        return database
    if isinstance(database, str):
        url = read_url(database)
    else:
        url = for_psycopg(database if isinstance(database, URL) else database.url)
    return own_engine(url)
