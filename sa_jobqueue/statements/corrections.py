"""Rows that carry an instant or a transaction that the server has not reached: found, and given the present instead.

A clock that was ahead and was then corrected leaves instants in the future; a dump restored into a cluster with a lower
transaction counter leaves transactions of the future. Neither can be legal: the server itself stamps both, and no row is
visible before its transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements._parts import XID, Tables, statement, status
from sa_jobqueue.types import JobStatus


@statement
def correct_heartbeats(t: Tables) -> sa.Update:
    """Give workers whose last heartbeat lies in the future one of now, so that a dead one becomes silent.

    Parameters: `after`, how far in the future; a living worker sends its next one long before it counts as dead.
    Shape: `(id,)` a worker. Changes: `heartbeat_at`. Clock: the database's. Locks: those rows; held ones are skipped.
    Index: none, the table is small.
    """
    worker = t.worker
    chosen = sa.select(worker.c.id).where(_beats_ahead(worker)).with_for_update(skip_locked=True).cte("ahead")
    return sa.update(worker).where(worker.c.id == chosen.c.id).values(heartbeat_at=sa.func.now()).returning(worker.c.id)


@statement
def correct_leases(t: Tables) -> sa.Update:
    """Have leases that begin in the future begin now, as long as they were.

    Parameters: `after`, how far in the future; `limit`.
    Shape: `(id,)` a job. Changes: `started_at`, `leased_until`. Clock: the database's.
    Locks: those rows, until the transaction ends; held ones are skipped. Index: `ix_job_running`, every running job.
    """
    chosen = _chosen(t, _lease_is_ahead)
    lasts = t.job.c.leased_until - t.job.c.started_at
    changed = (
        sa.update(t.job)
        .where(t.job.c.id == sa.any_(chosen))
        .values(started_at=sa.func.now(), leased_until=sa.func.now() + lasts)
    )
    return changed.returning(t.job.c.id)


@statement
def correct_transactions(t: Tables) -> sa.Update:
    """Stamp pending jobs that carry a transaction of the future with this one.

    Until then every search for rows written since the last one returns them all, until the counter has passed them.
    Parameters: `limit`. Shape: `(id,)` a job; fewer than `limit`: none are left but those that are held.
    Changes: `changed_xid`. Locks: those rows, until the transaction ends; held ones are skipped.
    Index: `ix_job_changed`, from the end of the snapshot on.
    """
    chosen = _chosen(t, _transaction_is_ahead)
    return sa.update(t.job).where(t.job.c.id == sa.any_(chosen)).values(changed_xid=XID).returning(t.job.c.id)


def is_ahead(t: Tables) -> ColumnElement[bool]:
    """Return whether there is anything to correct in workers or jobs. Parameters: `after`, as there."""
    job, worker = t.job.alias("ahead"), t.worker
    conditions = ((_beats_ahead(worker),), _lease_is_ahead(job), _transaction_is_ahead(job))
    return sa.or_(*(sa.exists(sa.select(sa.literal_column("1")).where(*each)) for each in conditions))


def _beats_ahead(worker: Any) -> ColumnElement[bool]:
    ahead: ColumnElement[bool] = worker.c.heartbeat_at > sa.func.now() + sa.bindparam("after", type_=sa.Interval)
    return ahead


def _lease_is_ahead(job: Any) -> tuple[ColumnElement[bool], ...]:
    after = sa.bindparam("after", type_=sa.Interval)
    return job.c.status == status(JobStatus.RUNNING), job.c.started_at > sa.func.now() + after


def _transaction_is_ahead(job: Any) -> tuple[ColumnElement[bool], ...]:
    end: ColumnElement[Any] = sa.literal_column("pg_snapshot_xmax(pg_current_snapshot())")
    return (
        job.c.status == status(JobStatus.PENDING),
        job.c.changed_xid > sa.literal_column("'0'"),  # the tag of ix_job_changed
        job.c.changed_xid >= end,
    )


@statement
def schedules_ahead(t: Tables) -> sa.Select[Any]:
    """Return the schedules that fire in the future.

    Shape: `(name, cron, time_zone, next_fire_at, now)`. Clock: the database's. Locks: none. Index: none, the table is small.
    """
    columns = (t.schedule.c[name] for name in ("name", "cron", "time_zone", "next_fire_at"))
    firing = (t.schedule.c.paused_at.is_(None), t.schedule.c.error.is_(None))
    return sa.select(*columns, sa.func.now().label("now")).where(*firing, t.schedule.c.next_fire_at > sa.func.now())


@statement
def correct_schedule(t: Tables) -> sa.Update:
    """Let a schedule fire at an earlier time, unless its next time was changed meanwhile.

    Parameters: `schedule`, `was`, `next`. Takes many. Changes: `next_fire_at`. Locks: its row. Index: the primary key.
    """
    stamp = sa.TIMESTAMP(timezone=True)
    is_same = t.schedule.c.next_fire_at == sa.bindparam("was", type_=stamp)
    return (
        sa.update(t.schedule)
        .where(t.schedule.c.name == sa.bindparam("schedule", type_=sa.Text), is_same)
        .values(next_fire_at=sa.bindparam("next", type_=stamp))
    )


def _chosen(t: Tables, conditions: Callable[[Any], tuple[ColumnElement[bool], ...]]) -> Any:
    """Return the ids of some jobs as an array, so that rows are updated by their primary key."""
    ahead = t.job.alias("ahead")
    limit = sa.bindparam("limit", type_=sa.Integer)
    chosen = sa.select(ahead.c.id).where(*conditions(ahead)).limit(limit).with_for_update(skip_locked=True, key_share=True)
    return sa.func.array(chosen.scalar_subquery())
