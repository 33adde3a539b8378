"""Whether the database is one this library can work on."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.errors import (
    SchemaMissingError,
    SchemaOutdatedError,
    SchemaTooNewError,
    ServerTooOldError,
)
from sa_jobqueue.migrations.versions import LATEST
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.statements import schema
from sa_jobqueue.types import MIN_SERVER_VERSION


def check_schema(session: Session, *, model: type[JobMixin[Any]] = Job) -> int:
    """Check that the server and the queue's tables are ones this library works on; return the version of the tables.

    That is its own version or the next one: a migration goes before the code that needs it, so in every deploy programs of
    the release before run on the next tables, and each version is made and tested for that. What the next version adds,
    they do not know. Locks: none.
    Raises: ServerTooOldError, SchemaMissingError, SchemaOutdatedError or SchemaTooNewError, each saying what to run.
    """
    found = session.execute(schema.versions(model)).one()
    name = model.__jobqueue__.qualified("job")
    if found.server < MIN_SERVER_VERSION:
        raise ServerTooOldError(f"PostgreSQL 15 or newer is required; this server is {found.server // 10_000}")
    stamp = re.fullmatch(r"sa_jobqueue version=(\d+)", found.stamp or "")
    if not found.present or stamp is None:
        what = "is not a job queue's table" if found.present else "does not exist"
        todo = "run the application's migrations (alembic upgrade head), or without Alembic sa-jobqueue migrate upgrade"
        raise SchemaMissingError(f"table {name} {what}: {todo}")
    version = int(stamp[1])
    if version < LATEST:
        raise SchemaOutdatedError(
            f"table {name} is of version {version}, this library needs {LATEST}: "
            "alembic revision --autogenerate, then alembic upgrade head"
        )
    if version > LATEST + 1:
        raise SchemaTooNewError(
            f"table {name} is of version {version}, this library knows up to {LATEST} and runs on {LATEST + 1}: "
            "upgrade sa-jobqueue here"
        )
    return version
