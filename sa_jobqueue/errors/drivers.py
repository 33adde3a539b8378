"""The diagnostics of a PostgreSQL error, as psycopg, psycopg2 and asyncpg provide them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

DEADLOCK: Final = "40P01"
"""The SQLSTATE of a deadlock."""
SERIALIZATION_FAILURE: Final = "40001"
"""The SQLSTATE of a serialization failure."""
REFERENCED: Final = frozenset({"23001", "23503"})
"""The SQLSTATEs of a violated foreign key: of ON DELETE RESTRICT since PostgreSQL 18, and of any other."""

RAW_ERRORS: Final = "sa_jobqueue_raw_errors"
"""The execution option of a worker's own connections. It has checked the schema, and judges errors by their SQLSTATE."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fields of an error message of PostgreSQL that the library acts on; None where the driver has no such field."""

    sqlstate: str | None
    message: str
    constraint: str | None
    column: str | None
    context: str | None
    """Where it was raised, innermost first: the functions and their lines."""


def diagnose(error: DBAPIError) -> Diagnosis:
    """Return the server's diagnostics of an error."""
    original: Any = error.orig
    # asyncpg's own error has the fields as attributes; SQLAlchemy raises another one from it.
    driver_error = original if original.__cause__ is None else original.__cause__
    fields = getattr(original, "diag", None)
    return Diagnosis(
        sqlstate=getattr(original, "sqlstate", None) or getattr(original, "pgcode", None),
        message=getattr(fields, "message_primary", None) or getattr(driver_error, "message", None) or str(original),
        constraint=getattr(fields, "constraint_name", None) or getattr(driver_error, "constraint_name", None),
        column=getattr(fields, "column_name", None) or getattr(driver_error, "column_name", None),
        context=getattr(fields, "context", None) or getattr(driver_error, "context", None),
    )
