"""Figures of single minutes: written by one worker, read as series and as totals."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.models.base import Xid8
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.statements._parts import Tables, block, number, statement, status
from sa_jobqueue.statements.health import UNSUCCESSFUL, looked_back
from sa_jobqueue.types import MIN_PRIORITY, JobStatus

COUNTS: Final = ("enqueued", "completed", "failed", "died", "cancelled", "due", "running")
_KINDS: Final = {"died": "dead"}
_MINUTE: Final = sa.literal_column("interval '1 minute'", sa.Interval)
_SINCE: Final = sa.bindparam("since", type_=sa.DateTime(timezone=True))
_UNTIL: Final = sa.bindparam("until", type_=sa.DateTime(timezone=True))
_LIMIT: Final = sa.bindparam("limit", type_=sa.Integer)
_INSTANT: Final = sa.DateTime(timezone=True)


@statement
def unrecorded(t: Tables) -> sa.Select[Any]:
    """Return the last minutes that were not recorded, if no other transaction records them.

    Shape: one row `(since, until)`, at most forty minutes, which is longer than idle workers pause; none if there is nothing
    to record. Clock: the database's.
    Locks: an advisory lock until the transaction ends, not awaited. Index: `pk_job_minute`, from its end.
    """
    span = sa.select(_recorded_until(t).label("since"), _this_minute().label("until")).cte("span")
    name = sa.literal(t.layout.qualified("job_minute"))
    lock = sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(name, sa.literal_column("0")))
    return sa.select(span.c.since, span.c.until).where(sa.case((span.c.since < span.c.until, lock), else_=sa.false()))


@statement
def recorded_until(t: Tables) -> sa.Select[Any]:
    """Return the start of the first minute that is still to be recorded; jobs that ended earlier count no more.

    Shape: one row `(since,)`. Clock: the database's. Locks: none. Index: `pk_job_minute`, from its end.
    """
    return sa.select(_recorded_until(t).label("since"))


def _recorded_until(t: Tables) -> sa.ColumnElement[Any]:
    last = sa.select(t.minute.c.minute).order_by(t.minute.c.minute.desc()).limit(sa.literal_column("1")).scalar_subquery()
    return sa.func.greatest(last + _MINUTE, _this_minute() - sa.literal_column("interval '40 minutes'"), type_=_INSTANT)


def _this_minute() -> sa.ColumnElement[Any]:
    return sa.func.date_trunc(sa.literal_column("'minute'"), sa.func.now(), type_=_INSTANT)


@statement
def record(t: Tables) -> postgresql.Insert:
    """Write the figures of some minutes, by queue and job type, and of each minute as a whole.

    Parameters: `since` and `until` of `unrecorded`; `transactions`, how many transactions to look back; `limit`, the maximum
    number of rows that each part reads; `most`, how many queues and types of a minute are written, the busiest.
    Shape: none. Changes: new rows. Clock: the database's. Locks: none of others.
    Index: `ix_job_history`, `ix_job_attempt_changed`, `ix_job_claim`, `ix_job_running`.
    """
    counted = _counted(_events(t))
    columns = [column.name for column in counted.c if column.name != "place"]
    busiest = sa.select(*(counted.c[name] for name in columns)).where(
        counted.c.place <= sa.bindparam("most", type_=sa.Integer) + sa.literal_column("1")
    )
    return insert(t.minute).from_select(columns, busiest).on_conflict_do_nothing()


def _events(t: Tables) -> sa.Subquery:
    """Return what happened in the minutes: `(minute, at, queue, type_name, kind, wait, run)`, the times as buckets.

    A row without a queue stands for each minute, so that one without events is written too.
    """
    job, changed_jobs, failures, pending = t.job, _changed_jobs(t), _failures(t), _pending(t)
    minutes = sa.func.generate_series(_SINCE, _UNTIL - _MINUTE, _MINUTE, type_=_INSTANT).column_valued("at")
    of_changed, of_pending, of_job = ((relation.c.queue, relation.c.type_name) for relation in (changed_jobs, pending, job))
    no_bucket, no_name = sa.cast(sa.null(), sa.Integer), sa.cast(sa.null(), sa.Text)
    events = sa.union_all(
        sa.select(
            changed_jobs.c.completed_at.label("at"),
            *of_changed,
            sa.cast(changed_jobs.c.status, sa.Text).label("kind"),
            _bucket(changed_jobs.c.scheduled_at, changed_jobs.c.started_at).label("wait"),
            _bucket(changed_jobs.c.started_at, changed_jobs.c.completed_at).label("run"),
        ).where(changed_jobs.c.completed_at >= _SINCE),
        sa.select(changed_jobs.c.created_at, *of_changed, _text("enqueued"), no_bucket, no_bucket).where(
            changed_jobs.c.created_at >= _SINCE
        ),
        sa.select(failures.c.ended_at, *of_job, _text("failed"), no_bucket, no_bucket).join_from(
            failures, job, job.c.id == failures.c.job_id
        ),
        # Of earlier minutes, those that are still due or running: while workers are idle, these are all.
        sa.select(minutes, *of_pending, _text("due"), no_bucket, no_bucket).where(pending.c.due_at < minutes + _MINUTE),
        sa.select(minutes, *of_job, _text("running"), no_bucket, no_bucket).where(
            job.c.status == status(JobStatus.RUNNING), job.c.started_at < minutes + _MINUTE
        ),
        sa.select(minutes, no_name, no_name, no_name, no_bucket, no_bucket),
    ).subquery("events")
    minute = sa.func.date_trunc(sa.literal_column("'minute'"), events.c.at, type_=_INSTANT)
    return sa.select(minute.label("minute"), *events.c).where(events.c.at < _UNTIL).subquery("named")


def _changed_jobs(t: Tables) -> sa.CTE:
    """Return the jobs that began or ended in the minutes, from the end of the history's index."""
    job = t.job
    names = ("queue", "type_name", "status", "created_at", "scheduled_at", "started_at", "completed_at")
    return (
        sa.select(*(job.c[name] for name in names))
        .where(block(number(job)) >= block(looked_back()), (job.c.created_at >= _SINCE) | (job.c.completed_at >= _SINCE))
        .limit(_LIMIT)
        .cte("seen")
    )


