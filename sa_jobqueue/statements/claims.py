"""Claiming: the one statement that starts attempts, and what else reads which jobs are due.

A lane is a queue, a fairness key and a priority, for the job types of a partition. A claim scans its lanes in the order
given, each from its cursor: the key `(scheduled_at, id)` up to which everything that was visible has been claimed. So it
never walks the dead index entries that an open transaction keeps vacuum from removing. Jobs that became visible behind a
cursor, the late arrivals, are given to it by id (`arrivals.catch_up`). `worker.claim.cursors` has the state and the proof.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements._lanes import late, scan
from sa_jobqueue.statements._parts import XID, Tables, statement, status, table_oid
from sa_jobqueue.statements.arrivals import here
from sa_jobqueue.types import JobStatus

__all__ = ["BEFORE", "CANDIDATE", "CLAIMED", "TABLE", "candidates", "claim", "claimed_columns"]

CLAIMED: Final = (
    "id",
    "type_name",
    "queue",
    "fairness_key",
    "priority",
    "chain_id",
    "chain_type_name",
    "chain_index",
    "input",
    "input_version",
    "attempt",
    "max_attempts",
    "timeout",
    "created_at",
    "scheduled_at",
    "started_at",
    "trace_context",
    "chain_trace_context",
    "ordering_key",
    "rate_cost",
    "deadline",
)
"""Columns of a job that a claim returns, in this order, after the column `now`. Those of `BEFORE` and `TABLE` follow."""

BEFORE: Final = ("last_error", "last_attempt_ended_at")
"""Columns of the previous attempt that a claim returns; null for a first attempt."""

TABLE: Final = ("table_oid",)
"""The OID of the table that a claim has written to."""

MOST_ERROR_BYTES: Final = 2**17
"""Maximum size of a stored error that a claim returns. Workers write smaller ones; larger ones were written by hand."""


CANDIDATE: Final = (
    "id",
    "type_name",
    "queue",
    "fairness_key",
    "priority",
    "chain_id",
    "chain_index",
    "created_at",
    "scheduled_at",
    "attempt",
    "deduplication_key",
    "ordering_key",
    "input",
)
"""Columns of each candidate, in this order, after the statement's own two columns."""


@statement
def claim(t: Tables) -> sa.Select[Any]:
    """Start an attempt on up to `limit` due jobs: late arrivals first, by id, then those of the lanes of a plan.

    Parameters: `late_ids`, `late_xids` (the transaction that changed each last, as text); the plan, `types`, `apart` and
    `limit` as of `_lanes.scan`; `version_types`, `versions` as of `_lanes.is_known_version`; `worker_id`; `grace` added to a
    job's own timeout, or its deadline, for its lease. No job of `late_ids` lies after the cursor of its lane: a statement
    does not skip the rows that it has locked itself.
    Shape: one row a job, `now`, `CLAIMED`, `BEFORE` and `TABLE`; a single row with a null id for none. Unordered.
    Changes: pending -> running; `attempt` + 1; `leased_by`, `leased_until`, `started_at`.
    Clock: the database's, at the start of the transaction.
    Locks: the rows taken, until that transaction ends, but not their keys: a foreign key that an application is just
    pointing at a job does not hide it. Rows held by others are skipped, not awaited.
    Obliges: run it in a READ COMMITTED transaction that commits immediately, before any handler runs; alone in it, unless a
    limit is counted under a lock before it.
    Index: `ix_job_claim`, one probe a lane; the primary key for late arrivals. For a job with an ordering key also
    `ix_job_ordering` and `uq_job_ordering`, whose violation means that another claim has just started one.
    """
    due_jobs = sa.union_all(late(t, locks=True), scan(t, locks=True))
    # The LIMIT stops the scans as soon as enough rows are locked.
    return _started(t, due_jobs.limit(sa.bindparam("limit", type_=sa.Integer)).cte("picked"))


