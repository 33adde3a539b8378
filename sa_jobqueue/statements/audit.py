"""The audit: one row for each act of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import once_a_model, table


@once_a_model
def put(model: JobClass) -> sa.Insert:
    """Write one row. Parameters: the columns but `done_at`, which is the database's clock. Locks: none of others."""
    row = table(model.Audit)
    names = ("id", "done_by", "operation", "arguments", "matched", "changed", "ids")
    return sa.insert(row).values({name: sa.bindparam(name, type_=row.c[name].type) for name in names})


def matching(
    model: JobClass,
    *,
    operations: Sequence[str] = (),
    done_by: Sequence[str] = (),
    done_after: datetime | None = None,
    done_before: datetime | None = None,
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a filter. An empty one means any."""
    row = table(model.Audit)
    found: list[sa.ColumnElement[bool]] = []
    for column, values in ((row.c.operation, operations), (row.c.done_by, done_by)):
        if values:
            found.append(column.in_(list(values)))
    if done_after is not None:
        found.append(row.c.done_at >= done_after)
    if done_before is not None:
        found.append(row.c.done_at < done_before)
    return found


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
