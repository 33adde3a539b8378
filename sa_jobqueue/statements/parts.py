"""Which fairness keys of queues have jobs: what a worker knows of them, at first and from then on.

The jobs of one fairness key are a part of their queue. The number of parts is not bounded, and no table lists them: a worker
surveys them once, then asks for what was written since.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    Double,
    Integer,
    Select,
    SmallInteger,
    Table,
    Text,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import Xid8
from sa_jobqueue.statements._lanes import freed, transactions
from sa_jobqueue.statements._parts import array, once_a_model, status, table
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY, JobStatus


def is_keyed(row: Any) -> ColumnElement[bool]:
    """Return whether a job has a fairness key."""
    key: ColumnElement[str] = row.fairness_key
    return key != literal_column("''")


@once_a_model
def survey(model: type[JobMixin[Any]]) -> Select[Any]:
    """Name the parts of queues that have pending jobs, a page at a time, with the first job of each priority.

    Parameters: `after_queue`, `after_fairness_key`, `after_priority`: where the page before ended; `most` lanes to look at.
    Shape: `now, xmax, xip, queue, fairness_key, priority, scheduled_at, wait` a lane, `wait` in seconds from now and
    negative of what is due; also the first lane without a key of each queue, so that the last row, in the order of the
    index, is where the page ended, and fewer rows than `most` are the last page; a single row with a null queue for none.
    Locks: none. Index: `ix_job_claim`, one probe a key and priority, and one of each queue for its jobs without a key.
    """
    start = tuple_(
        bindparam("after_queue", type_=Text),
        bindparam("after_fairness_key", type_=Text),
        bindparam("after_priority", type_=SmallInteger),
    )
    lane = _lanes(model, start=start)
    found = select(*lane.c, _seconds_to(lane.c.scheduled_at)).limit(bindparam("most", type_=Integer)).subquery("found")
    return select(*_snapshot(), *found.c).select_from(_here().outerjoin(found, true()))


def heads(model: type[JobMixin[Any]], *columns: ColumnElement[Any]) -> Select[Any]:
    """Return the first pending job of each fairness key and priority, 1,000 at most, and one of each queue without a key.

    `columns`: of the jobs, beside `queue`, `fairness_key`, `priority` and `scheduled_at`.
    """
    lane = _lanes(model, *columns)
    return select(*lane.c).limit(literal_column("1000"))


def _lanes(model: type[JobMixin[Any]], *columns: ColumnElement[Any], start: Any = None) -> CTE:
    job = table(model)
    pending = (
        select(job.c.queue, job.c.fairness_key, job.c.priority, job.c.scheduled_at, *columns)
        .where(job.c.status == status(JobStatus.PENDING), job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"))
        .order_by(job.c.queue, job.c.fairness_key, job.c.priority, job.c.scheduled_at, job.c.id)
        .limit(literal_column("1"))
    )
    key = tuple_(job.c.queue, job.c.fairness_key, job.c.priority)
    first = pending if start is None else pending.where(key > start)
    lane = select(first.subquery("first")).cte("lane", recursive=True)
    # Of the jobs of a queue without a key, one row is enough to go on behind them.
    behind = case((is_keyed(lane.c), lane.c.priority), else_=literal_column(str(MAX_PRIORITY), SmallInteger))
    rest = pending.where(key > tuple_(lane.c.queue, lane.c.fairness_key, behind))
    following = rest.correlate(lane).lateral("following")
    return lane.union_all(select(*following.c).select_from(lane.join(following, true())))


@once_a_model
def news(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return what was written to fairness keys of some queues since a snapshot, and what is next in drained lanes.

    Parameters: `queues`; `xmax`, `xip` of that snapshot, as text; `most` rows to look at; lanes as the arrays
    `lane_queues`, `lane_fairness_keys`, `lane_priorities`; `read_to`, the instant to which all of them have been read, null
    without any; `types`.
    Shape: `now, xmax, xip, is_cut, is_news, queue, fairness_key, priority, scheduled_at, wait`; `is_cut` where there was
    more than `most`; `is_news` of the earliest job written in a lane, else of the next one in a lane that was asked for,
    which has no row when it has none; a single row with a null queue for none of either.
    Locks: none. Index: `ix_job_changed`, `ix_job_ordering_freed`; `ix_job_claim`, one probe a lane.
    """
    job = table(model)
    seen = union_all(*_written_since(job)).limit(bindparam("most", type_=Integer)).cte("seen")
    written = (
        select(
            literal_column("true", Boolean).label("is_news"),
            seen.c.queue,
            seen.c.fairness_key,
            seen.c.priority,
            func.min(seen.c.scheduled_at).label("scheduled_at"),
        )
        .where(is_keyed(seen.c), seen.c.queue == any_(array("queues", Text())))
        .group_by(seen.c.queue, seen.c.fairness_key, seen.c.priority)
    )
    # One instant for all: a key of each would be most of what is sent, and spare only what has come due between them.
    given = func.unnest(
        array("lane_queues", Text()), array("lane_fairness_keys", Text()), array("lane_priorities", SmallInteger())
    )
    names = (column("queue", Text), column("fairness_key", Text), column("priority", SmallInteger))
    lane = given.table_valued(*names).render_derived("lane")
    following = (
        select(job.c.scheduled_at)
        .where(
            job.c.status == status(JobStatus.PENDING),
            job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"),
            job.c.queue == lane.c.queue,
            job.c.fairness_key == lane.c.fairness_key,
            job.c.priority == lane.c.priority,
            job.c.scheduled_at >= bindparam("read_to", type_=TIMESTAMP(timezone=True)),
            job.c.type_name == any_(array("types", Text())),
        )
        .order_by(job.c.scheduled_at, job.c.id)
        .limit(literal_column("1"))
        .lateral("following")
    )
    left = select(
        literal_column("false"), lane.c.queue, lane.c.fairness_key, lane.c.priority, following.c.scheduled_at
    ).select_from(lane.join(following, true()))
    found = union_all(written, left).subquery("found")
    is_cut = select(func.count() >= bindparam("most", type_=Integer)).select_from(seen).scalar_subquery().label("is_cut")
    return select(*_snapshot(), is_cut, *found.c, _seconds_to(found.c.scheduled_at)).select_from(
        _here().outerjoin(found, true())
    )


