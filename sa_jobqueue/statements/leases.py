"""Leases: heartbeats, extensions, and the rescue of jobs whose worker was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements._parts import (
    Tables,
    alive_until,
    array,
    excluded,
    fence,
    statement,
    status,
)
from sa_jobqueue.statements.claims import claimed_columns
from sa_jobqueue.types import DeadReason, JobStatus


@statement
def heartbeat(t: Tables) -> sa.Insert:
    """Write a worker's heartbeat; register the worker if its row does not exist (or was removed).

    Parameters: `id`, `name`, `host`, `pid`, `version`, `queues`, `job_types`, `concurrency`, `state`;
    `selectors`, `type_slots`, `type_versions`, `progress`, `report`, `failure`, null unless given;
    `stuck_threads`, zero unless given; `heartbeat_pause`, none unless given.
    Shape: one row `(drain_requested_at,)`, null unless the worker was asked to drain.
    Changes: `heartbeat_at`, `heartbeat_pause`, `state`, `concurrency`, `progress`, `report`, `stuck_threads`, `failure`.
    Clock: the database's. Locks: the worker's own row. Index: the primary key.
    """
    names = ("id", "name", "host", "pid", "version", "queues", "job_types", "concurrency", "state")
    parameters = {name: sa.bindparam(name, type_=t.worker.c[name].type) for name in names}
    optional = ("selectors", "type_slots", "type_versions", "progress", "report", "failure")
    parameters |= {name: sa.bindparam(name, None, type_=t.worker.c[name].type) for name in optional}
    parameters["queues"] = array("queues", sa.Text())  # as the statements that `ticks` adds to this one
    parameters["stuck_threads"] = sa.bindparam("stuck_threads", 0, type_=t.worker.c.stuck_threads.type)
    parameters["heartbeat_pause"] = sa.bindparam("heartbeat_pause", timedelta(0), type_=t.worker.c.heartbeat_pause.type)
    statement = insert(t.worker).values(parameters)
    changed = ("state", "concurrency", "progress", "report", "stuck_threads", "failure", "heartbeat_pause")
    return statement.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "heartbeat_at": sa.func.clock_timestamp(),
            **{name: statement.excluded[name] for name in changed},
        },
    ).returning(t.worker.c.drain_requested_at)


@statement
def forget_worker(t: Tables) -> sa.Delete:
    """Remove the row of a worker that has stopped, unless it still holds jobs. Parameters: `worker_id`. Changes: its row.
    Index: the primary key; `ix_job_running`."""
    return sa.delete(t.worker).where(t.worker.c.id == sa.bindparam("worker_id", type_=sa.Text), ~_has_jobs(t))


@statement
def forget_dead_workers(t: Tables) -> sa.Delete:
    """Remove workers that have been silent for `gone_after` and hold no job.

    Parameters: `gone_after`, many times the heartbeat timeout: a process that resumes later registers itself again.
    Changes: their rows. Locks: those rows; held ones are skipped, because a request to drain many workers locks
    them in another order. Index: `ix_job_running`, one probe per worker.
    """
    dead = _dead_workers(t).with_for_update(skip_locked=True).cte("dead")
    return sa.delete(t.worker).where(t.worker.c.id == dead.c.id)


def has_dead_workers(t: Tables) -> ColumnElement[bool]:
    """Return whether `forget_dead_workers` would remove any."""
    return sa.exists(_dead_workers(t))


def _dead_workers(t: Tables) -> sa.Select[Any]:
    silent = t.worker.c.heartbeat_at < sa.func.now() - sa.bindparam("gone_after", type_=sa.Interval)
    return sa.select(t.worker.c.id).where(silent, ~_has_jobs(t))


def _has_jobs(t: Tables) -> ColumnElement[bool]:
    running_jobs: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == t.worker.c.id
    )
    # OFFSET 0 keeps it one probe a worker; as a join it was planned to read every running job for each.
    return sa.exists(running_jobs.correlate(t.worker).offset(sa.literal_column("0")))


@statement
def held(t: Tables) -> sa.Select[Any]:
    """Return every job that a worker holds, by the database's account.

    Parameters: `worker_id`. Shape: a row of `CLAIMED`, `BEFORE` and `TABLE` a job, unordered. Locks: none.
    Index: `ix_job_running`.
    """
    return sa.select(*claimed_columns(t)).where(
        t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == sa.bindparam("worker_id", type_=sa.Text)
    )


@statement
def extend(t: Tables) -> sa.Update:
    """Move the end of one attempt's lease to `extension` and `grace` from now, but not beyond `grace` after its deadline.

    Parameters: `job_id`, `job_attempt`, `worker_id`, `extension`, `grace`.
    Shape: one row `(id,)`, none when the attempt is no longer the worker's. Index: the primary key.
    """
    return (
        sa.update(t.job)
        .where(fence(t))
        .values(
            leased_until=sa.func.least(
                sa.func.now() + sa.bindparam("extension", type_=sa.Interval), t.job.c.deadline, type_=t.job.c.deadline.type
            )
            + sa.bindparam("grace", type_=sa.Interval)
        )
        .returning(t.job.c.id)
    )


@statement
def lost(t: Tables, *, orphans: bool = False, ended: bool = False, only: bool = False) -> sa.Select[Any]:
    """Lock jobs of dead workers, and jobs whose own lease expired, each with the reason; for `completions.finish`.

    Parameters: `ttl`, how long a silent worker still counts as alive; `limit`; `excluded`, ids to leave out, empty by
    default. With `orphans` instead the jobs whose worker has no row at all: done more rarely, for it reads every running
    job. With `ended` those of one worker, `worker_id` in the place of `ttl`, whose process is known to have ended, however
    fresh its last heartbeat is. With `only` it takes none but those in `ids`.
    Shape: `(id, leased_by, chain_id, attempt, max_attempts, type_name, reason)` a job, unordered.
    Clock: the database's alone, against heartbeats and leases it stamped itself.
    Locks: the rows, until the transaction ends; rows held by others are skipped: their worker is just writing.
    Index: `ix_job_running`, one probe a worker.
    """
    limit = sa.bindparam("limit", type_=sa.Integer)
    columns = ("id", "leased_by", "chain_id", "attempt", "max_attempts", "type_name")
    running = sa.select(*(t.job.c[name] for name in columns)).where(
        t.job.c.status == status(JobStatus.RUNNING), excluded(t.job.c.id, t.id_type)
    )
    if only:
        running = running.where(t.job.c.id == sa.any_(t.ids("ids")))

    def lock_jobs(name: str, reason: DeadReason, *conditions: ColumnElement[bool]) -> tuple[Any, sa.Select[Any]]:
        chosen = running.where(*conditions).limit(limit).with_for_update(key_share=True, skip_locked=True).lateral(name)
        return chosen, sa.select(*chosen.c, sa.literal(reason.value).label("reason"))

    if orphans:
        return lock_jobs("orphan", DeadReason.LOST, _has_no_worker(t))[1]
    silent = alive_until(t.worker) < sa.func.now()
    of_worker = t.job.c.leased_by == t.worker.c.id
    dead, lost = lock_jobs("dead", DeadReason.LOST, of_worker)
    lost = lost.select_from(t.worker.join(dead, sa.true()))
    if ended:
        return lost.where(t.worker.c.id == sa.bindparam("worker_id", type_=sa.Text)).limit(limit)
    expired, late = lock_jobs("expired", DeadReason.TIMED_OUT, of_worker, t.job.c.leased_until < sa.func.now())
    late = late.select_from(t.worker.join(expired, sa.true())).where(~silent)
    lost_jobs = sa.union_all(lost.where(silent), late).subquery("lost")
    return sa.select(*lost_jobs.c).limit(limit)


def has_orphans(t: Tables) -> ColumnElement[bool]:
    """Return whether running jobs have a worker without a row."""
    return sa.exists(sa.select(t.job.c.id).where(t.job.c.status == status(JobStatus.RUNNING), _has_no_worker(t)))


def _has_no_worker(t: Tables) -> ColumnElement[bool]:
    return ~sa.exists(sa.select(sa.literal_column("1")).where(t.worker.c.id == t.job.c.leased_by).correlate(t.job))
