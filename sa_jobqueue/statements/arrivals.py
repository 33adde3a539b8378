"""Which lanes have jobs, and which jobs became visible since a snapshot: the statements between claims.

Source: the comparison of snapshots is PgQ's (M. Kreen et al., Skype, 2007), used there for batches of a log.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models.base import Xid8
from sa_jobqueue.policies.fairness import SEPARATOR
from sa_jobqueue.statements._lanes import freed, in_lane, in_progress, is_known_version
from sa_jobqueue.statements._parts import Tables, array, relation, statement, status
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY, JobStatus


def is_keyed(row: Any) -> ColumnElement[bool]:
    """Return whether a job has a fairness key."""
    key: ColumnElement[str] = row.fairness_key
    return key != sa.literal_column("''")


@statement
def catch_up(t: Tables) -> sa.Select[Any]:
    """Return pending jobs that became visible since a snapshot, and the next job of lanes that were read to their end.

    Parameters: `queues` and `types` of the worker, without those that are paused, and `paused_keys`, each as
    `QueueKey.text`; `xmax`, `xip` of that snapshot, as text; `most` rows to return of `most_read` to look at, so that a
    flood in queues that are not served displaces no others. Lanes with a backlog as `known_queues`,
    `known_fairness_keys`, `known_priorities`, `known_types`, `known_at`, `known_id`: what lies after that key in one of
    them is left out, since its scan finds it. Lanes that were read to their end as `ended_queues`,
    `ended_fairness_keys`, `ended_priorities`, `ended_types`; `read_to`, the earliest instant that one of them was read to,
    null without any. The type of a lane is empty for all types in `shared_types`. `version_types`, `versions`: as of
    a claim.
    Shape: `now, xmax, xip, is_cut, id, queue, fairness_key, priority, type_name, scheduled_at, changed_xid, wait` a job,
    `wait` in seconds from now and negative for due jobs; for the next job of a lane that ended, which has no row when it
    has none, `id` is null and `type_name` the lane's. `is_cut` where there was more than either. A single row with a null
    queue for none of either.
    Locks: none. Clock: the database's.
    Index: `ix_job_changed`, `ix_job_ordering_freed`; `ix_job_claim`, one probe an ended lane.
    """
    read = sa.union_all(*written_since(t.job)).limit(sa.bindparam("most_read", type_=sa.Integer)).cte("read")
    known_lanes = _lanes("known", at=array("known_at", TIMESTAMP(timezone=True)), id=array("known_id", t.id_type))
    found_by_scan: sa.Select[Any] = (
        sa.select(sa.literal_column("1"))
        .select_from(known_lanes)
        .where(
            known_lanes.c.queue == read.c.queue,
            known_lanes.c.fairness_key == read.c.fairness_key,
            known_lanes.c.priority == read.c.priority,
            _is_of_lane(read.c.type_name, known_lanes.c.type_name),
            sa.tuple_(read.c.scheduled_at, read.c.id) > sa.tuple_(known_lanes.c.at, known_lanes.c.id),
        )
    )
    queue_key = read.c.queue + sa.literal_column(f"'{SEPARATOR}'") + read.c.fairness_key
    arrivals = (
        sa.select(*(column for column in read.c if column.name != "input_version"))
        .where(
            read.c.queue == sa.any_(array("queues", sa.Text())),
            read.c.type_name == sa.any_(array("types", sa.Text())),
            is_known_version(read),
            queue_key != sa.all_(array("paused_keys", sa.Text())),
            ~sa.exists(found_by_scan),
        )
        .limit(sa.bindparam("most", type_=sa.Integer))
        .cte("seen")
    )
    arrived_jobs = sa.select(*arrivals.c)
    ended = _lanes("ended")
    following = (
        sa.select(t.job.c.scheduled_at)
        .where(
            *in_lane(t.job, ended),
            # One instant for all: a key of each would be most of what is sent, and save only what came due between them.
            t.job.c.scheduled_at >= sa.bindparam("read_to", type_=TIMESTAMP(timezone=True)),
            _is_of_lane(t.job.c.type_name, ended.c.type_name),
            is_known_version(t.job),
        )
        .order_by(t.job.c.scheduled_at, t.job.c.id)
        .limit(sa.literal_column("1"))
        .lateral("following")
    )
    none_id, none_xid = sa.cast(sa.null(), t.job.c.id.type), sa.cast(sa.null(), Xid8())
    next_jobs = sa.select(none_id, *ended.c, following.c.scheduled_at, none_xid).select_from(
        ended.join(following, sa.true())
    )
    rows = sa.union_all(arrived_jobs, next_jobs).subquery("found")
    is_cut = sa.or_(
        sa.select(sa.func.count() >= sa.bindparam("most", type_=sa.Integer)).select_from(arrivals).scalar_subquery(),
        sa.select(sa.func.count() >= sa.bindparam("most_read", type_=sa.Integer)).select_from(read).scalar_subquery(),
    ).label("is_cut")
    columns = [sa.cast(column, sa.Text).label(column.name) if column.name == "changed_xid" else column for column in rows.c]
    return sa.select(*snapshot(), is_cut, *columns, _seconds_to(rows.c.scheduled_at)).select_from(
        here().outerjoin(rows, sa.true())
    )


@statement
def full_scan(t: Tables) -> sa.Select[Any]:
    """Return the lanes that have pending jobs, each with its first job, a page at a time.

    Parameters: `served_queues`: of each other queue, only one lane is read; `after_queue`, `after_fairness_key`,
    `after_priority`: where the page before ended; `most` lanes to return.
    Shape: `now, xmax, xip, queue, fairness_key, priority, scheduled_at, wait` a lane, `wait` in seconds from now and
    negative for due jobs, in the order of the index; fewer rows than `most` are the last page; a single row with a null
    queue for none. Locks: none. Index: `ix_job_claim`, one probe a lane.
    """
    start = sa.tuple_(
        sa.bindparam("after_queue", type_=sa.Text),
        sa.bindparam("after_fairness_key", type_=sa.Text),
        sa.bindparam("after_priority", type_=sa.SmallInteger),
    )
    lane = _first_of_lanes(t, start=start, served=array("served_queues", sa.Text()))
    lane_rows = (
        sa.select(*lane.c, _seconds_to(lane.c.scheduled_at)).limit(sa.bindparam("most", type_=sa.Integer)).subquery("found")
    )
    return sa.select(*snapshot(), *lane_rows.c).select_from(here().outerjoin(lane_rows, sa.true()))


def heads(t: Tables, *columns: ColumnElement[Any]) -> sa.Select[Any]:
    """Return the first pending job of each fairness key and priority, 1,000 at most, and one of each queue without a key.

    `columns`: of the jobs, beside `queue`, `fairness_key`, `priority` and `scheduled_at`.
    """
    lane = _first_of_lanes(t, *columns, keyed=True)
    return sa.select(*lane.c).limit(sa.literal_column("1000"))


def _first_of_lanes(
    t: Tables, *columns: ColumnElement[Any], start: Any = None, served: Any = None, keyed: bool = False
) -> sa.CTE:
    pending = (
        sa.select(t.job.c.queue, t.job.c.fairness_key, t.job.c.priority, t.job.c.scheduled_at, *columns)
        .where(t.job.c.status == status(JobStatus.PENDING), t.job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"))
        .order_by(t.job.c.queue, t.job.c.fairness_key, t.job.c.priority, t.job.c.scheduled_at, t.job.c.id)
        .limit(sa.literal_column("1"))
    )
    key = sa.tuple_(t.job.c.queue, t.job.c.fairness_key, t.job.c.priority)
    first = pending if start is None else pending.where(key > start)
    lane = sa.select(first.subquery("first")).cte("lane", recursive=True)
    # Of a queue's jobs without a key, one row is enough for `keyed`.
    behind = sa.case((is_keyed(lane.c), lane.c.priority), else_=sa.literal_column(str(MAX_PRIORITY), sa.SmallInteger))
    later_jobs = pending.where(key > sa.tuple_(lane.c.queue, lane.c.fairness_key, behind if keyed else lane.c.priority))
    if served is not None:
        # Two statements, each with a bound that the index has; the condition on the lane decides which of them is run.
        skipped = pending.where(t.job.c.queue > lane.c.queue, lane.c.queue != sa.all_(served))
        branches = (later_jobs.where(lane.c.queue == sa.any_(served)), skipped)
        later_jobs = sa.select(
            sa.union_all(*(sa.select(branch.correlate(lane).subquery()) for branch in branches)).subquery("either")
        )
    following = later_jobs.correlate(lane).lateral("following")
    return lane.union_all(sa.select(*following.c).select_from(lane.join(following, sa.true())))


def _lanes(name: str, **more: ColumnElement[Any]) -> TableValuedAlias:
    return relation(
        name,
        queue=array(f"{name}_queues", sa.Text()),
        fairness_key=array(f"{name}_fairness_keys", sa.Text()),
        priority=array(f"{name}_priorities", sa.SmallInteger()),
        type_name=array(f"{name}_types", sa.Text()),
        **more,
    )


def _is_of_lane(type_name: ColumnElement[str], of_lane: ColumnElement[str]) -> ColumnElement[bool]:
    shared = sa.and_(of_lane == sa.literal_column("''"), type_name == sa.any_(array("shared_types", sa.Text())))
    return sa.or_(type_name == of_lane, shared)


def written_since(job: sa.Table) -> list[sa.Select[Any]]:
    """Select pending jobs written, or made first of their ordering key, by transactions that a snapshot did not see.

    Three sources: transactions that were in progress (`xip`), transactions that began since (from `xmax` on), and the first
    waiting job of each ordering key that either of them released.
    """
    names = ("id", "queue", "fairness_key", "priority", "type_name", "input_version", "scheduled_at", "changed_xid")
    columns = [job.c[name] for name in names]
    # Always true: it ties the statement to ix_job_changed. No other statement may name it.
    pending_jobs = sa.select(*columns).where(
        job.c.status == status(JobStatus.PENDING), job.c.changed_xid > sa.literal_column("'0'")
    )
    then = in_progress()
    # A pair of bounds, not an equality: it keeps the order by xid, and with it the plan, the same in both sources.
    of_then = pending_jobs.where(job.c.changed_xid >= then.c.xid, job.c.changed_xid <= then.c.xid)
    in_flight = of_then.order_by(job.c.changed_xid).lateral("in_flight")
    since = pending_jobs.where(job.c.changed_xid >= sa.cast(sa.bindparam("xmax", type_=sa.Text), Xid8()))
    since_then = since.order_by(job.c.changed_xid).subquery("since")
    of_keys = freed(job).subquery("freed")
    return [
        sa.select(*in_flight.c).select_from(then.join(in_flight, sa.true())),
        sa.select(*since_then.c),
        sa.select(*(of_keys.c[name] for name in names)),
    ]


def here() -> Any:
    """Return a relation of one row, so that a statement that finds nothing still returns its snapshot."""
    return sa.select(sa.literal_column("1").label("one")).subquery("here")


def snapshot() -> list[ColumnElement[Any]]:
    """Return `now, xmax, xip` of the statement's snapshot."""
    return [
        sa.func.now().label("now"),
        sa.literal_column("pg_snapshot_xmax(pg_current_snapshot())::text", sa.Text).label("xmax"),
        sa.literal_column("ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x)", ARRAY(sa.Text)).label(
            "xip"
        ),
    ]


def _seconds_to(instant: ColumnElement[Any]) -> ColumnElement[float]:
    return sa.cast(sa.func.extract("epoch", instant - sa.func.now()), sa.Double).label("wait")