@statement
def candidates(t: Tables, *, inputs: bool) -> sa.Select[Any]:
    """Read the jobs that a claim with these parameters would start, without locks: for a selector, or to find a refused job.

    Parameters: as `claim`, without its worker. With `inputs` payloads are read as well.
    Shape: `now`, `changed_xid` as text, and `CANDIDATE` a job, unordered; a single row with a null id for none. Jobs that
    another claim is just starting are among them.
    Index: `ix_job_claim`, one probe a lane; the primary key; for a job with an ordering key `ix_job_ordering` and
    `uq_job_ordering`.
    """
    due_jobs = sa.union_all(late(t, locks=False), scan(t, locks=False)).limit(sa.bindparam("limit", type_=sa.Integer))
    picked = due_jobs.cte("picked")
    columns: dict[str, ColumnElement[Any]] = {name: t.job.c[name] for name in CANDIDATE}
    columns["created_at"] = _bounded(t.job.c.created_at)
    if not inputs:
        columns["input"] = sa.cast(sa.null(), t.job.c.input.type)
    read = (
        sa.select(
            sa.cast(t.job.c.changed_xid, sa.Text).label("changed_xid"), *(columns[name].label(name) for name in CANDIDATE)
        )
        .where(t.job.c.id == sa.any_(sa.func.array(sa.select(picked.c.id).scalar_subquery())))
        .subquery("read")
    )
    return sa.select(sa.func.now().label("now"), *read.c).select_from(here().outerjoin(read, sa.true()))


def _started(t: Tables, picked: sa.CTE) -> sa.Select[Any]:
    """Start an attempt on each of the rows picked; the shape of `claim`, and its duties."""
    claimed = (
        sa.update(t.job)
        # ARRAY(SELECT ...) runs once; a join with the CTE has plans that rescan the table for every row of it.
        .where(t.job.c.id == sa.any_(sa.func.array(sa.select(picked.c.id).scalar_subquery())))
        .values(
            status=status(JobStatus.RUNNING),
            attempt=t.job.c.attempt + 1,
            started_at=sa.func.now(),
            leased_by=sa.bindparam("worker_id", type_=sa.Text),
            leased_until=sa.func.least(sa.func.now() + t.job.c.timeout, t.job.c.deadline, type_=t.job.c.deadline.type)
            + sa.bindparam("grace", type_=sa.Interval),
            changed_xid=XID,
        )
        .returning(*claimed_columns(t))
        .cte("claimed")
    )
    columns = (claimed.c[name] for name in (*CLAIMED, *BEFORE, *TABLE))
    return sa.select(sa.func.now().label("now"), *columns).select_from(here().outerjoin(claimed, sa.true()))


def claimed_columns(t: Tables) -> list[ColumnElement[Any]]:
    """Return `CLAIMED`, `BEFORE` and `TABLE` of a job whose attempt has begun.

    Each as Python can hold it: a time far out, written by hand, must not fail the others.
    Index: `pk_job_attempt`, one probe for each job that was tried before, none for the others.
    """
    ended_at = (
        sa.select(_bounded(t.attempt.c.ended_at))
        .where(t.attempt.c.job_id == t.job.c.id, t.attempt.c.attempt == t.job.c.attempt - sa.literal_column("1"))
        .correlate(t.job)
        .scalar_subquery()
    )
    was_tried = t.job.c.attempt > sa.literal_column("1")
    is_small = sa.func.pg_column_size(t.job.c.last_error) <= sa.literal_column(str(MOST_ERROR_BYTES))
    return [
        *(_bounded(t.job.c[name]).label(name) if name == "created_at" else t.job.c[name] for name in CLAIMED),
        sa.case((sa.and_(was_tried, is_small), t.job.c.last_error)).label("last_error"),
        sa.case((was_tried, ended_at)).label("last_attempt_ended_at"),
        table_oid(t.job),
    ]


def _bounded(instant: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return an instant within what Python can hold."""
    first: ColumnElement[Any] = sa.literal_column("'0001-01-02 00:00:00+00'")
    last: ColumnElement[Any] = sa.literal_column("'9999-12-30 00:00:00+00'")
    return sa.func.least(sa.func.greatest(instant, first), last, type_=instant.type)
