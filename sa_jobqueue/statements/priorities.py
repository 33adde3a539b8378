"""Changing what goes before what, of jobs that are waiting."""

from __future__ import annotations

import sqlalchemy as sa

from sa_jobqueue.statements._parts import XID, Tables, statement, status
from sa_jobqueue.types import JobStatus


@statement
def set_priority(t: Tables) -> sa.Update:
    """Give jobs a priority, those that have not begun, or wait for another attempt, and have another one.

    Parameters: `ids`, `to`. Shape: `(id,)` of those that were changed.
    Changes: `priority`, and `changed_xid`, by which a catch-up finds the jobs that are now in a lane whose cursor has
    passed it.
    Locks: those rows, awaited, roots first, each kind in the order of their ids, until the caller's transaction ends.
    Index: the primary key.
    """
    row = t.job.alias("row")
    to = sa.bindparam("to", type_=sa.SmallInteger)
    locked = (
        sa.select(row.c.id)
        .where(
            row.c.id == sa.any_(t.ids("ids")),
            row.c.status.in_([status(JobStatus.PENDING), status(JobStatus.BLOCKED)]),
            row.c.priority != to,
        )
        .order_by(row.c.root_id.is_not(None), row.c.id)
        .with_for_update(key_share=True)
        .cte("locked")
    )
    return (
        sa.update(t.job)
        .where(t.job.c.id == sa.any_(sa.func.array(sa.select(locked.c.id).scalar_subquery())))
        .values(priority=to, changed_xid=XID)
        .returning(t.job.c.id)
        .execution_options(synchronize_session=False)
    )
