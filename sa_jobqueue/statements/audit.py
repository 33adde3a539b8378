"""The audit: one row for each act of an operator."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.statements._parts import Tables, alike, bound, statement


@statement
def put(t: Tables) -> sa.Insert:
    """Write one row. Parameters: the columns but `done_at`, which is the database's clock. Locks: none of others."""
    names = ("id", "done_by", "operation", "arguments", "matched", "changed", "ids")
    return sa.insert(t.audit).values({name: sa.bindparam(name, type_=t.audit.c[name].type) for name in names})


@bound
def matching(t: Tables, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of an `AuditFilter`."""
    row = t.audit
    of = {"operations": row.c.operation, "done_by": row.c.done_by, "done_after": row.c.done_at, "done_before": row.c.done_at}
    return alike(where, of)


@statement
def prune(t: Tables) -> ReturningDelete[Any]:
    """Delete, of the `limit` oldest rows, those older than `age`.

    Parameters: `age`, `limit`. Clock: the database's. Index: the primary key, `limit` entries.
    """
    limit = sa.bindparam("limit", type_=sa.Integer)
    oldest = sa.select(t.audit.c.id, t.audit.c.done_at).order_by(t.audit.c.id).limit(limit).cte("oldest")
    too_old = sa.select(oldest.c.id).where(oldest.c.done_at < sa.func.now() - sa.bindparam("age", type_=sa.Interval))
    return sa.delete(t.audit).where(t.audit.c.id.in_(too_old)).returning(t.audit.c.id)


@bound
def count_expired(t: Tables) -> sa.Select[Any]:
    """Count the rows older than `age`; for a dry run, so that it reads the whole table.

    Shape: `(count,)`, one row. Clock: the database's.
    """
    age = sa.bindparam("age", type_=sa.Interval)
    return sa.select(sa.func.count()).select_from(t.audit).where(t.audit.c.done_at < sa.func.now() - age)
