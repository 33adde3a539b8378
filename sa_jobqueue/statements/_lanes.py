"""Scans of lanes, and the single definition of which jobs are eligible to start."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement, Grouping
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models.base import Xid8
from sa_jobqueue.statements._arrays import ArrayParameter
from sa_jobqueue.statements._parts import LAST_ATTEMPT, Tables, array, element, relation, status
from sa_jobqueue.types import MIN_PRIORITY, JobStatus


def is_eligible(job: sa.Table, types: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Return what must be true of a pending job that may start now, if its type is one of `types`."""
    return [
        job.c.scheduled_at <= sa.func.now(),
        job.c.type_name == sa.any_(types),
        is_known_version(job),
        job.c.attempt < LAST_ATTEMPT,
        job.c.expires_at.is_(None) | (job.c.expires_at > sa.func.now()),
        job.c.ordering_key.is_(None) | _is_next(job),
    ]


def is_known_version(job: Any) -> ColumnElement[bool]:
    """Return whether a worker knows the version of a job's input, or a later one: a newer one waits for another worker.

    Parameters: `version_types`, job types, and `versions`, the latest that it knows of each; without them it knows all.
    """
    latest = element(
        sa.bindparam("versions", [], type_=ArrayParameter(sa.Integer())),
        sa.func.array_position(sa.bindparam("version_types", [], type_=ArrayParameter(sa.Text())), job.c.type_name),
    )
    return sa.func.coalesce(job.c.input_version <= latest, sa.literal_column("true"), type_=sa.Boolean)


def _is_next(job: sa.Table) -> ColumnElement[bool]:
    """Return whether a job is the first of its ordering key that waits, and none of the key is running.

    A claim that skips it for that reason does not lose it: `freed` returns it when the key is released.
    """
    # Scalar subqueries: an EXISTS may be planned as a hash of all keys. The running job is read first: it has fewer entries.
    earliest = first_waiting(job.alias("first"), job.c.ordering_key).correlate(job)
    running = running_of(job.alias("other"), job.c.ordering_key).correlate(job)
    return sa.and_(running.scalar_subquery().is_(None), job.c.id == earliest.scalar_subquery())


def first_waiting(job: Any, key: ColumnElement[str]) -> sa.Select[Any]:
    """Select the id of the first waiting job of an ordering key (`ix_job_ordering`)."""
    return (
        sa.select(job.c.id)
        .where(
            job.c.ordering_key == key,
            job.c.ordering_key.is_not(None),
            job.c.status.in_([status(JobStatus.BLOCKED), status(JobStatus.PENDING)]),
        )
        .order_by(job.c.ordering_key, job.c.created_at, job.c.id)
        .limit(sa.literal_column("1"))
    )


def running_of(job: Any, key: ColumnElement[str]) -> sa.Select[Any]:
    """Select the id of the running job of an ordering key, by `uq_job_ordering`."""
    return (
        sa.select(job.c.id)
        .where(job.c.ordering_key == key, job.c.ordering_key.is_not(None), job.c.leased_by.is_not(None))
        .limit(sa.literal_column("1"))
    )


def lanes(t: Tables, block: tuple[Any, Any]) -> TableValuedAlias:
    """Return the lanes given as parameters, from the first to the last position of `block`, as a relation."""
    columns = {
        "queue": array("queues", sa.Text()),
        "fairness_key": array("fairness_keys", sa.Text()),
        "priority": array("priorities", sa.SmallInteger()),
        "cursor_at": array("cursor_at", TIMESTAMP(timezone=True)),
        "cursor_id": array("cursor_id", t.id_type),
    }
    return relation("lane", **{name: _slice(values, block) for name, values in columns.items()})


def in_lane(job: Any, lane: Any) -> list[ColumnElement[bool]]:
    """Return what must be true of a pending job of a lane, for an ordered scan of `ix_job_claim`."""
    return [
        job.c.status == status(JobStatus.PENDING),
        # Always true: it ties a statement to ix_job_claim, which repeats it.
        job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"),
        job.c.queue == lane.c.queue,
        job.c.fairness_key == lane.c.fairness_key,
        job.c.priority == lane.c.priority,
    ]


def ahead(job: sa.Table, lane: TableValuedAlias, types: ColumnElement[Any]) -> sa.Select[Any]:
    """Select the ids of eligible jobs of a lane after its cursor, in the lane's order."""
    return (
        sa.select(job.c.id)
        .where(
            *in_lane(job, lane),
            *is_eligible(job, types),
            sa.tuple_(job.c.scheduled_at, job.c.id) > sa.tuple_(lane.c.cursor_at, lane.c.cursor_id),
        )
        .order_by(job.c.scheduled_at, job.c.id)
    )


