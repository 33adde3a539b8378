"""Claiming: the one statement that starts attempts, and when to try it next.

A lane is a queue, a fairness key and a priority. A claim probes its lanes in the order given, each from its floor: the last
key `(scheduled_at, id)` behind which everything has been seen. So it never walks the dead index entries that a
transaction, somewhere, keeps vacuum from removing; what became visible *behind* a floor is found by the transaction
that wrote it (`changed_xid`) and the snapshot of the claim before. `worker.floors` keeps the state and proves it.

Source: the snapshot difference is PgQ's (M. Kreen et al., Skype, 2007), used there for batches of a log.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    CTE,
    Double,
    Interval,
    Select,
    SmallInteger,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._lanes import ahead, due, lanes, picked, picked_by_groups, picked_by_lanes
from sa_jobqueue.statements._parts import XID, array, once_a_model, status, table
from sa_jobqueue.types import MIN_PRIORITY, JobStatus

__all__ = [
    "BEFORE",
    "CLAIMED",
    "claim",
    "claim_by_id",
    "claim_for_groups",
    "claim_from_lanes",
    "claimed_columns",
    "longest_waiting",
    "next_due",
    "remaining",
    "startable",
]

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
)
"""What a claim returns of each job, in this order, after its own three columns; what follows is of the attempt before."""

BEFORE: Final = ("last_error", "last_attempt_ended_at")
"""What a claim returns of the attempt before, null for a first one."""

MOST_ERROR_BYTES: Final = 2**17
"""Of an error as it is stored. What a worker writes is smaller; a larger one, written by hand, a claim does not return."""


@once_a_model
def claim(model: type[JobMixin[Any]], *, changed: bool, shared: bool = False) -> Select[Any]:
    """Start an attempt on up to `limit` due jobs of the lanes given, in the order of the lanes, then by due time.

    Parameters: lanes as the arrays `queues`, `priorities`, `floor_at`, `floor_id`; `types` the worker knows; `limit`;
    `worker_id`; `grace` added to a job's own timeout for its lease. With `changed` also `xmax` and `xip` of the
    snapshot before, as text, and `highest_floor`: what those transactions made due behind the floors, or next of an ordering
    key, is taken first.
    With `shared` the lanes lie in blocks, from `firsts` to `lasts` (positions from 1), of which each gives at most its
    number in `quotas`; and what lies behind the floors takes at most half of the limit, rounded up (`most_behind`): with
    `changed` it is looked for in the first `lanes_behind` lanes alone.
    Shape: one row a job, `now, xmax, xip`, `CLAIMED` and `BEFORE`; a single row with a null id for none. Unordered.
    Changes: pending -> running; `attempt` + 1; `leased_by`, `leased_until`, `started_at`.
    Clock: the database's, at the start of the transaction.
    Locks: the rows taken, until that transaction ends, but not their keys: a foreign key that an application is just
    pointing at a job does not hide it. Rows held by others are skipped, not awaited.
    Obliges: run it alone in a READ COMMITTED transaction of its own and commit at once, before any handler runs.
    Index: `ix_job_claim`, one probe a lane; with `changed`, `ix_job_changed` and `ix_job_ordering_freed`. For a job with an
    ordering key also `ix_job_ordering` and `uq_job_ordering`, whose violation means that another claim has just started one.
    """
    return started(model, picked(model, changed=changed, shared=shared).cte("picked"))


@once_a_model
def claim_from_lanes(model: type[JobMixin[Any]]) -> Select[Any]:
    """Start an attempt on due jobs of lanes, of each up to its own quota: a shared `claim` whose blocks are a lane each.

    Parameters: as of `claim`, neither `changed` nor `shared`, and `quotas`, as many as lanes.
    Shape, Changes, Clock, Locks, Obliges: as `claim`. The lanes are read in turn until `limit` is reached.
    Index: as `claim`, `ix_job_claim`; `ix_job_ordering` and `uq_job_ordering`. A statement of its own, for blocks are
    laterals within laterals: of 100 lanes those took the server 0.4 ms more.
    """
    return started(model, picked_by_lanes(model).cte("picked"))


@once_a_model
def claim_for_groups(model: type[JobMixin[Any]], *, changed: bool, excluding: bool = False) -> Select[Any]:
    """Start an attempt on due jobs of several groups of lanes: of each for its own types, and up to its own quota.

    Parameters: as of a shared `claim`; of all the groups together `limit`, lanes, blocks, `types` and `xip`; of each, as
    arrays, `group_quota` and where in those its blocks and types begin and end: `group_first_share`, `group_last_share`,
    `group_first_type`, `group_last_type`. With `changed` also `group_xmax`, `group_highest_floor`, `group_most_behind`, and
    `group_first_xip`, `group_last_xip`; `group_first_lane`, `group_last_lane` are where it looks behind the floors; and
    `xmax`, the lowest of theirs. With `excluding` also `excluded`, ids of jobs that it leaves as they are.
    Shape, Changes, Clock, Locks, Obliges: as `claim`. The groups are read in turn until `limit` is reached.
    Index: as `claim`, `ix_job_claim`, with `changed` `ix_job_changed` and `ix_job_ordering_freed`; `ix_job_ordering` and
    `uq_job_ordering`.
    """
    return started(model, picked_by_groups(model, changed=changed, excluding=excluding).cte("picked"))


@once_a_model
def startable(model: type[JobMixin[Any]]) -> Select[Any]:
    """Select the ids of jobs that a claim would start, held by others or not, of each lane up to its quota.

    Parameters: as `claim_from_lanes`, without its worker. Shape: `id`, at most `limit`. Clock: the database's. Locks: none.
    Index: `ix_job_claim`, one probe a lane; `ix_job_ordering` and `uq_job_ordering` as in `claim`.
    """
    return picked_by_lanes(model, takes=False)


@once_a_model
def claim_by_id(model: type[JobMixin[Any]]) -> Select[Any]:
    """Start an attempt on those of the jobs named that are pending, due or not.

    Parameters: `ids`; `worker_id`; `grace`. Shape, Changes, Clock, Locks: as `claim`. Index: the primary key.
    """
    job = table(model)
    # By the text of its status, which no partial index can serve: the primary key stays the only way to the row.
    pending = select(job.c.id).where(
        job.c.id == any_(array("ids", id_parameter(model.__jobqueue__))),
        cast(job.c.status, Text) == literal_column("'pending'"),
    )
    return started(model, pending.with_for_update(key_share=True, skip_locked=True).cte("picked"))


@once_a_model
def next_due(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return how long until the next job of the lanes is due.

    Parameters: `queues`, `fairness_keys`, `priorities`, `types`; `since`, null for now: jobs due by then are left to the
    claim that ran at that time. Jobs that became due since then are included, or they would wait for the next poll.
    Shape: one row, seconds from now as a float, below zero for what is due since then; null when nothing is scheduled.
    Index: `ix_job_claim`, one probe a lane, from `since` on.
    """
    job = table(model)
    given = func.unnest(array("queues", Text()), array("fairness_keys", Text()), array("priorities", SmallInteger()))
    names = (column("queue", Text), column("fairness_key", Text), column("priority", SmallInteger))
    lane = given.table_valued(*names).render_derived("lane")
    probe = (
        select(job.c.scheduled_at)
        .where(
            job.c.status == status(JobStatus.PENDING),
            job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"),
            job.c.queue == lane.c.queue,
            job.c.fairness_key == lane.c.fairness_key,
            job.c.priority == lane.c.priority,
            job.c.scheduled_at > func.coalesce(bindparam("since", None, type_=TIMESTAMP(timezone=True)), func.now()),
            job.c.type_name == any_(array("types", Text())),
        )
        .order_by(job.c.scheduled_at, job.c.id)
        .limit(literal_column("1"))
        .lateral("probe")
    )
    wait = func.min(probe.c.scheduled_at) - func.now()
    return select(cast(func.extract("epoch", wait), Double)).select_from(lane.join(probe, true()))


