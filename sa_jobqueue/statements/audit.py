"""The audit: one row for each act of an operator."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

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
    columns = {
        "operations": row.c.operation,
        "done_by": row.c.done_by,
        "done_after": row.c.done_at,
        "done_before": row.c.done_at,
    }
    return alike(where, columns)
