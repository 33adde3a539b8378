"""Workers: listing them, and asking some of them to drain. Their heartbeats are in `leases`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from sa_jobqueue.statements._parts import Tables, alike, alive_until, array, bound, statement, status
from sa_jobqueue.types import JobStatus

_OTHERS = ("heartbeat_pause", "progress", "concurrency_requested")
"""Columns that a listing leaves out."""


@bound
def matching(t: Tables, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a `WorkerFilter`. A `*` in a name stands for any characters."""
    conditions = alike(where, {"ids": t.worker.c.id})
    if where.names:
        conditions.append(sa.or_(*(t.worker.c.name.like(_pattern(name), escape="\\") for name in where.names)))
    if where.queues:
        conditions.append(t.worker.c.queues.overlap(sa.literal(list(where.queues), ARRAY(sa.Text))))
    return conditions


def _pattern(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


@bound
def page(t: Tables, *conditions: sa.ColumnElement[bool], after: tuple[str, str] | None = None, limit: int) -> sa.Select[Any]:
    """Return workers as of their last heartbeat, by name and id.

    Shape: up to `limit` rows of all columns but `_OTHERS`, those behind the name and id `after`; then `silent_for`, the
    time since the last heartbeat and its pause, and `running`, how many jobs the worker has leased.
    Clock: the database's. Locks: none. Index: `ix_job_running`, a probe a worker.
    """
    running = (
        sa.select(sa.func.count())
        .where(t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == t.worker.c.id)
        .correlate(t.worker)
        .scalar_subquery()
    )
    since = t.worker.c.heartbeat_at + t.worker.c.heartbeat_pause
    silent = sa.func.greatest(sa.func.clock_timestamp() - since, sa.literal_column("interval '0'"), type_=sa.Interval)
    columns = [column for column in t.worker.c if column.name not in _OTHERS]
    chosen = sa.select(*columns, silent.label("silent_for"), running.label("running")).where(*conditions)
    if after is not None:
        chosen = chosen.where(
            sa.tuple_(t.worker.c.name, t.worker.c.id) > sa.tuple_(*(sa.literal(part, sa.Text) for part in after))
        )
    return chosen.order_by(t.worker.c.name, t.worker.c.id).limit(limit)


@statement
def running(t: Tables) -> sa.Select[Any]:
    """Count the jobs that workers run, by worker and job type.

    Parameters: `ids`, of workers. Shape: `(worker_id, type_name, jobs, since, job_id)`, by worker, the longest running
    first, with the job that runs longest. Locks: none. Index: `ix_job_running`, a probe a worker.
    """
    job_ids = sa.func.array_agg(aggregate_order_by(t.job.c.id, t.job.c.started_at), type_=ARRAY(t.job.c.id.type))
    since = sa.func.min(t.job.c.started_at).label("since")
    return (
        sa.select(t.job.c.leased_by.label("worker_id"), t.job.c.type_name, sa.func.count().label("jobs"), since)
        .add_columns(job_ids[1].label("job_id"))
        .where(t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == sa.any_(array("ids", sa.Text())))
        .group_by(t.job.c.leased_by, t.job.c.type_name)
        .order_by(t.job.c.leased_by, since)
    )


@statement
def types_of_later(t: Tables) -> sa.Select[Any]:
    """Return those of some job types that a live worker handles which has started after another worker.

    Parameters: `worker_id`, of the other one; `types`; `ttl` of a heartbeat.
    Shape: `(type_name,)`, distinct. Clock: the database's. Locks: none. Index: all of `worker`, which is small.
    """
    worker, later = t.worker.alias("own"), t.worker.alias("later")
    started = sa.tuple_(later.c.started_at, later.c.id) > sa.tuple_(worker.c.started_at, worker.c.id)
    handled = sa.func.unnest(later.c.job_types).table_valued("type_name").render_derived("handled")
    return (
        sa.select(handled.c.type_name)
        .select_from(worker.join(later, started).join(handled, sa.true()))
        .where(worker.c.id == sa.bindparam("worker_id", type_=sa.Text), alive_until(later) > sa.func.clock_timestamp())
        .where(handled.c.type_name == sa.any_(array("types", sa.Text())))
        .distinct()
    )


@statement
def earlier(t: Tables) -> sa.Select[Any]:
    """Return the ids of live workers that handle some of the job types and have started before another worker.

    Parameters: as of `types_of_later`. Shape: `(id,)`, in their order. Clock, Locks, Index: as there.
    """
    worker, before = t.worker.alias("own"), t.worker.alias("before")
    started = sa.tuple_(before.c.started_at, before.c.id) < sa.tuple_(worker.c.started_at, worker.c.id)
    return (
        sa.select(before.c.id)
        .select_from(worker.join(before, started))
        .where(worker.c.id == sa.bindparam("worker_id", type_=sa.Text), alive_until(before) > sa.func.clock_timestamp())
        .where(before.c.job_types.op("&&", is_comparison=True)(array("types", sa.Text())))
        .order_by(before.c.id)
    )


@bound
def ids(t: Tables, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the ids of workers, in their order. Shape: `(id,)`. Locks: none."""
    return sa.select(t.worker.c.id).where(*conditions).order_by(t.worker.c.id)


@bound
def request(t: Tables, /, *conditions: sa.ColumnElement[bool], **values: Any) -> sa.Update:
    """Ask workers for something: set columns that each reads with its next heartbeat.

    Shape: `(id,)` per worker, unordered. Changes: `values`.
    Locks: the workers' rows in the order of their ids, until the transaction ends. A heartbeat waits for them.
    Obliges: commit immediately: a worker whose heartbeats fail releases its jobs.
    """
    worker = t.worker
    chosen = ids(t.model, *conditions).with_for_update(key_share=True).cte("chosen")
    return sa.update(worker).where(worker.c.id == chosen.c.id).values(**values).returning(worker.c.id)


@bound
def first_request(t: Tables) -> sa.ColumnElement[Any]:
    """Return when a worker was first asked to drain: the database's `now()` if it was not."""
    return sa.func.coalesce(t.worker.c.drain_requested_at, sa.func.now())
