"""The audit: one row for each act of an operator."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import alike, once_a_model, table


@once_a_model
def put(model: JobClass) -> sa.Insert:
    """Write one row. Parameters: the columns but `done_at`, which is the database's clock. Locks: none of others."""
    row = table(model.Audit)
    names = ("id", "done_by", "operation", "arguments", "matched", "changed", "ids")
    return sa.insert(row).values({name: sa.bindparam(name, type_=row.c[name].type) for name in names})


def matching(model: JobClass, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of an `AuditFilter`."""
    row = table(model.Audit)
    of = {"operations": row.c.operation, "done_by": row.c.done_by, "done_after": row.c.done_at, "done_before": row.c.done_at}
    return alike(where, of)


@once_a_model
def prune(model: JobClass) -> ReturningDelete[Any]:
    """Delete, of the `limit` oldest rows, those older than `age`.

    Parameters: `age`, `limit`. Clock: the database's. Index: the primary key, `limit` entries.
    """
    row = table(model.Audit)
    limit = sa.bindparam("limit", type_=sa.Integer)
    oldest = sa.select(row.c.id, row.c.done_at).order_by(row.c.id).limit(limit).cte("oldest")
    too_old = sa.select(oldest.c.id).where(oldest.c.done_at < sa.func.now() - sa.bindparam("age", type_=sa.Interval))
    return sa.delete(row).where(row.c.id.in_(too_old)).returning(row.c.id)


def count_expired(model: JobClass) -> sa.Select[Any]:
    """Count the rows older than `age`; for a dry run, so that it reads the whole table.

    Shape: `(count,)`, one row. Clock: the database's.
    """
    row = table(model.Audit)
    age = sa.bindparam("age", type_=sa.Interval)
    return sa.select(sa.func.count()).select_from(row).where(row.c.done_at < sa.func.now() - age)