def _failures(t: Tables) -> sa.Subquery:
    """Return the unsuccessful attempts that ended in the minutes."""
    attempt = t.attempt
    unsuccessful = attempt.c.outcome.in_([sa.literal_column(f"'{outcome}'") for outcome in UNSUCCESSFUL])
    oldest_xid = sa.cast(sa.cast(looked_back(), sa.Text), Xid8())
    return (
        sa.select(attempt.c.job_id, attempt.c.ended_at)
        .where(attempt.c.changed_xid >= oldest_xid, attempt.c.ended_at >= _SINCE, unsuccessful)
        .limit(_LIMIT)
        .subquery("failures")
    )


def _pending(t: Tables) -> sa.Subquery:
    """Return the pending jobs, and when they were due."""
    job = t.job
    return (
        sa.select(job.c.queue, job.c.type_name, sa.func.greatest(job.c.created_at, job.c.scheduled_at).label("due_at"))
        .where(job.c.status == status(JobStatus.PENDING), job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"))
        .limit(_LIMIT)
        .subquery("waiting")
    )


def _counted(events: sa.Subquery) -> sa.Subquery:
    """Return the figures of each minute as a whole, then by queue and type, with its `place`: the busiest come first."""
    counts = [
        sa.cast(sa.func.count().filter(events.c.kind == _text(_KINDS.get(name, name))), sa.Integer).label(name)
        for name in COUNTS
    ]
    histograms = [
        postgresql.array(
            [
                sa.cast(sa.func.count().filter(events.c[name] == sa.literal_column(str(at))), sa.Integer)
                for at in range(len(BOUNDS) + 1)
            ]
        ).label(name)
        for name in ("wait", "run")
    ]
    is_total = sa.func.grouping(events.c.queue) == sa.literal_column("1")
    empty = sa.literal_column("''", sa.Text)
    place = sa.func.row_number().over(partition_by=events.c.minute, order_by=(is_total.desc(), sa.func.count().desc()))
    groups = sa.func.grouping_sets(
        sa.tuple_(events.c.minute, events.c.queue, events.c.type_name), sa.tuple_(events.c.minute)
    )
    names = [sa.func.coalesce(events.c[name], empty).label(name) for name in ("queue", "type_name")]
    return (
        sa.select(events.c.minute, *names, *counts, *histograms, place.label("place"))
        .group_by(groups)
        .having(is_total | events.c.queue.is_not(None))
        .subquery("grouped")
    )


@statement
def prune(t: Tables) -> ReturningDelete[Any]:
    """Delete the minutes that are older than a day. Shape: `(minute,)`. Clock: the database's. Index: `pk_job_minute`."""
    row = t.minute
    return (
        sa.delete(row).where(row.c.minute < sa.func.now() - sa.literal_column("interval '24 hours'")).returning(row.c.minute)
    )


@statement
def series(t: Tables, *, by: str = "at") -> sa.Select[Any]:
    """Sum the figures of recorded minutes.

    `by`: `at` for a series over time, `queue` or `type_name` for totals by name.
    Parameters: `since`; `step`, the length of a point, an interval; `queue` and `type_name`, empty for all together, null
    for each.
    Shape: `(at, or the name)`, the sums of `COUNTS`, `wait` and `run`, and `minutes`, how many minutes are in it; in its
    order. `due` and `running` of a series are those of all its minutes, of totals those of the newest minute.
    Locks: none. Index: `pk_job_minute`.
    """
    row, whole = t.minute, t.minute.alias("whole")
    empty: sa.ColumnElement[str] = sa.literal_column("''", sa.Text)
    recorded = (whole.c.minute >= _SINCE, whole.c.queue == empty, whole.c.type_name == empty)
    same = [row.c.minute == whole.c.minute]
    for name in ("queue", "type_name"):
        name_filter = sa.bindparam(name, type_=sa.Text)
        same.append(sa.case((name_filter.is_(None), row.c[name] != empty), else_=row.c[name] == name_filter))
    newest = sa.select(sa.func.max(whole.c.minute)).scalar_subquery()
    if by == "at":
        step = sa.bindparam("step", type_=sa.Interval)
        key = sa.func.date_bin(step, whole.c.minute, _SINCE, type_=_INSTANT).label(by)
        minutes: sa.ColumnElement[int] = sa.func.count(whole.c.minute.distinct())
    else:
        key = row.c[by].label(by)
        minutes = sa.select(sa.func.count()).select_from(whole).where(*recorded).scalar_subquery()

    def added(value: sa.ColumnElement[Any], *when: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        summed = sa.func.sum(value).filter(*when) if when else sa.func.sum(value)
        return sa.cast(sa.func.coalesce(summed, sa.literal_column("0")), sa.BigInteger)

    at_end = () if by == "at" else (row.c.minute == newest,)
    sums = [added(row.c[name], *(at_end if name in {"due", "running"} else ())).label(name) for name in COUNTS]
    histograms = [
        postgresql.array([added(row.c[name][sa.literal_column(str(at))]) for at in range(1, len(BOUNDS) + 2)]).label(name)
        for name in ("wait", "run")
    ]
    columns: list[Any] = [key, *sums, *histograms, minutes.label("minutes")]
    joined = whole.join(row, sa.and_(*same), isouter=by == "at")
    return sa.select(*columns).select_from(joined).where(*recorded).group_by(key).order_by(key)


def _bucket(since: sa.ColumnElement[Any], until: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    bounds = sa.literal_column(f"'{{{','.join(map(str, BOUNDS))}}}'", ARRAY(sa.Double))
    seconds = sa.cast(sa.extract("epoch", until - since), sa.Double)
    return sa.func.width_bucket(seconds, sa.cast(bounds, ARRAY(sa.Double)), type_=sa.Integer)


def _text(value: str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{value}'", sa.Text)
