"""Rows to measure with: jobs put into the queue by COPY, and a plain table as wide as a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Column, Connection, DefaultClause, MetaData, Table, Text
from sqlalchemy.orm import DeclarativeBase

from benchmarks.place import Place
from sa_jobqueue import Job
from sa_jobqueue.ids import uuid7

JOB_TYPE: Final = "no_op"
LOWEST_ID: Final = UUID(int=0)
GRACE: Final = timedelta(seconds=15)
DECLARED: Final = {"queue": "default", "priority": 0, "max_attempts": 20, "input_version": 1}
"""Declarations of a handler: the job table has no defaults of these, and scenarios drop the trigger that fills them in."""
COLUMNS: Final = ("id", "type_name", "chain_id", "chain_type_name", "input")
"""What COPY is given; the other columns have the defaults that `session.add(Job)` writes out."""


def payload(number: int) -> dict[str, Any]:
    """Return a small input, of the size that a reference to something else has."""
    return {"number": number, "order_id": f"order-{number:08}"}


def tuples(jobs: int) -> Iterator[tuple[UUID, str, UUID, str, str]]:
    """Make the values of `COLUMNS` for so many jobs."""
    for number in range(jobs):
        job_id = uuid7()
        yield job_id, JOB_TYPE, job_id, JOB_TYPE, json.dumps(payload(number))


def copy(connection: Connection, jobs: int) -> None:
    """COPY so many due jobs into the queue, in the caller's transaction."""
    driver: Any = connection.connection.driver_connection
    columns, declared = ", ".join((*COLUMNS, *DECLARED)), tuple(DECLARED.values())
    with driver.cursor() as cursor, cursor.copy(f"COPY job ({columns}) FROM STDIN") as into:
        for row in tuples(jobs):
            into.write_row(row + declared)


def count(place: Place) -> int:
    """Return how many jobs the queue holds, in whatever state."""
    return int(place.scalar("SELECT count(*) FROM job"))


def fill(place: Place, jobs: int) -> None:
    """Empty the queue, put so many due jobs into it, and write everything out as after a vacuum."""
    place.clear()
    with place.begin() as connection:
        copy(connection, jobs)
    place.run("VACUUM job")


class PlainBase(DeclarativeBase):
    """The base of tables that have nothing to do with the queue."""

    metadata = MetaData()


def _plain_columns() -> Iterator[Column[Any]]:
    for column in Job.__table__.c:
        if column.computed is not None:
            continue
        kind: Any = Text() if column.name in {"status", "chain_status"} else column.type
        default: Any = column.server_default.arg if isinstance(column.server_default, DefaultClause) else None
        yield Column(column.name, kind, primary_key=column.primary_key, nullable=column.nullable, server_default=default)


class PlainRow(PlainBase):
    """A row with a job's columns and values and a primary key: no other index, no check, no trigger."""

    __table__ = Table("plain_row", PlainBase.metadata, *_plain_columns())


_MADE: Final = Job(JOB_TYPE)
_VALUES: Final[dict[str, Any]] = {
    name: _MADE.status.value if name == "status" else value
    for name, value in _MADE.__dict__.items()
    if name in PlainRow.__table__.c
} | DECLARED


def plain_row(number: int) -> PlainRow:
    """Return a row with the very values of a new job."""
    row_id = uuid7()
    return PlainRow(**_VALUES | {"id": row_id, "chain_id": row_id, "input": payload(number)})