def scan(t: Tables, *, locks: bool) -> sa.Select[Any]:
    """Select the ids of eligible jobs of a plan: segment by segment, each lane by lane.

    Parameters: of the lanes `queues`, `fairness_keys`, `priorities`, `cursor_at`, `cursor_id`; of the segments where their
    lanes begin and end, from 1, `segment_first`, `segment_last`, where their job types do in `types`, `segment_first_type`,
    `segment_last_type`, and `segment_quota`; `apart`, ids to leave out.
    With `locks` each row is locked as it is found, and rows that others hold are skipped; no more are locked than returned.
    """
    numbers = ("first", "last", "quota", "first_type", "last_type")
    row = relation("row", **{name: array(f"segment_{name}", sa.Integer()) for name in numbers})
    types = sa.type_coerce(_slice(array("types", sa.Text()), (row.c.first_type, row.c.last_type)), ARRAY(sa.Text))
    # The OFFSET has a segment's types sliced once, not for every row that is compared with them.
    segment = sa.select(*row.c, types.label("types")).offset(sa.literal_column("0")).subquery("segment")
    # By name: SQLAlchemy does not correlate what lies within a lateral of a lateral.
    segment_columns = {column.name: sa.literal_column(f"segment.{column.name}", column.type) for column in segment.c}
    lane = lanes(t, (segment_columns["first"], segment_columns["last"]))
    eligible = ahead(t.job, lane, segment_columns["types"]).where(t.job.c.id != sa.all_(t.ids("apart")))
    probe = locked(eligible.limit(segment_columns["quota"]), locks).lateral("probe")
    in_segment = (
        sa.select(probe.c.id).select_from(lane.join(probe, sa.true())).limit(segment_columns["quota"]).lateral("in_segment")
    )
    return sa.select(in_segment.c.id).select_from(segment.join(in_segment, sa.true()))


def late(t: Tables, *, locks: bool) -> sa.Select[Any]:
    """Select the ids, of those in `late_ids`, of eligible jobs that `late_xids` still names as changed last; in that order.

    A job that was changed since is not taken: it may be in another lane now, and the next catch-up returns it.
    """
    late_jobs = relation("late", id=t.ids("late_ids"), xid=sa.cast(array("late_xids", sa.Text()), ARRAY(Xid8())))
    unchanged = (
        sa.select(t.job.c.id)
        .where(
            t.job.c.id == late_jobs.c.id,
            t.job.c.changed_xid == late_jobs.c.xid,
            # By the text of its status, which no partial index can serve: the primary key stays the only way to the row.
            sa.cast(t.job.c.status, sa.Text) == sa.literal_column("'pending'"),
            *is_eligible(t.job, array("types", sa.Text())),
        )
        .correlate(late_jobs)
    )
    locked_jobs = locked(unchanged, locks).lateral("taken")
    return sa.select(locked_jobs.c.id).select_from(late_jobs.join(locked_jobs, sa.true()))


def locked(rows: sa.Select[Any], locks: bool = True) -> sa.Select[Any]:
    """Lock rows without their keys as they are read, and skip rows that other transactions have locked."""
    return rows.with_for_update(key_share=True, skip_locked=True) if locks else rows


def _slice(values: ColumnElement[Any], block: tuple[Any, Any]) -> ColumnElement[Any]:
    return Grouping(values)[block[0] : block[1]]


def freed(job: sa.Table) -> sa.Select[Any]:
    """Select the first waiting job of each ordering key that was released since a snapshot, if it is pending.

    Parameters: `xmax`, `xip` of the snapshot: the key was released by a transaction that was not visible to it. A key is
    released by a job that ended or was rescheduled, whose row still exists; if the row was deleted, `tr_job_deleted` has
    stamped the next one.
    Index: `ix_job_ordering_freed`, and `ix_job_ordering`, one probe a key.
    """
    released_jobs = job.alias("left_key")
    by = sa.select(released_jobs.c.ordering_key).where(
        released_jobs.c.ordering_key.is_not(None),
        released_jobs.c.leased_by.is_(None),
        released_jobs.c.completed_at.is_not(None) | released_jobs.c.started_at.is_not(None),
    )
    then = in_progress()
    of_then = by.where(released_jobs.c.changed_xid >= then.c.xid, released_jobs.c.changed_xid <= then.c.xid).lateral(
        "of_then"
    )
    # No transaction above the upper bound is visible anyway. The bound is for the planner, which takes a range for
    # selective.
    end: ColumnElement[Any] = sa.literal_column("pg_snapshot_xmax(pg_current_snapshot())")
    of_since = by.where(
        released_jobs.c.changed_xid >= sa.cast(sa.bindparam("xmax", type_=sa.Text), Xid8()),
        released_jobs.c.changed_xid < end,
    )
    keys = sa.union_all(sa.select(of_then.c.ordering_key).select_from(then.join(of_then, sa.true())), of_since).subquery(
        "keys"
    )
    key = sa.select(keys.c.ordering_key).distinct().subquery("key")
    first = job.alias("first")
    names = (
        *("id", "queue", "fairness_key", "priority", "type_name", "input_version", "scheduled_at", "changed_xid"),
        "status",
    )
    columns = (first.c[name] for name in names)
    waiting = first_waiting(first, key.c.ordering_key).with_only_columns(*columns).lateral("first")
    first_jobs = sa.select(*waiting.c).select_from(key.join(waiting, sa.true()))
    return first_jobs.where(waiting.c.status == status(JobStatus.PENDING))


def in_progress() -> TableValuedAlias:
    """Return the transactions in `xip`, which were in progress in a snapshot, as a relation."""
    return relation("then", xid=sa.cast(array("xip", sa.Text()), ARRAY(Xid8())))