def _written_since(job: Table) -> list[Select[Any]]:
    """Select pending rows that were written, or made next of their ordering key, by who was not visible to a snapshot."""
    columns = (job.c.queue, job.c.fairness_key, job.c.priority, job.c.scheduled_at)
    # The tag of ix_job_changed.
    written = select(*columns).where(job.c.status == status(JobStatus.PENDING), job.c.changed_xid > literal_column("'0'"))
    then = transactions(array("xip", Text()))
    in_flight = (
        written.where(job.c.changed_xid >= then.c.xid, job.c.changed_xid <= then.c.xid)
        .order_by(job.c.changed_xid)
        .lateral("in_flight")
    )
    since = (
        written.where(job.c.changed_xid >= cast(bindparam("xmax", type_=Text), Xid8()))
        .order_by(job.c.changed_xid)
        .subquery("since")
    )
    let_go = freed(job).subquery("freed")
    next_of_keys = select(*(let_go.c[column.name] for column in columns))
    return [select(*in_flight.c).select_from(then.join(in_flight, true())), select(*since.c), next_of_keys]


def _here() -> Any:
    return select(literal_column("1").label("one")).subquery("here")


def _snapshot() -> list[ColumnElement[Any]]:
    return [
        func.now().label("now"),
        literal_column("pg_snapshot_xmax(pg_current_snapshot())::text", Text).label("xmax"),
        literal_column("ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x)", ARRAY(Text)).label("xip"),
    ]


def _seconds_to(instant: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(func.extract("epoch", instant - func.now()), Double).label("wait")
