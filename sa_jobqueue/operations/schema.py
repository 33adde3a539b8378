"""Checks that the database fits this version of the library, with an error that names the command to run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, cast

from sqlalchemy import Engine, Table, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.sql import visitors

from sa_jobqueue import ddl, errors
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.ddl.v0001 import quoted
from sa_jobqueue.errors.drivers import RAW_ERRORS, diagnose
from sa_jobqueue.layout import PIPELINE_TABLES, STAMPED, Unit
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.models.base import REGISTRY_KEY, NotifyingXid, QueueFunction
from sa_jobqueue.statements import schema
from sa_jobqueue.types import MIN_SERVER_VERSION

_NO_SCHEMA: Final = "3F000"
_NO_TABLE: Final = "42P01"
_NO_COLUMN: Final = "42703"
_NO_FUNCTION: Final = "42883"
_OTHER_TABLES: Final = (
    f"they are older than version {LATEST}, which this library needs, or another build of it made them: sa-jobqueue doctor "
    "names the commands to run"
)


def check_schema(session: Session, *, unit: Unit = "queue", model: JobClass = Job) -> int:
    """Check that this library works with the server and the job tables; return the version of the tables.

    `unit`: "pipeline" checks the tables of Spark's writes and of the archive as well.
    Raises: UnsupportedServerError, SchemaMissingError, SchemaBuildError, SchemaOutdatedError, SchemaTooNewError or
    PipelineMissingError, each naming the command to run.
    """
    layout = model.__jobqueue__
    if unit == "pipeline":
        check_schema(session, model=model)
        if not layout.pipeline:
            raise errors.PipelineMissingError(model.__name__)
    versions = session.execute(schema.versions(layout, unit)).one()
    name = layout.qualified(STAMPED[unit])
    if versions.server < MIN_SERVER_VERSION:
        raise errors.UnsupportedServerError(
            f"PostgreSQL 15 or newer is required; this server is {versions.server // 10_000}"
        )
    if versions.encoding != "UTF8":
        raise errors.UnsupportedServerError.of_encoding(versions.encoding)
    stamp = ddl.read_stamp(versions.stamp)
    if not versions.present:
        for row in session.execute(schema.unusable_schemas(layout, unit)):
            if ddl.read_stamp(row.stamp):  # not another's table of that name
                raise errors.SchemaMissingError(
                    f"table {name} is in the schema {row.schema}, which this user may not use: GRANT USAGE ON SCHEMA "
                    f"{quoted(row.schema)}, or grant the user one of the roles that sa-jobqueue grants creates"
                )
    if not versions.present and unit == "pipeline":
        raise errors.PipelineMissingError(f"table {layout.qualified('job')}")
    if not versions.present or stamp is None:
        state = "is not a job queue's table" if versions.present else "does not exist"
        raise errors.SchemaMissingError(f"table {name} {state}: {_todo(cast('Table', model.__table__))}")
    if stamp.is_of_another_build(unit):
        raise errors.SchemaBuildError.from_stamps(name, stamp, ddl.stamp(unit, stamp.version))
    if stamp.version < LATEST:
        raise errors.SchemaOutdatedError(
            f"table {name} is of version {stamp.version}, this library needs {LATEST}: "
            "alembic revision --autogenerate, then alembic upgrade head"
        )
    if stamp.version > LATEST + 1:
        raise errors.SchemaTooNewError(
            f"table {name} is of version {stamp.version}, this library knows up to {LATEST} and runs on {LATEST + 1}: "
            "upgrade sa-jobqueue here"
        )
    return stamp.version


def schema_error(
    error: DBAPIError, tables: Iterable[Table], functions: Iterable[QueueFunction] = ()
) -> errors.SchemaError | None:
    """Return the error for a missing table, column or function of a queue; None for any other driver error.

    `tables`, `functions`: all tables and functions of queues that the statement names. Columns that the application adds to
    the job tables are not the queue's.
    """
    diagnosis = diagnose(error)
    if diagnosis.sqlstate not in {_NO_SCHEMA, _NO_TABLE, _NO_COLUMN, _NO_FUNCTION} or "PL/pgSQL" in (
        diagnosis.context or ""
    ):
        return None
    named_words = set(re.findall(r"\w+", diagnosis.message))  # in any language
    every = set(tables)
    ours = {table: noun for table in every if (noun := _noun(table)) is not None}
    other_columns = {column.name for table in every - ours.keys() for column in table.columns}
    for table, noun in ours.items():
        if diagnosis.sqlstate == _NO_SCHEMA:
            is_missing = table.schema is not None and table.schema in diagnosis.message
        else:
            is_missing = diagnosis.sqlstate == _NO_TABLE and table.name in named_words
        if is_missing:
            if noun in PIPELINE_TABLES:
                return errors.PipelineMissingError(f"table {table.fullname.removesuffix(noun)}job")
            return errors.SchemaMissingError(f"table {table.fullname} does not exist: {_todo(table)}")
        for column in Job.metadata.tables[noun].columns:
            if diagnosis.sqlstate == _NO_COLUMN and column.name in named_words - other_columns:
                return errors.SchemaOutdatedError(f"table {table.fullname} has no column {column.name!r}: {_OTHER_TABLES}")
    called = {function.name for function in functions}
    # The type of this column calls a function that is not in the statement before it is compiled.
    types = [table.c.changed_xid.type for table, noun in ours.items() if noun == "job"]
    called.update(kind.function for kind in types if isinstance(kind, NotifyingXid))
    if diagnosis.sqlstate == _NO_FUNCTION and (missing := called & named_words):
        return errors.SchemaOutdatedError(
            f"the job tables have no function {min(missing)} as this library calls it: {_OTHER_TABLES}"
        )
    return None


@contextmanager
def explained(model: JobClass) -> Iterator[None]:
    """Raise the error of `schema_error` for statements on the job table that SQLAlchemy does not build."""
    try:
        yield
    except DBAPIError as error:
        if (schema_failure := schema_error(error, [cast("Table", model.__table__)])) is not None:
            raise schema_failure from error
        raise


@event.listens_for(Engine, "handle_error")
def _explain(context: ExceptionContext) -> errors.SchemaError | None:
    """Replace the driver's error, on any engine; only statements built with a queue's `Table` are looked at."""
    error, statement = context.sqlalchemy_exception, getattr(context.execution_context, "compiled", None)
    if not isinstance(error, DBAPIError) or statement is None or getattr(context.execution_context, "isddl", False):
        return None
    if context.connection is None or context.connection.get_execution_options().get(RAW_ERRORS):
        return None
    elements = list(visitors.iterate(statement.statement)) if statement.statement is not None else []
    functions = [element for element in elements if isinstance(element, QueueFunction)]
    return schema_error(error, [element for element in elements if isinstance(element, Table)], functions)


def _noun(table: Table) -> str | None:
    """Return the name of a queue's table without the queue's prefix; None for a table that is not of a queue."""
    for layout in table.metadata.info.get(REGISTRY_KEY, ()):
        noun: str = table.name.removeprefix(layout.prefix)
        if table.schema == layout.schema and noun in Job.metadata.tables and layout.name(noun) == table.name:
            return noun
    return None


def _todo(table: Table) -> str:
    todo = "run the application's migrations (alembic upgrade head), or without Alembic sa-jobqueue migrate upgrade"
    if table.metadata is Job.metadata:
        target_metadata = "target_metadata = [Base.metadata, Job.metadata]"
    else:
        target_metadata = "target_metadata with the metadata of the queue's own base"
    return f"{todo}. If no migration creates it, Alembic's env.py needs {target_metadata}"
