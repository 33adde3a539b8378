"""Which column of a job is the cause of an error that Python or the driver raised for one of its values."""

from __future__ import annotations

from typing import Any, Final

from psycopg.adapt import PyFormat, Transformer
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.rows import defaults_of, written_columns

_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def fault_of(job: JobMixin[Any], cause: Exception) -> InvalidJobError | None:
    """Return the error of a job that could not be written, with the first column that has no value the database takes.

    None if each column has one: the cause is another, such as a constraint or an event listener.
    """
    defaults = defaults_of(type(job))
    for key, column in written_columns(type(job)).items():
        try:
            if key in job.__dict__:
                _check(column, job.__dict__[key])
            elif key in defaults:
                defaults[key](job)
        except Exception as error:
            fault = InvalidJobError(key, f"cannot be written, {summary(error)}; pass a value that {column.type!r} takes")
            fault.__cause__ = cause
            return fault
    return None


def _check(column: Any, value: Any) -> None:
    """Convert a value as a statement does. Raises: errors of the type or the driver."""
    if value is None or isinstance(value, ClauseElement):
        return
    processor = column.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
    sent = value if processor is None else processor(value)
    if sent is not None:
        Transformer().get_dumper(sent, PyFormat.AUTO).dump(sent)