@once_a_model
def longest_waiting(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return which of the lanes has the job ahead of its floor that has been due the longest.

    Parameters: as `claim`, without its limit and its worker. Shape: `(queue, fairness_key, priority)`, no row where nothing
    is due.
    Locks: none. Index: `ix_job_claim`, one probe a lane; `ix_job_ordering` and `uq_job_ordering` as in `claim`.
    """
    job = table(model)
    lane = lanes(model, "lane")
    probe = ahead(due(job), job, lane).with_only_columns(job.c.scheduled_at).limit(literal_column("1")).lateral("probe")
    first = select(lane.c.queue, lane.c.fairness_key, lane.c.priority).select_from(lane.join(probe, true()))
    return first.order_by(probe.c.scheduled_at).limit(literal_column("1"))


@once_a_model
def remaining(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return whether work is left in the lanes: a job that a claim would start, or an ended chain that still blocks jobs.

    Parameters: as `claim`, without its limit and its worker. Shape: one row `(is_due, is_unsettled)`, of one snapshot.
    Locks: the first due job of each lane, for the moment of the statement; what others hold is skipped, as by a claim.
    Index: `ix_job_claim`, one probe a lane, and `ix_job_has_waiters`; `ix_job_ordering` and `uq_job_ordering` as in `claim`.
    """
    job, root = table(model), table(model).alias("root")
    lane = lanes(model, "lane")
    first = ahead(due(job), job, lane).limit(literal_column("1"))
    probe = first.with_for_update(key_share=True, skip_locked=True).lateral("probe")
    startable = select(probe.c.id).select_from(lane.join(probe, true())).limit(literal_column("1")).cte("startable")
    chains_to_unblock = (
        select(root.c.id).where(root.c.has_waiters, root.c.chain_completed_at.is_not(None)).order_by(root.c.id)
    ).limit(literal_column("1"))
    columns: list[ColumnElement[Any]] = [
        select(startable.c.id).scalar_subquery().is_not(None).label("is_due"),
        chains_to_unblock.scalar_subquery().is_not(None).label("is_unsettled"),
    ]
    return select(*columns)


def started(model: type[JobMixin[Any]], picked: CTE) -> Select[Any]:
    """Start an attempt on each of the rows picked; the shape of `claim`, and its duties."""
    job = table(model)
    claimed = (
        update(job)
        # ARRAY(SELECT ...) runs once; a join with the CTE has plans that rescan the table for every row of it.
        .where(job.c.id == any_(func.array(select(picked.c.id).scalar_subquery())))
        .values(
            status=status(JobStatus.RUNNING),
            attempt=job.c.attempt + 1,
            started_at=func.now(),
            leased_by=bindparam("worker_id", type_=Text),
            leased_until=func.now() + job.c.timeout + bindparam("grace", type_=Interval),
            changed_xid=XID,
        )
        .returning(*claimed_columns(model))
        .cte("claimed")
    )
    here = select(literal_column("1").label("one")).subquery("here")
    return select(*as_of(), *(claimed.c[name] for name in (*CLAIMED, *BEFORE))).select_from(here.outerjoin(claimed, true()))


def as_of() -> list[ColumnElement[Any]]:
    """Return `now, xmax, xip`: what floors and baseline move by."""
    return [
        func.now().label("now"),
        literal_column("pg_snapshot_xmax(pg_current_snapshot())::text", Text).label("xmax"),
        literal_column("ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x)", ARRAY(Text)).label("xip"),
    ]


def claimed_columns(model: type[JobMixin[Any]]) -> list[ColumnElement[Any]]:
    """Return `CLAIMED` and `BEFORE` of a job whose attempt has begun.

    Each as Python can hold it: a time far out, written by hand, must not fail the others.
    Index: `pk_job_attempt`, one probe for each job that was tried before, none for the others.
    """
    job, attempt = table(model), table(model.Attempt)
    ended_at = (
        select(bounded(attempt.c.ended_at))
        .where(attempt.c.job_id == job.c.id, attempt.c.attempt == job.c.attempt - literal_column("1"))
        .correlate(job)
        .scalar_subquery()
    )
    was_tried = job.c.attempt > literal_column("1")
    is_small = func.pg_column_size(job.c.last_error) <= literal_column(str(MOST_ERROR_BYTES))
    return [
        *(bounded(job.c[name]).label(name) if name == "created_at" else job.c[name] for name in CLAIMED),
        case((and_(was_tried, is_small), job.c.last_error)).label("last_error"),
        case((was_tried, ended_at)).label("last_attempt_ended_at"),
    ]


def bounded(instant: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return an instant within what Python can hold."""
    first: ColumnElement[Any] = literal_column("'0001-01-02 00:00:00+00'")
    last: ColumnElement[Any] = literal_column("'9999-12-30 00:00:00+00'")
    return func.least(func.greatest(instant, first), last, type_=instant.type)
