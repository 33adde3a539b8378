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

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import XID, once_a_model, status, table
from sa_jobqueue.types import JobStatus


@once_a_model
def correct_heartbeats(model: JobClass) -> sa.Update:
    """Give workers whose last heartbeat lies in the future one of now, so that a dead one becomes silent.

    Parameters: `after`, how far in the future; a living worker sends its next one long before it counts as dead.
    Shape: `(id,)` a worker. Changes: `heartbeat_at`. Clock: the database's. Locks: those rows; held ones are skipped.
    Index: none, the table is small.
    """
    worker = table(model.Worker)
    chosen = sa.select(worker.c.id).where(_beats_ahead(worker)).with_for_update(skip_locked=True).cte("ahead")
    return sa.update(worker).where(worker.c.id == chosen.c.id).values(heartbeat_at=sa.func.now()).returning(worker.c.id)


@once_a_model
def correct_leases(model: JobClass) -> sa.Update:
    """Have leases that begin in the future begin now, as long as they were.

    Parameters: `after`, how far in the future; `limit`.
    Shape: `(id,)` a job. Changes: `started_at`, `leased_until`. Clock: the database's.
    Locks: those rows, until the transaction ends; held ones are skipped. Index: `ix_job_running`, every running job.
    """
    job = table(model)
    chosen = _chosen(model, _lease_is_ahead)
    lasts = job.c.leased_until - job.c.started_at
    changed = (
        sa.update(job)
        .where(job.c.id == sa.any_(chosen))
        .values(started_at=sa.func.now(), leased_until=sa.func.now() + lasts)
    )
    return changed.returning(job.c.id)


@once_a_model
def correct_transactions(model: JobClass) -> sa.Update:
    """Stamp pending jobs that carry a transaction of the future with this one.

    Until then every search for rows written since the last one returns them all, until the counter has passed them.
    Parameters: `limit`. Shape: `(id,)` a job; fewer than `limit`: none are left but those that are held.
    Changes: `changed_xid`. Locks: those rows, until the transaction ends; held ones are skipped.
    Index: `ix_job_changed`, from the end of the snapshot on.
    """
    job = table(model)
    chosen = _chosen(model, _transaction_is_ahead)
    return sa.update(job).where(job.c.id == sa.any_(chosen)).values(changed_xid=XID).returning(job.c.id)


def is_ahead(model: JobClass) -> ColumnElement[bool]:
    """Return whether there is anything to correct in workers or jobs. Parameters: `after`, as there."""
    job, worker = table(model).alias("ahead"), table(model.Worker)
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


@once_a_model
def schedules_ahead(model: JobClass) -> sa.Select[Any]:
    """Return the schedules that fire in the future.

    Shape: `(name, cron, time_zone, next_fire_at, now)`. Clock: the database's. Locks: none. Index: none, the table is small.
    """
    schedule = table(model.Schedule)
    columns = (schedule.c[name] for name in ("name", "cron", "time_zone", "next_fire_at"))
    firing = (schedule.c.paused_at.is_(None), schedule.c.error.is_(None))
    return sa.select(*columns, sa.func.now().label("now")).where(*firing, schedule.c.next_fire_at > sa.func.now())


@once_a_model
def correct_schedule(model: JobClass) -> sa.Update:
    """Let a schedule fire at an earlier time, unless its next time was changed meanwhile.

    Parameters: `schedule`, `was`, `next`. Takes many. Changes: `next_fire_at`. Locks: its row. Index: the primary key.
    """
    schedule = table(model.Schedule)
    stamp = sa.TIMESTAMP(timezone=True)
    is_same = schedule.c.next_fire_at == sa.bindparam("was", type_=stamp)
    return (
        sa.update(schedule)
        .where(schedule.c.name == sa.bindparam("schedule", type_=sa.Text), is_same)
        .values(next_fire_at=sa.bindparam("next", type_=stamp))
    )


def _chosen(model: JobClass, conditions: Callable[[Any], tuple[ColumnElement[bool], ...]]) -> Any:
    """Return the ids of some jobs as an array, so that rows are updated by their primary key."""
    ahead = table(model).alias("ahead")
    limit = sa.bindparam("limit", type_=sa.Integer)
    chosen = sa.select(ahead.c.id).where(*conditions(ahead)).limit(limit).with_for_update(skip_locked=True, key_share=True)
    return sa.func.array(chosen.scalar_subquery())
