"""Reads for the answer to "why is this job not running?": its workers, the jobs ahead of it, and the rate of starts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql.elements import Grouping

from sa_jobqueue.statements._lanes import first_waiting, running_of
from sa_jobqueue.statements._parts import Tables, array, block, number, statement, status
from sa_jobqueue.statements.limits import RATE, STATE, newest_state
from sa_jobqueue.types import JobStatus


@statement
def rates(t: Tables) -> sa.Select[Any]:
    """Return the rates of a queue, of fairness keys of it and of a job type, and the starts under them.

    Parameters: `queue`, `fairness_keys` of it, empty for its own; `type_name`. Shape: `(what, name, fairness_key, now)`,
    `limits.RATE` and `limits.STATE` a row that has a rate, queues first. Clock: the database's `now()`. Locks: none.
    Index: the primary keys, from their ends in `rate_state`.
    """
    of_key = t.queue.c.fairness_key == sa.any_(array("fairness_keys", sa.Text()))
    of_queues = (t.queue.c.name == sa.bindparam("queue", type_=sa.Text)) & of_key
    of_type = t.job_type.c.type_name == sa.bindparam("type_name", type_=sa.Text)
    every = [
        sa.select(
            sa.literal_column(f"'{kind}'", sa.Text()).label("what"),
            name.label("name"),
            fairness_key.label("fairness_key"),
            sa.func.now().label("now"),
            *(settings.c[column] for column in RATE),
            *(state.c[column] for column in STATE),
        )
        .select_from(settings.outerjoin(state, sa.true()))
        .where(where, settings.c.rate_limit.is_not(None))
        for kind, settings, name, fairness_key, where in (
            ("queue", t.queue, t.queue.c.name, t.queue.c.fairness_key, of_queues),
            ("type", t.job_type, t.job_type.c.type_name, sa.literal_column("''", sa.Text()), of_type),
        )
        for state in (newest_state(t, settings),)
    ]
    limited_rows = sa.union_all(*every).subquery("found")
    return sa.select(*limited_rows.c).order_by(limited_rows.c.what, limited_rows.c.name, limited_rows.c.fairness_key)


@statement
def holders(t: Tables) -> sa.Select[Any]:
    """Return which workers run jobs of a queue, of a fairness key or of a type, how many each, and its longest-running job.

    Parameters: `queue`, `fairness_key`, `type_name`, null for any. Shape: `(worker_id, type_name, n, job_id, started_at)`
    for each worker and type, the longest first. Locks: none. Index: `ix_job_running`, every running job.
    """
    queue, fairness_key = sa.bindparam("queue", type_=sa.Text), sa.bindparam("fairness_key", type_=sa.Text)
    type_name = sa.bindparam("type_name", type_=sa.Text)
    return (
        sa.select(
            t.job.c.leased_by.label("worker_id"),
            t.job.c.type_name,
            sa.func.count().label("n"),
            Grouping(sa.func.array_agg(aggregate_order_by(t.job.c.id, t.job.c.started_at)))[1].label("job_id"),
            sa.func.min(t.job.c.started_at).label("started_at"),
        )
        .where(
            t.job.c.status == status(JobStatus.RUNNING),
            queue.is_(None) | (t.job.c.queue == queue),
            fairness_key.is_(None) | (t.job.c.fairness_key == fairness_key),
            type_name.is_(None) | (t.job.c.type_name == type_name),
        )
        .group_by(t.job.c.leased_by, t.job.c.type_name)
        .order_by(sa.func.min(t.job.c.started_at))
    )


@statement
def waited_for(t: Tables) -> sa.Select[Any]:
    """Return chains that a job still waits for, those that have ended first: they failed, or are about to be passed on.

    Parameters: `job_id`, `limit`. Shape: `(chain_id, outcome, last_job_id)`; `outcome` is null for a chain that is open.
    Locks: none. Index: `pk_job_blocker`, every edge of the job; the primary key and `uq_job_chain`, a probe each.
    """
    root, later = t.job.alias("root"), t.job.alias("later")
    last = (
        sa.select(later.c.id)
        .where(later.c.root_id == root.c.id)
        .order_by(later.c.chain_index.desc())
        .limit(sa.literal_column("1"))
        .correlate(root)
        .scalar_subquery()
    )
    outcome = sa.case((root.c.chain_completed_at.is_not(None), sa.func.coalesce(root.c.chain_status, root.c.status)))
    return (
        sa.select(
            root.c.id.label("chain_id"), outcome.label("outcome"), sa.func.coalesce(last, root.c.id).label("last_job_id")
        )
        .select_from(t.blocker.join(root, root.c.id == t.blocker.c.blocked_by_chain_id))
        .where(t.blocker.c.job_id == t.id("job_id"), ~t.blocker.c.is_resolved)
        .order_by(root.c.chain_completed_at.is_(None), t.blocker.c.index)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def locked_by(t: Tables) -> sa.Select[Any]:
    """Return the transaction in progress that locked a job's row last; the row's `xmax` names it.

    Parameters: `job_id`. Shape: `(pid, name, user, kind, state, query, locked_for)`; of a prepared transaction its name,
    user and age only, of sessions that this role may not see pid, name and user; no row where the row is not locked, or
    by several transactions that share the lock, or by the one that asks.
    Locks: none. Index: the primary key.
    """
    job = t.job.alias("job")
    return _locked_by(job, job.c.id == t.id("job_id"))


@statement
def schedule_locked_by(t: Tables) -> sa.Select[Any]:
    """Return the transaction in progress that locked a schedule's row last. Parameters: `name`. As `locked_by`."""
    schedule = t.schedule.alias("schedule")
    return _locked_by(schedule, schedule.c.name == sa.bindparam("name", type_=sa.Text))


def _locked_by(row: Any, where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    lock = sa.table("pg_locks", *map(sa.column, ("locktype", "transactionid", "pid", "granted")), schema="pg_catalog")
    columns = ("pid", "application_name", "usename", "backend_type", "state", "query", "xact_start")
    session = sa.table("pg_stat_activity", *map(sa.column, columns), schema="pg_catalog")
    prepared = sa.table(
        "pg_prepared_xacts", *map(sa.column, ("transaction", "gid", "owner", "prepared")), schema="pg_catalog"
    )
    xmax: sa.ColumnClause[Any] = sa.literal_column(f"{row.name}.xmax")
    holds_row = (lock.c.locktype == sa.literal_column("'transactionid'")) & lock.c.granted & (lock.c.transactionid == xmax)
    return (
        sa.select(
            lock.c.pid,
            sa.func.coalesce(session.c.application_name, prepared.c.gid).label("name"),
            sa.func.coalesce(session.c.usename, prepared.c.owner).label("user"),
            session.c.backend_type.label("kind"),
            session.c.state,
            session.c.query,
            sa.cast(
                sa.func.clock_timestamp() - sa.func.coalesce(session.c.xact_start, prepared.c.prepared), sa.Interval
            ).label("locked_for"),
        )
        .select_from(
            row.join(lock, holds_row)
            .outerjoin(session, session.c.pid == lock.c.pid)
            .outerjoin(prepared, lock.c.pid.is_(None) & (prepared.c.transaction == xmax))
        )
        .where(where, lock.c.pid.is_distinct_from(sa.func.pg_backend_pid()))
        .limit(sa.literal_column("1"))
    )


@statement
def ahead(t: Tables) -> sa.Select[Any]:
    """Count the due jobs of a fairness key in a queue that go before one of it: of a higher priority, or due before it.

    Parameters: `queue`, `fairness_key`, `priority`, `scheduled_at`, `id` of that one; `limit`: it counts no further.
    Shape: `(n,)`. Locks: none. Index: `ix_job_claim`, at most `limit` entries and those that have ended since a vacuum.
    """
    priority = sa.bindparam("priority", type_=sa.Integer)
    place = sa.tuple_(t.job.c.scheduled_at, t.job.c.id) < sa.tuple_(
        sa.bindparam("scheduled_at", type_=t.job.c.scheduled_at.type),
        t.id("id"),
    )
    before = (
        sa.select(sa.literal_column("1"))
        .where(
            t.job.c.status == status(JobStatus.PENDING),
            t.job.c.priority >= sa.literal_column("'-9'"),
            t.job.c.queue == sa.bindparam("queue", type_=sa.Text),
            t.job.c.fairness_key == sa.bindparam("fairness_key", type_=sa.Text),
            t.job.c.scheduled_at <= sa.func.now(),
            (t.job.c.priority > priority) | ((t.job.c.priority == priority) & place),
        )
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("before")
    )
    return sa.select(sa.func.count()).select_from(before)


@statement
def recently_ended(t: Tables) -> sa.Select[int, Any]:
    """Count the jobs of a fairness key in a queue that completed within the last while.

    Parameters: `queue`, `fairness_key`, `window` (an interval), `transactions` (how far back to look in those), `limit`.
    Shape: `(n, seconds)`: how many, and since when the first of them, in seconds; null where there was none.
    Locks: none. Index: `ix_job_history`: only the pages that changed in the last `transactions` transactions.
    """
    newest = sa.cast(sa.cast(sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot()), sa.Text), sa.BigInteger)
    lately = (
        sa.select(t.job.c.completed_at)
        .where(
            block(number(t.job)) >= block(newest - sa.bindparam("transactions", type_=sa.BigInteger)),
            t.job.c.status == status(JobStatus.COMPLETED),
            t.job.c.queue == sa.bindparam("queue", type_=sa.Text),
            t.job.c.fairness_key == sa.bindparam("fairness_key", type_=sa.Text),
            t.job.c.completed_at > sa.func.now() - sa.bindparam("window", type_=sa.Interval),
        )
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("lately")
    )
    since = sa.cast(sa.func.extract("epoch", sa.func.now() - sa.func.min(lately.c.completed_at)), sa.Double)
    return sa.select(sa.func.count(), since).select_from(lately)


@statement
def last_served(t: Tables) -> sa.Select[Any]:
    """Return the last minute in which jobs of a queue ran or ended, by the figures that workers record.

    Parameters: `queue`, `type_name` (null for any), `within` (an interval). Shape: `(minute,)`, null for none. Clock: the
    database's `now()`. Locks: none. Index: `pk_job_minute`, the minutes of the interval.
    """
    minute, type_name = t.minute, sa.bindparam("type_name", type_=sa.Text)
    ran = minute.c.completed + minute.c.failed + minute.c.died + minute.c.running
    return sa.select(sa.func.max(minute.c.minute)).where(
        minute.c.minute > sa.func.now() - sa.bindparam("within", type_=sa.Interval),
        minute.c.queue == sa.bindparam("queue", type_=sa.Text),
        type_name.is_(None) | (minute.c.type_name == type_name),
        ran > sa.literal_column("0"),
    )


@statement
def pending_of(t: Tables) -> sa.Select[Any]:
    """Count the pending jobs of a type in a queue. Parameters: `queue`, `type_name`, `limit`: it counts no further.

    Shape: `(n,)`. Locks: none. Index: `ix_job_claim`, the queue's entries up to the limit.
    """
    jobs = (
        sa.select(sa.literal_column("1"))
        .where(
            t.job.c.status == status(JobStatus.PENDING),
            t.job.c.priority >= sa.literal_column("'-9'"),
            t.job.c.queue == sa.bindparam("queue", type_=sa.Text),
            t.job.c.type_name == sa.bindparam("type_name", type_=sa.Text),
        )
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("jobs")
    )
    return sa.select(sa.func.count()).select_from(jobs)


@statement
def started_lately(t: Tables) -> sa.Select[Any]:
    """Return whether a job of a queue has started within the last while, which runs, or has completed since.

    Parameters: `queue`, `within` (an interval). Shape: `(bool,)`. Clock: the database's. Locks: none.
    Index: `ix_job_running`, every running job; `ix_job_history`, the pages of the last few transactions.
    """
    newest = sa.cast(sa.cast(sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot()), sa.Text), sa.BigInteger)
    since = sa.func.clock_timestamp() - sa.bindparam("within", type_=sa.Interval)
    of_queue = t.job.c.queue == sa.bindparam("queue", type_=sa.Text), t.job.c.started_at > since
    runs = sa.exists(sa.literal_column("1")).where(t.job.c.status == status(JobStatus.RUNNING), *of_queue)
    lately = block(number(t.job)) >= block(newest - sa.literal_column("10000", sa.BigInteger))
    completed = t.job.c.status == status(JobStatus.COMPLETED)
    return sa.select(runs | sa.exists(sa.literal_column("1")).where(lately, completed, *of_queue))


@statement
def before_in_order(t: Tables) -> sa.Select[Any]:
    """Return the job of an ordering key that holds another one of it up: one that runs, else the first in order.

    Parameters: `ordering_key`. Shape: `(id, status)`, no row where none is open. Locks: none.
    Index: `uq_job_ordering`; `ix_job_ordering`, up to the first; the primary key.
    """
    job, key = t.job, sa.bindparam("ordering_key", type_=sa.Text)
    # Scalar subqueries: the second is asked for only where the first has none.
    of_key = [
        jobs_of_key(job.alias(name), key).scalar_subquery()
        for jobs_of_key, name in ((running_of, "other"), (first_waiting, "first"))
    ]
    return sa.select(job.c.id, job.c.status).where(job.c.id == sa.func.coalesce(*of_key))
