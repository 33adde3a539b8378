"""State of a queue in bounded reads: lanes, recent events, running jobs, dead letters, and blocked jobs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from sa_jobqueue.models.base import Xid8
from sa_jobqueue.statements._parts import Tables, alive_until, block, number, statement, status
from sa_jobqueue.types import MIN_PRIORITY, AttemptOutcome, JobStatus, Resolution

_LIMIT = sa.bindparam("limit", type_=sa.Integer)
_ONE: sa.ColumnElement[Any] = sa.literal_column("1")
_WINDOW = sa.bindparam("window", type_=sa.Interval)
UNSUCCESSFUL = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST)
"""Outcomes that count as unsuccessful attempts in a retry rate."""


@statement
def depths(t: Tables) -> sa.Select[Any]:
    """Count the due and the scheduled jobs of each queue, and return the time of the oldest and of the next one.

    Parameters: `limit`: maximum number of jobs of each kind that are counted in one lane.
    Shape: one row per queue with pending jobs, `(queue, fairness_key, due, oldest_due_at, later, next_due_at, is_capped)`,
    by queue; `is_capped` where the limit was reached. `fairness_key` is empty, except for paused keys, which have separate
    rows.
    Clock: the database's `now()`. Locks: none.
    Index: `ix_job_claim`, three probes per lane, each of at most `limit` entries and of those that ended since the last
    vacuum.
    """
    tag, key, lane = _lanes(t.job)

    def counted(name: str, when: sa.ColumnElement[bool]) -> Any:
        counted_jobs = (
            sa.select(t.job.c.scheduled_at)
            .where(*tag, *(column == lane.c[column.name] for column in key), when)
            .order_by(t.job.c.scheduled_at, t.job.c.id)
            .limit(_LIMIT)
            .correlate(lane)
            .subquery(f"{name}_jobs")
        )
        return sa.select(sa.func.count().label("n"), sa.func.min(counted_jobs.c.scheduled_at).label("first_at")).select_from(
            counted_jobs
        )

    is_paused = (t.queue.c.paused_at.is_not(None), t.queue.c.fairness_key != sa.literal_column("''"))
    paused = sa.select(t.queue.c.name, t.queue.c.fairness_key).where(*is_paused).subquery("paused")
    due = counted("due", t.job.c.scheduled_at <= sa.func.now()).lateral("due")
    later = counted("later", t.job.c.scheduled_at > sa.func.now()).lateral("later")
    fairness_key = sa.func.coalesce(paused.c.fairness_key, sa.literal_column("''"), type_=sa.Text).label("fairness_key")
    of_key = (paused.c.name == lane.c.queue) & (paused.c.fairness_key == lane.c.fairness_key)
    return (
        sa.select(
            lane.c.queue,
            fairness_key,
            sa.cast(sa.func.sum(due.c.n), sa.BigInteger).label("due"),
            sa.func.min(due.c.first_at).label("oldest_due_at"),
            sa.cast(sa.func.sum(later.c.n), sa.BigInteger).label("later"),
            sa.func.min(later.c.first_at).label("next_due_at"),
            sa.func.bool_or(sa.func.greatest(due.c.n, later.c.n) >= _LIMIT).label("is_capped"),
        )
        .select_from(lane.join(due, sa.true()).join(later, sa.true()).outerjoin(paused, of_key))
        .group_by(lane.c.queue, fairness_key)
        .order_by(lane.c.queue, fairness_key)
    )


@statement
def due_groups(t: Tables) -> sa.Select[Any]:
    """Group the due jobs of a queue by job type and fairness key, the largest groups first.

    Parameters: `queue`; `scan`, how many due jobs are read; `limit`, how many groups.
    Shape: `(type_name, fairness_key, n, job_id, oldest_at)`: the oldest job of each group.
    Clock: the database's `now()`. Locks: none. Index: `ix_job_claim`, at most `scan` entries, and the rows.
    """
    due = (
        sa.select(t.job.c.id, t.job.c.type_name, t.job.c.fairness_key, t.job.c.scheduled_at)
        .where(
            t.job.c.status == status(JobStatus.PENDING),
            t.job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"),
            t.job.c.queue == sa.bindparam("queue", type_=sa.Text),
            t.job.c.scheduled_at <= sa.func.now(),
        )
        .limit(sa.bindparam("scan", type_=sa.Integer))
        .subquery("due")
    )
    oldest = sa.func.array_agg(aggregate_order_by(due.c.id, due.c.scheduled_at, due.c.id), type_=ARRAY(due.c.id.type))
    count = sa.func.count().label("n")
    return (
        sa.select(
            due.c.type_name,
            due.c.fairness_key,
            count,
            oldest[1].label("job_id"),
            sa.func.min(due.c.scheduled_at).label("oldest_at"),
        )
        .group_by(due.c.type_name, due.c.fairness_key)
        .order_by(count.desc(), due.c.type_name, due.c.fairness_key)
        .limit(_LIMIT)
    )


@statement
def retrying(t: Tables) -> sa.Select[Any]:
    """Group the jobs that have failed and are due again much later by queue and type, the largest groups first.

    Parameters: `after`, the least time until they are due; `scan`, the maximum number of jobs that are read of one lane;
    `limit`, how many groups. Shape: `(queue, type_name, count, error_type, next_in, last_in, job_ids)`, the error of the job
    due first, the ids of the first hundred.
    Clock: the database's `now()`. Locks: none. Index: `ix_job_claim`, as `depths`, and the rows.
    """
    tag, key, lane = _lanes(t.job)
    later = (
        sa.select(t.job.c.id, t.job.c.type_name, t.job.c.scheduled_at, t.job.c.last_error, t.job.c.attempt)
        .where(
            *tag,
            *(column == lane.c[column.name] for column in key),
            t.job.c.scheduled_at > sa.func.now() + sa.bindparam("after", type_=sa.Interval),
        )
        .order_by(t.job.c.scheduled_at, t.job.c.id)
        .limit(sa.bindparam("scan", type_=sa.Integer))
        .correlate(lane)
        .lateral("later")
    )
    count = sa.func.count().label("count")
    error_type = later.c.last_error.op("->>", return_type=sa.Text())(sa.literal_column("'type'"))
    of_first = sa.func.array_agg(aggregate_order_by(error_type, later.c.scheduled_at), type_=ARRAY(sa.Text))[1]
    first_ids = sa.func.array_agg(aggregate_order_by(later.c.id, later.c.scheduled_at), type_=ARRAY(later.c.id.type))
    ends = {"next_in": sa.func.min(later.c.scheduled_at), "last_in": sa.func.max(later.c.scheduled_at)}
    return (
        sa.select(
            lane.c.queue,
            later.c.type_name,
            count,
            of_first.label("error_type"),
            first_ids[1:100].label("job_ids"),
            *(sa.cast(instant - sa.func.now(), sa.Interval).label(name) for name, instant in ends.items()),
        )
        .select_from(lane.join(later, sa.true()))
        .where(later.c.attempt > sa.literal_column("0"), later.c.last_error.is_not(None))
        .group_by(lane.c.queue, later.c.type_name)
        .order_by(count.desc(), lane.c.queue, later.c.type_name)
        .limit(_LIMIT)
    )


@statement
def lately(t: Tables, *, by: tuple[str, ...] = ("queue",)) -> sa.Select[Any]:
    """Count recent events of jobs by queue, or by other columns of jobs.

    Parameters: `window`; `transactions`, how many transactions to look back; `limit`, the maximum number of jobs to read.
    Shape: `by` and `(examined, arrived, started, completed, died, cancelled, expired)`, by the former. If the sum of
    `examined` reaches the limit, all counts are lower bounds. A job counts once, by its last start.
    Clock: the database's `now()`. Locks: none.
    Index: `ix_job_history`: only the pages that changed in the last `transactions` transactions.
    """
    since = sa.func.now() - _WINDOW
    names = (*by, "status", "created_at", "started_at", "completed_at", "expires_at")
    recent_jobs = (
        sa.select(*(t.job.c[name] for name in names))
        .where(
            block(number(t.job)) >= block(looked_back()),
            (t.job.c.created_at > since) | (t.job.c.started_at > since) | (t.job.c.completed_at > since),
        )
        .limit(_LIMIT)
        .subquery("seen")
    )
    key = [recent_jobs.c[name] for name in by]

    def ended(how: JobStatus, *where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(recent_jobs.c.status == status(how), recent_jobs.c.completed_at > since, *where)

    return (
        sa.select(
            *key,
            sa.func.count().label("examined"),
            sa.func.count().filter(recent_jobs.c.created_at > since).label("arrived"),
            sa.func.count().filter(recent_jobs.c.started_at > since).label("started"),
            ended(JobStatus.COMPLETED).label("completed"),
            ended(JobStatus.DEAD).label("died"),
            ended(JobStatus.CANCELLED).label("cancelled"),
            ended(JobStatus.CANCELLED, recent_jobs.c.expires_at <= recent_jobs.c.completed_at).label("expired"),
        )
        .group_by(*key)
        .order_by(*key)
    )


@statement
def due_lanes(t: Tables) -> sa.Select[Any]:
    """Return the queues and fairness keys with due jobs, each with how long its oldest has been due.

    Parameters: `limit` of the lanes that are read. Shape: `(queue, fairness_key, waiting_for)`, unordered.
    Clock: the database's `now()`. Locks: none. Index: `ix_job_claim`, two probes a lane.
    """
    tag, key, lane = _lanes(t.job)
    lanes = sa.select(lane).limit(_LIMIT).subquery("lanes")
    oldest = (
        sa.select(t.job.c.scheduled_at)
        .where(*tag, *(column == lanes.c[column.name] for column in key), t.job.c.scheduled_at <= sa.func.now())
        .order_by(t.job.c.scheduled_at, t.job.c.id)
        .limit(_ONE)
        .lateral("oldest")
    )
    waiting_for = sa.cast(sa.func.now() - sa.func.min(oldest.c.scheduled_at), sa.Interval).label("waiting_for")
    return (
        sa.select(lanes.c.queue, lanes.c.fairness_key, waiting_for)
        .select_from(lanes.join(oldest, sa.true()))
        .group_by(lanes.c.queue, lanes.c.fairness_key)
    )


@statement
def recent_attempts(t: Tables) -> sa.Select[Any]:
    """Count the attempts that ended without success within the last while, by outcome.

    Parameters: as `lately`. Shape: `(outcome, n)`, by outcome. Locks: none. Index: `ix_job_attempt_changed`.
    """
    attempt = t.attempt
    attempts = (
        sa.select(attempt.c.outcome)
        .where(
            attempt.c.changed_xid >= sa.cast(sa.cast(looked_back(), sa.Text), Xid8()),
            attempt.c.ended_at > sa.func.now() - _WINDOW,
        )
        .limit(_LIMIT)
        .subquery("seen")
    )
    return (
        sa.select(attempts.c.outcome, sa.func.count().label("n")).group_by(attempts.c.outcome).order_by(attempts.c.outcome)
    )


@statement
def running(t: Tables) -> sa.Select[Any]:
    """Count the running jobs by queue, fairness key and type, those without a live worker and those past their timeout.

    Parameters: `ttl` of a worker's heartbeat. Shape: `(queue, fairness_key, type_name, running, orphaned, overdue, job_id,
    worker_id, started_at)`, the last three of the longest running; that of all comes first.
    Clock: the database's. Locks: none.
    Index: `ix_job_running`, every running job: as many as workers have slots.
    """
    job, worker, group = t.job, t.worker, ("queue", "fairness_key", "type_name")
    live = sa.exists(_ONE).where(worker.c.id == job.c.leased_by, alive_until(worker) > sa.func.now())
    running_jobs = (
        sa.select(
            *(job.c[name] for name in (*group, "id", "leased_by", "leased_until", "started_at")),
            live.label("is_held"),
        )
        # Each running job has a worker: a plan made while the table was empty takes the index by this condition.
        .where(job.c.status == status(JobStatus.RUNNING), job.c.leased_by.is_not(None))
        .cte("held")
    )

    def of_longest(name: str) -> sa.ColumnElement[Any]:
        column = running_jobs.c[name]
        ordered = aggregate_order_by(column, running_jobs.c.started_at, running_jobs.c.id)
        return sa.func.array_agg(ordered, type_=ARRAY(column.type))[1]

    started_at, job_id = sa.func.min(running_jobs.c.started_at).label("started_at"), of_longest("id").label("job_id")
    return (
        sa.select(
            *(running_jobs.c[name] for name in group),
            sa.func.count().label("running"),
            sa.func.count().filter(~running_jobs.c.is_held).label("orphaned"),
            sa.func.count().filter(running_jobs.c.leased_until < sa.func.now()).label("overdue"),
            job_id,
            of_longest("leased_by").label("worker_id"),
            started_at,
        )
        .group_by(*(running_jobs.c[name] for name in group))
        .order_by(started_at, job_id)
    )


@statement
def unresolved(t: Tables) -> sa.Select[int, int, int, int, int, Any]:
    """Count the unresolved dead letters by age, and return when the oldest was written.

    Parameters: `limit`: it counts no further. Shape: one row `(unresolved, last_hour, last_day, last_week, last_month,
    oldest_at)`; a month has 30 days. Clock: the database's. Locks: none. Index: `uq_dead_letter_open`.
    """
    dead_letters = (
        sa.select(t.dead_letter.c.died_at).where(t.dead_letter.c.resolution.is_(None)).limit(_LIMIT).subquery("found")
    )

    def within(hours: str) -> sa.ColumnElement[int]:
        return sa.func.count().filter(
            dead_letters.c.died_at > sa.func.now() - sa.literal_column(f"interval '{hours} hours'")
        )

    return sa.select(
        sa.func.count().label("unresolved"),
        within("1").label("last_hour"),
        within("24").label("last_day"),
        within("168").label("last_week"),
        within("720").label("last_month"),
        sa.func.min(dead_letters.c.died_at).label("oldest_at"),
    ).select_from(dead_letters)


@statement
def behind_dead(t: Tables) -> sa.Select[Any]:
    """Count the jobs that wait for chains that are dead, and name at most a hundred such chains.

    Reads the newest `limit` dead letters that were not redriven; dismissed ones count, since jobs may still wait for them.
    Parameters: `limit`, of the count too. Shape: one row `(waiting, dead_chains, chain_ids)`.
    Locks: none. Index: the primary key of `dead_letter`, `ix_job_blocker_chain`, the primary key.
    """
    key = t.id_type
    dead_letters = (
        sa.select(t.dead_letter.c.job_id)
        .where(t.dead_letter.c.resolution.is_distinct_from(sa.literal_column(f"'{Resolution.REDRIVEN}'")))
        .order_by(t.dead_letter.c.id.desc())
        .limit(_LIMIT)
    )
    # Arrays, not joins: a plan from the statistics of empty tables would read all blockers once per dead letter.
    dead = sa.select(t.job.c.chain_id).where(
        t.job.c.id == sa.any_(_array_of(dead_letters, key)), sa.cast(t.job.c.status, sa.Text) == sa.literal_column("'dead'")
    )
    waiting = (
        sa.select(t.blocker.c.job_id, t.blocker.c.blocked_by_chain_id)
        .where(t.blocker.c.blocked_by_chain_id == sa.any_(_array_of(dead, key)), ~t.blocker.c.is_resolved)
        .limit(_LIMIT)
        .subquery("waiting")
    )
    return sa.select(
        sa.func.count(waiting.c.job_id.distinct()).label("waiting"),
        sa.func.count(waiting.c.blocked_by_chain_id.distinct()).label("dead_chains"),
        sa.func.array_agg(waiting.c.blocked_by_chain_id.distinct(), type_=ARRAY(key))[1:100].label("chain_ids"),
    ).select_from(waiting)


@statement
def behind_cancelled(t: Tables) -> sa.Select[Any]:
    """Count the jobs that wait for chains that were cancelled, and name at most a hundred of them.

    Reads the newest `limit` jobs that are blocked or dead. Parameters: `limit`, of the count too. Shape: one row
    `(behind_cancelled, cancelled_chains, behind_cancelled_ids, blocked, dead)`, the last two the numbers of such jobs.
    Locks: none.
    Index: `ix_job_blocked_or_dead`, the primary keys.
    """
    newest = (
        sa.select(t.job.c.id, t.job.c.status)
        .where(t.job.c.status.in_([status(JobStatus.BLOCKED), status(JobStatus.DEAD)]))
        .order_by(t.job.c.id.desc())
        .limit(_LIMIT)
        .cte("newest")
    )
    blocked, dead = (
        sa.select(newest.c.id).where(newest.c.status == status(job_status))
        for job_status in (JobStatus.BLOCKED, JobStatus.DEAD)
    )
    waiting = (
        sa.select(t.blocker.c.job_id, t.blocker.c.blocked_by_chain_id)
        .where(t.blocker.c.job_id == sa.any_(_array_of(blocked, t.id_type)), ~t.blocker.c.is_resolved)
        .limit(_LIMIT)
        .cte("waiting")
    )
    cancelled = sa.select(t.job.c.id).where(
        t.job.c.id == sa.any_(_array_of(sa.select(waiting.c.blocked_by_chain_id), t.id_type)),
        t.job.c.chain_completed_at.is_not(None),
        sa.func.coalesce(t.job.c.chain_status, t.job.c.status) == status(JobStatus.CANCELLED),
    )
    return sa.select(
        sa.func.count(waiting.c.job_id.distinct()).label("behind_cancelled"),
        sa.func.count(waiting.c.blocked_by_chain_id.distinct()).label("cancelled_chains"),
        sa.func.array_agg(waiting.c.job_id.distinct(), type_=ARRAY(t.id_type))[1:100].label("behind_cancelled_ids"),
        sa.select(sa.func.count()).select_from(blocked.subquery("blocked")).scalar_subquery().label("blocked"),
        sa.select(sa.func.count()).select_from(dead.subquery("dead")).scalar_subquery().label("dead"),
    ).where(waiting.c.blocked_by_chain_id == sa.any_(_array_of(cancelled, t.id_type)))


@statement
def dead_jobs(t: Tables) -> sa.CompoundSelect[Any]:
    """Return the dead jobs of chains. Parameters: `chain_ids`. Shape: `(id, type_name)`. Index: `uq_job_chain`."""
    job = t.job
    chain_ids = t.ids("chain_ids")
    # A chain of one has a primary key only, and the jobs behind the first of a chain its id as `root_id`.
    is_dead = sa.cast(job.c.status, sa.Text) == sa.literal_column("'dead'")
    return sa.union_all(
        *(
            sa.select(job.c.id, job.c.type_name).where(column == sa.any_(chain_ids), is_dead)
            for column in (job.c.id, job.c.root_id)
        )
    )


@statement
def chains_to_unblock(t: Tables) -> sa.Select[int, Any]:
    """Count the chains that have ended and whose end was not passed on, and tell since when the oldest waits.

    Parameters: `limit`: it counts no further. Shape: one row `(chains_to_unblock, ended_at)`. Locks: none.
    Index: `ix_job_has_waiters`, usually empty.
    """
    ended_chains = (
        sa.select(t.job.c.chain_completed_at)
        .where(t.job.c.has_waiters, t.job.c.chain_completed_at.is_not(None))
        .limit(_LIMIT)
        .subquery("found")
    )
    return sa.select(
        sa.func.count().label("chains_to_unblock"), sa.func.min(ended_chains.c.chain_completed_at).label("ended_at")
    ).select_from(ended_chains)


@statement
def unfinished_writes(t: Tables) -> sa.Select[Any]:
    """Count the bulk writes that have staged rows and have not committed, and return the oldest.

    Parameters: `limit`: it counts no further. Shape: one row `(unfinished, oldest_write_id, staged_at)`, or none;
    `staged_at` is that of one of the write's first rows. Rows of tasks that have not ended are not visible yet.
    Locks: none. Index: `ix_job_bulk_staging_write`, one probe a write, and the ledger's primary key.
    """
    stage, write = _stage(t), _write(t)
    staged = _first_of_each("staged", (stage.c.write_id, stage.c.sequence), stage.c.staged_at)
    # A task that ends after the commit, such as a speculative copy, leaves rows of a write that is finished.
    committed = sa.exists(_ONE).where(write.c.write_id == staged.c.write_id, write.c.sequence == staged.c.sequence)
    unfinished = sa.select(staged).where(~committed).limit(_LIMIT).subquery("found")
    columns = (
        sa.func.count().over().label("unfinished"),
        unfinished.c.write_id.label("oldest_write_id"),
        unfinished.c.staged_at,
    )
    return sa.select(*columns).order_by(unfinished.c.staged_at).limit(_ONE)


@statement
def rejected_rows(t: Tables) -> sa.Select[int, int]:
    """Count the rejected rows of bulk writes that are kept, and those of writes of the last day.

    Parameters: `limit`: it counts no further. Shape: one row `(rejected, rejected_last_day)`. Clock: the database's.
    Locks: none. Index: `ix_job_bulk_write_written_at`, the primary key of `job_bulk_reject`.
    """
    reject, write = _reject(t), _write(t)
    lately = (
        write.c.written_at > sa.func.now() - sa.literal_column("interval '24 hours'"),
        write.c.rejected > sa.literal_column("0"),
    )
    of_write = (reject.c.write_id == write.c.write_id) & (reject.c.sequence == write.c.sequence)
    rejected = sa.select(reject.c.write_id).limit(_LIMIT).subquery("kept")
    new = sa.select(reject.c.write_id).select_from(write.join(reject, of_write)).where(*lately).limit(_LIMIT).subquery("new")
    return sa.select(
        sa.select(sa.func.count()).select_from(rejected).scalar_subquery().label("rejected"),
        sa.select(sa.func.count()).select_from(new).scalar_subquery().label("rejected_last_day"),
    )


# The tables of bulk writes by their names: they may be in the database where no class is mapped to them.
def _stage(t: Tables) -> sa.TableClause:
    return _of_pipeline(t, "job_bulk_staging", staged_at=sa.DateTime(timezone=True))


def _write(t: Tables) -> sa.TableClause:
    return _of_pipeline(t, "job_bulk_write", written_at=sa.DateTime(timezone=True), rejected=sa.BigInteger())


def _reject(t: Tables) -> sa.TableClause:
    return _of_pipeline(t, "job_bulk_reject")


def _of_pipeline(t: Tables, noun: str, **types: sa.types.TypeEngine[Any]) -> sa.TableClause:
    columns: dict[str, Any] = {"write_id": sa.Text(), "sequence": sa.BigInteger(), **types}
    return sa.table(
        t.layout.name(noun),
        *(sa.column(name, type_) for name, type_ in columns.items()),
        schema=t.layout.quoted_schema,
    )


def _lanes(job: sa.Table) -> tuple[tuple[sa.ColumnElement[bool], ...], tuple[sa.ColumnElement[Any], ...], sa.CTE]:
    """Return the condition and the key of the entries of lanes in `ix_job_claim`, and every lane, one probe each."""
    tag = (job.c.status == status(JobStatus.PENDING), job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"))
    key = (job.c.queue, job.c.fairness_key, job.c.priority)
    return tag, key, _first_of_each("lane", key, where=tag)


def _first_of_each(name: str, key: tuple[Any, ...], *columns: Any, where: tuple[Any, ...] = ()) -> sa.CTE:
    """Return each value of a key with columns of one of its rows, by one probe of an index each."""
    first = sa.select(*key, *columns).where(*where).order_by(*key).limit(_ONE)
    first_rows = sa.select(first.subquery("first")).cte(name, recursive=True)
    behind = sa.tuple_(*key) > sa.tuple_(*(first_rows.c[column.name] for column in key))
    following = first.where(behind).correlate(first_rows).lateral("following")
    return first_rows.union_all(sa.select(*following.c).select_from(first_rows.join(following, sa.true())))


def _array_of(chosen: sa.Select[Any], element_type: Any) -> sa.ColumnElement[Any]:
    return sa.func.array(chosen.scalar_subquery(), type_=ARRAY(element_type))


def looked_back() -> sa.ColumnElement[int]:
    """Return the number of the transaction that is `transactions`, a parameter, before the next one."""
    newest = sa.cast(sa.cast(sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot()), sa.Text), sa.BigInteger)
    return sa.func.greatest(newest - sa.bindparam("transactions", type_=sa.BigInteger), sa.literal_column("0"))
