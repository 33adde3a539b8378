"""Quarantine: rows that were excluded from a set-based write because they made it fail."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements._parts import Tables, array, statement


@statement
def put(t: Tables) -> sa.Insert:
    """Record that a write of one row failed.

    Parameters: `subject`, `statement`, `sqlstate`, `error`, `worker_id`; `pause`, after which it is tried again. Takes many.
    Changes: its row, where there is one: `failures` + 1, and all but `first_failed_at`. Clock: the database's.
    Locks: its row. Index: the primary key.
    """
    names = ("subject", "statement", "sqlstate", "error", "worker_id")
    parameters = {name: sa.bindparam(name, type_=sa.Text) for name in names}
    statement = insert(t.quarantine).values(**parameters, retry_at=sa.func.now() + sa.bindparam("pause", type_=sa.Interval))
    latest = {name: statement.excluded[name] for name in ("sqlstate", "error", "worker_id", "retry_at")}
    return statement.on_conflict_do_update(
        index_elements=["subject", "statement"], set_={**latest, "failures": t.quarantine.c.failures + 1}
    )


@statement
def drop(t: Tables) -> sa.Delete:
    """Delete rows whose write succeeded. Parameters: `statement`, `subjects`. Locks: the rows. Index: the primary key."""
    row = t.quarantine
    return sa.delete(row).where(
        row.c.subject == sa.any_(array("subjects", sa.Text())), row.c.statement == sa.bindparam("statement", type_=sa.Text)
    )


@statement
def forget(t: Tables) -> sa.Delete:
    """Delete rows that were due to be tried again longer ago than `forgotten_after` and were not: their subjects are gone.

    Parameters: `forgotten_after`. Clock: the database's. Locks: the rows. Index: none; the table is small.
    """
    return sa.delete(t.quarantine).where(_is_forgotten(t))


def has_forgotten(t: Tables) -> ColumnElement[bool]:
    """Return whether `forget` would delete rows. Parameters: as there."""
    return sa.exists(sa.select(sa.literal_column("1")).where(_is_forgotten(t)))


def _is_forgotten(t: Tables) -> ColumnElement[bool]:
    return t.quarantine.c.retry_at < sa.func.now() - sa.bindparam("forgotten_after", type_=sa.Interval)


@statement
def page(t: Tables) -> sa.Select[Any]:
    """Return the rows in quarantine, the oldest first. Parameters: `subjects`, or null for all; `limit`.

    Shape: `(subject, statement, sqlstate, error, worker_id, failures, first_failed_at, retry_at)`. Locks: none.
    Index: the primary key where there are subjects, otherwise none; the table is small.
    """
    subjects = sa.bindparam("subjects", type_=ARRAY(sa.Text))
    return (
        sa.select(t.quarantine)
        .where(sa.or_(subjects.is_(None), t.quarantine.c.subject == sa.any_(subjects)))
        .order_by(t.quarantine.c.first_failed_at, t.quarantine.c.subject, t.quarantine.c.statement)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )
