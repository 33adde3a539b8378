"""A worker's tick: its heartbeat, and in the same statement whether its background components have anything to do."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements import arrivals, blockers, controls, corrections, expiry, jobs, leases, quarantine, schedules
from sa_jobqueue.statements._lanes import is_known_version
from sa_jobqueue.statements._parts import Tables, alive_until, array, statement, status
from sa_jobqueue.types import JobStatus

_MOST_READ = 1000
"""Arrivals that are looked at; more of them are worth a catch-up, even of queues that others serve."""


@statement
def tick(t: Tables) -> sa.Select[Any]:
    """Write a worker's heartbeat and return what there is to do for any worker, and for this one.

    Parameters: those of `leases.heartbeat`; `worker_id`, `types`, its id and types again; `ttl` of a heartbeat; `xmax`,
    `xip` of the worker's last catch-up, null and empty if it does not want to learn of arrivals; `thoroughly`, whether to
    look for what happens rarely; `after`, `gone_after` and `forgotten_after` of the statements in `corrections`, `leases`
    and `quarantine`.
    Shape: one row: `drain_requested_at`; `now`; `lost_in`, in how many seconds the next running job is to be rescued unless
    its lease is renewed, null if none runs; `has_expired`, `has_ended_chains` and `has_arrivals`, whether there are jobs to
    expire, chains to unblock for, and jobs of its queues and types that became visible since the catch-up; `settings`, the
    hash of `controls.of_worker`, null without rows; `schedule_in`, as `schedules.next_due`; `held`, how many jobs the
    database has it run.
    If `thoroughly`, otherwise null: `has_orphans`, `is_ahead` and `has_leftovers`, whether there is anything to rescue from
    workers without a row, to correct, and to forget; `unknown_types` and `unserved_queues`, see `jobs`.
    Changes: see `leases.heartbeat`. Clock: the database's. Locks: the worker's own row.
    Index: `ix_job_running`, every running job; `ix_job_expiring`; `ix_job_has_waiters`; `ix_job_changed`;
    `ix_job_ordering_freed`, `ix_job_ordering`; `ix_job_claim`.
    """
    beat = leases.heartbeat(t.model).cte("beat")
    running = sa.select(sa.func.count()).where(
        t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == sa.bindparam("worker_id", type_=sa.Text)
    )
    thoroughly = sa.bindparam("thoroughly", type_=sa.Boolean)

    def rarely(name: str, condition: ColumnElement[Any]) -> ColumnElement[Any]:
        return sa.case((thoroughly, condition)).label(name)

    unknown, unserved = (
        sa.func.array(pending_names(t.model).scalar_subquery())
        for pending_names in (jobs.unknown_types, jobs.unserved_queues)
    )
    return sa.select(
        beat.c.drain_requested_at,
        sa.func.now().label("now"),
        _lost_in(t).label("lost_in"),
        expiry.has_expired(t).label("has_expired"),
        blockers.has_ended_chains(t).label("has_ended_chains"),
        _has_arrivals(t).label("has_arrivals"),
        _settings(t).label("settings"),
        schedules.next_due(t.model).scalar_subquery().label("schedule_in"),
        running.scalar_subquery().label("held"),
        rarely("has_orphans", leases.has_orphans(t)),
        rarely("is_ahead", corrections.is_ahead(t)),
        rarely("has_leftovers", sa.or_(leases.has_dead_workers(t), quarantine.has_forgotten(t))),
        rarely("unknown_types", unknown),
        rarely("unserved_queues", unserved),
    ).select_from(beat)


def _lost_in(t: Tables) -> ColumnElement[Any]:
    """Return in how many seconds the first lease ends: by its own time, or with its worker's last heartbeat."""
    first = sa.func.min(t.job.c.leased_until)
    # One set by hand may be infinite, from which nothing can be subtracted.
    low: ColumnElement[Any] = sa.literal_column("'1900-01-01 00:00:00+00'::timestamptz")
    high: ColumnElement[Any] = sa.literal_column("'9000-01-01 00:00:00+00'::timestamptz")
    until = sa.case((first < low, low), (first > high, high), else_=first)
    worker_leases = (
        sa.select(sa.func.count().label("jobs"), until.label("leased_until"))
        .where(t.job.c.status == status(JobStatus.RUNNING), t.job.c.leased_by == t.worker.c.id)
        .lateral("held")
    )
    silent_at = sa.case((t.worker.c.id != sa.bindparam("worker_id", type_=sa.Text), alive_until(t.worker)))
    first = sa.func.min(sa.func.least(worker_leases.c.leased_until, silent_at))
    return (
        sa.select(sa.cast(sa.func.extract("epoch", first - sa.func.now()), sa.Double))
        .select_from(t.worker.join(worker_leases, sa.true()))
        .where(worker_leases.c.jobs > sa.literal_column("0"))
        .scalar_subquery()
    )


def _has_arrivals(t: Tables) -> ColumnElement[Any]:
    arrived_jobs = sa.union_all(*arrivals.written_since(t.job)).limit(sa.literal_column(str(_MOST_READ))).cte("written")
    is_served = sa.and_(
        arrived_jobs.c.queue == sa.any_(array("queues", sa.Text())),
        arrived_jobs.c.type_name == sa.any_(array("types", sa.Text())),
        is_known_version(arrived_jobs),
    )
    is_flood = sa.func.count() >= sa.literal_column(str(_MOST_READ))
    has_served = sa.select(sa.or_(sa.func.coalesce(sa.func.bool_or(is_served), sa.false()), is_flood)).select_from(
        arrived_jobs
    )
    wants = sa.bindparam("xmax", type_=sa.Text).is_not(None)
    return sa.case((wants, has_served.scalar_subquery()), else_=sa.false())


def _settings(t: Tables) -> ColumnElement[Any]:
    settings = controls.of_worker(t.model).subquery("settings")
    return sa.select(settings.c.hash).limit(sa.literal_column("1")).scalar_subquery()
