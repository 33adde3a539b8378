"""Leases: heartbeats, extensions, and the rescue of jobs whose worker was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobClass
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import (
    XID,
    alive_until,
    array,
    element,
    excluded,
    id_array,
    id_value,
    is_running,
    once_a_model,
    status,
    table,
)
from sa_jobqueue.statements.claims import claimed_columns
from sa_jobqueue.statements.completions import awaited, end_chains, free, recorded, remembered, timedelta_of
from sa_jobqueue.types import AttemptOutcome, DeadReason, JobStatus


@once_a_model
def heartbeat(model: JobClass) -> sa.Insert:
    """Write a worker's heartbeat; register the worker if its row does not exist (or was removed).

    Parameters: `id`, `name`, `host`, `pid`, `version`, `queues`, `job_types`, `concurrency`, `state`;
    `selectors`, `type_slots`, `progress`, `failure`, null unless given; `stuck_threads`, zero unless given;
    `heartbeat_pause`, none unless given.
    Shape: one row `(drain_requested_at,)`, null unless the worker was asked to drain.
    Changes: `heartbeat_at`, `heartbeat_pause`, `state`, `concurrency`, `progress`, `stuck_threads`, `failure`.
    Clock: the database's. Locks: the worker's own row. Index: the primary key.
    """
    worker = table(model.Worker)
    names = ("id", "name", "host", "pid", "version", "queues", "job_types", "concurrency", "state")
    given = {name: sa.bindparam(name, type_=worker.c[name].type) for name in names}
    optional = ("selectors", "type_slots", "progress", "failure")
    given |= {name: sa.bindparam(name, None, type_=worker.c[name].type) for name in optional}
    given["queues"] = array("queues", sa.Text())  # as the statements that `ticks` adds to this one
    given["stuck_threads"] = sa.bindparam("stuck_threads", 0, type_=worker.c.stuck_threads.type)
    given["heartbeat_pause"] = sa.bindparam("heartbeat_pause", timedelta(0), type_=worker.c.heartbeat_pause.type)
    statement = insert(worker).values(given)
    changed = ("state", "concurrency", "progress", "stuck_threads", "failure", "heartbeat_pause")
    return statement.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "heartbeat_at": sa.func.clock_timestamp(),
            **{name: statement.excluded[name] for name in changed},
        },
    ).returning(worker.c.drain_requested_at)


@once_a_model
def forget_worker(model: JobClass) -> sa.Delete:
    """Remove the row of a worker that has stopped, unless it still holds jobs. Parameters: `worker_id`. Changes: its row.
    Index: the primary key; `ix_job_running`."""
    worker = table(model.Worker)
    return sa.delete(worker).where(worker.c.id == sa.bindparam("worker_id", type_=sa.Text), ~_has_jobs(model))


@once_a_model
def forget_dead_workers(model: JobClass) -> sa.Delete:
    """Remove workers that have been silent for `gone_after` and hold no job.

    Parameters: `gone_after`, many times the heartbeat timeout: a process that resumes later registers itself again.
    Changes: their rows. Locks: those rows; held ones are skipped, because a request to drain many workers locks
    them in another order. Index: `ix_job_running`, one probe per worker.
    """
    worker = table(model.Worker)
    dead = _dead_workers(model).with_for_update(skip_locked=True).cte("dead")
    return sa.delete(worker).where(worker.c.id == dead.c.id)


def has_dead_workers(model: JobClass) -> ColumnElement[bool]:
    """Return whether `forget_dead_workers` would remove any."""
    return sa.exists(_dead_workers(model))


def _dead_workers(model: JobClass) -> sa.Select[Any]:
    worker = table(model.Worker)
    silent = worker.c.heartbeat_at < sa.func.now() - sa.bindparam("gone_after", type_=sa.Interval)
    return sa.select(worker.c.id).where(silent, ~_has_jobs(model))


def _has_jobs(model: JobClass) -> ColumnElement[bool]:
    job, worker = table(model), table(model.Worker)
    held: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        job.c.status == status(JobStatus.RUNNING), job.c.leased_by == worker.c.id
    )
    # OFFSET 0 keeps it one probe a worker; as a join it was planned to read every running job for each.
    return sa.exists(held.correlate(worker).offset(sa.literal_column("0")))


@once_a_model
def held(model: JobClass) -> sa.Select[Any]:
    """Return every job that a worker holds, by the database's account.

    Parameters: `worker_id`. Shape: a row of `CLAIMED` and `BEFORE` a job, unordered. Locks: none. Index: `ix_job_running`.
    """
    job = table(model)
    return sa.select(*claimed_columns(model)).where(
        job.c.status == status(JobStatus.RUNNING), job.c.leased_by == sa.bindparam("worker_id", type_=sa.Text)
    )


@once_a_model
def extend(model: JobClass) -> sa.Update:
    """Move the end of one attempt's lease to `extension` and `grace` from now.

    Parameters: `job_id`, `job_attempt`, `worker_id`, `extension`, `grace`.
    Shape: one row `(id,)`, none when the attempt is no longer the worker's. Index: the primary key.
    """
    job = table(model)
    return (
        sa.update(job)
        .where(
            job.c.id == id_value(model, "job_id"),
            job.c.attempt == sa.bindparam("job_attempt", type_=sa.Integer),
            job.c.leased_by == sa.bindparam("worker_id", type_=sa.Text),
            is_running(job),
        )
        .values(
            leased_until=sa.func.now()
            + sa.bindparam("extension", type_=sa.Interval)
            + sa.bindparam("grace", type_=sa.Interval)
        )
        .returning(job.c.id)
    )


@once_a_model
def rescue(model: JobClass, *, orphans: bool = False, ended: bool = False, only: bool = False) -> sa.Select[Any]:
    """Rescue the jobs of dead workers, and jobs whose own lease expired: due again after a backoff, or dead.

    Parameters: `ttl`, how long a silent worker still counts as alive; `limit`; `base` and `cap` of the backoff in
    seconds; `dead_letter_ids`, `limit` fresh ids. With `orphans` instead the jobs whose worker has no row at all: done more
    rarely, for it reads every running job. With `ended` those of one worker, `worker_id` in the place of `ttl`, whose
    process is known to have ended, however fresh its last heartbeat is. `excluded`: ids to leave out, empty by default; with
    `only` it takes none but those in `ids`.
    Shape: `(id, type_name, attempt, status, worker_id, chain_id, has_waiters)` a job, the last as in
    `completions.finish`; fewer than `limit` rows: none are left. Unordered.
    Changes: running -> pending, or dead when that was the last attempt; a `job_attempt` row each, and a dead letter
    (`lost`, or `timed_out` where the lease expired). The chain of a job that dies ends.
    Clock: the database's alone, against heartbeats and leases it stamped itself.
    Locks: the rows taken, and the roots of continuations, until the transaction ends; rows held by others are skipped:
    their worker is just writing.
    Index: `ix_job_running`, one probe a worker.
    """
    job = table(model)
    taken = _lost(model, orphans=orphans, ended=ended, only=only).cte("lost")

    def of_lost(name: str, row: Any) -> ColumnElement[Any]:
        return sa.select(taken.c[name]).where(taken.c.id == row.c.id).scalar_subquery()

    roots_of_lost = sa.func.array(sa.select(taken.c.root_id).where(taken.c.root_id.is_not(None)).scalar_subquery())
    roots_held = free(job, roots_of_lost)
    last = job.c.attempt >= job.c.max_attempts
    bound = sa.func.least(
        sa.bindparam("cap", type_=sa.Double),
        sa.bindparam("base", type_=sa.Double) * sa.func.power(2, sa.func.least(job.c.attempt, 62) - 1),
    )
    error = _lost_error(of_lost("reason", job), of_lost("leased_by", job))
    back = (
        sa.update(job)
        .where(
            job.c.id == sa.any_(sa.func.array(sa.select(taken.c.id).scalar_subquery())),
            job.c.root_id.is_(None) | (job.c.root_id == sa.any_(roots_held)),
        )
        .values(
            status=sa.cast(sa.case((last, status(JobStatus.DEAD)), else_=status(JobStatus.PENDING)), job.c.status.type),
            scheduled_at=sa.case((last, job.c.scheduled_at), else_=sa.func.now() + timedelta_of(bound * sa.func.random())),
            completed_at=sa.case((last, sa.func.now())),
            chain_completed_at=sa.case((last & (job.c.chain_index == 0), sa.func.now())),
            leased_by=sa.null(),
            leased_until=sa.null(),
            last_error=error,
            changed_xid=XID,
        )
        .returning(*remembered(job), job.c.last_error, job.c.has_waiters)
        .cte("back")
    )
    roots = end_chains(job, back, sa.cast(back.c.status, sa.Text) == JobStatus.DEAD.value)
    numbered = sa.select(back, sa.func.row_number().over().label("n")).cte("numbered")
    reason = of_lost("reason", numbered)
    dead_letter_ids = sa.bindparam("dead_letter_ids", type_=ARRAY(id_parameter(model.__jobqueue__)))
    return recorded(
        model,
        numbered,
        worker=of_lost("leased_by", numbered),
        outcome=sa.literal(AttemptOutcome.LOST.value),
        error=numbered.c.last_error,
        fingerprint=reason,
        reason=reason,
        dead_letter_id=element(dead_letter_ids, numbered.c.n),
        died=sa.cast(numbered.c.status, sa.Text) == JobStatus.DEAD.value,
    ).with_only_columns(
        numbered.c.id,
        numbered.c.type_name,
        numbered.c.attempt,
        numbered.c.status,
        of_lost("leased_by", numbered).label("worker_id"),
        numbered.c.chain_id,
        awaited(numbered, roots),
    )


@once_a_model
def lost(model: JobClass, *, orphans: bool = False) -> sa.Select[Any]:
    """Name the jobs that `rescue` would take now. Parameters: `ttl`, `limit`, `excluded`, as there. Shape: `(id,)`.

    Locks: the rows, until the transaction ends; rows held by others are skipped.
    Index: `ix_job_running`, one probe a worker.
    """
    found = _lost(model, orphans=orphans, ended=False, only=False).cte("lost")
    return sa.select(found.c.id)


def _lost(model: JobClass, *, orphans: bool, ended: bool, only: bool) -> Any:
    """Select and lock jobs of dead workers, and jobs past their time, each with why."""
    job, worker = table(model), table(model.Worker)
    limit = sa.bindparam("limit", type_=sa.Integer)
    key = id_parameter(model.__jobqueue__)
    running = sa.select(job.c.id, job.c.leased_by, job.c.root_id).where(
        job.c.status == status(JobStatus.RUNNING), excluded(job.c.id, key)
    )
    if only:
        running = running.where(job.c.id == sa.any_(id_array(model, "ids")))
    silent = alive_until(worker) < sa.func.now()
    is_dead = worker.c.id == sa.bindparam("worker_id", type_=sa.Text) if ended else silent
    lost_reason, expired_reason = sa.literal(DeadReason.LOST.value), sa.literal(DeadReason.TIMED_OUT.value)

    def probe(name: str, *conditions: ColumnElement[bool]) -> Any:
        chosen = running.where(job.c.leased_by == worker.c.id, *conditions).limit(limit)
        return chosen.with_for_update(key_share=True, skip_locked=True).lateral(name)

    if orphans:
        orphan = (
            running.where(_has_no_worker(model))
            .limit(limit)
            .with_for_update(key_share=True, skip_locked=True)
            .subquery("orphan")
        )
        sources = [sa.select(orphan.c.id, orphan.c.leased_by, orphan.c.root_id, lost_reason.label("reason"))]
    else:
        dead, expired = probe("dead"), probe("expired", job.c.leased_until < sa.func.now())
        sources = [
            sa.select(dead.c.id, dead.c.leased_by, dead.c.root_id, lost_reason.label("reason"))
            .select_from(worker.join(dead, sa.true()))
            .where(is_dead),
            sa.select(expired.c.id, expired.c.leased_by, expired.c.root_id, expired_reason.label("reason"))
            .select_from(worker.join(expired, sa.true()))
            .where(~silent),
        ][: 1 if ended else 2]
    return (sa.union_all(*sources) if len(sources) > 1 else sources[0]).limit(limit)


def has_orphans(model: JobClass) -> ColumnElement[bool]:
    """Return whether running jobs have a worker without a row."""
    job = table(model)
    return sa.exists(sa.select(job.c.id).where(job.c.status == status(JobStatus.RUNNING), _has_no_worker(model)))


def _has_no_worker(model: JobClass) -> ColumnElement[bool]:
    job, worker = table(model), table(model.Worker)
    return ~sa.exists(sa.select(sa.literal_column("1")).where(worker.c.id == job.c.leased_by).correlate(job))


def _lost_error(reason: ColumnElement[str], worker_id: ColumnElement[str]) -> ColumnElement[Any]:
    """Return the error of a rescued job, in the shape of every other error; it names the worker that was lost."""
    message = sa.case(
        (reason == DeadReason.LOST.value, sa.func.concat("worker ", worker_id, " stopped sending heartbeats")),
        else_=sa.func.concat("worker ", worker_id, " did not renew the lease in time"),
    )
    return sa.func.jsonb_build_object("type", "Lost", "message", message, "worker", worker_id)
