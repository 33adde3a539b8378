"""Limits across all workers: the lock to claim under one, its remaining capacity, and recording the use of a claim.

A claim under a limit is a transaction: `lock`, `running`, the claim, `spend`. The row of the queue or the type is locked
for its length, so two such claims never count the same capacity; nothing is written per job, and the jobs of a lost worker
count until they are rescued.

Nor is the locked row written to: the starts under a rate limit are stored in `rate_state`, where a read passes no dead row
versions, however long vacuum is held back. The price: `lock` may return a state older than the one that the lock's previous
holder wrote, for its snapshot was taken before it got the lock, and an unchanged locked row does not reveal that. `spend`
detects it.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models.base import Xid8
from sa_jobqueue.statements._parts import Tables, array, relation, statement, status
from sa_jobqueue.types import JobStatus

RATE: Final = ("rate_limit", "rate_period", "rate_burst")
STATE: Final = ("tokens", "spent_at")
"""Columns of a rate limit, in `RATE`, and of its state. A `rates.Rate` is created from both."""


def newest_state(t: Tables, settings: sa.Table) -> sa.FromClause:
    """Select the starts under the rate of a row of `queue` or `job_type`: nothing without a rate or starts.

    Shape: `version` and `STATE`. Index: `pk_rate_state`, from its end: one entry that is not dead.
    """
    state = t.rate_state.alias("state")
    is_type = settings is t.job_type
    name, fairness_key = (
        (settings.c.type_name, sa.literal_column("''")) if is_type else (settings.c.name, settings.c.fairness_key)
    )
    return (
        sa.select(
            *(state.c[column] for column in ("version", *STATE)),
        )
        .where(
            settings.c.rate_limit.is_not(None),
            state.c.is_type == sa.literal_column("true" if is_type else "false", sa.Boolean),
            state.c.name == name,
            state.c.fairness_key == fairness_key,
        )
        .order_by(state.c.version.desc())
        .limit(sa.literal_column("1"))
        .lateral("state")
    )


@statement
def lock(t: Tables) -> sa.Select[Any]:
    """Lock the rows that limit a queue, its fairness keys and a job type, and return the limits.

    Parameters: `queue`; its `fairness_keys`, an empty one for the queue's own limits; `type_name`, or null.
    Shape: `(is_type, name, fairness_key, global_concurrency, concurrency_per_key)`, `RATE`, `STATE`, `(version, now)`
    for each row that exists and is free: the limit of running jobs, also per fairness key, the columns of a `rates.Rate`,
    and the parameters of `spend`. They are null without such a limit, or before the first start. Unordered.
    Clock: the database's, at the start of the transaction, like `started_at`.
    Locks: those rows, until the transaction ends; rows that another claim has locked are skipped.
    Obliges: the caller must not claim jobs that a requested but missing row limits, nor jobs under a rate that `spend` does
    not accept. Index: the primary keys, in `rate_state` read backwards from the newest entry.
    """
    of_key = t.queue.c.fairness_key == sa.any_(array("fairness_keys", sa.Text()))
    of_queues = (t.queue.c.name == sa.bindparam("queue", type_=sa.Text)) & of_key
    of_type = t.job_type.c.type_name == sa.bindparam("type_name", type_=sa.Text)
    return sa.select(_limits(t, of_queues, of_type, locks=True))


def _limits(t: Tables, of_queues: ColumnElement[bool], of_type: ColumnElement[bool], *, locks: bool) -> sa.Subquery:
    """Select the limits of some rows of `queue` and of `job_type`: the shape of `lock`."""
    parts: list[sa.Select[Any]] = []
    for settings, name, where in ((t.queue, t.queue.c.name, of_queues), (t.job_type, t.job_type.c.type_name, of_type)):
        is_type, state = settings is t.job_type, newest_state(t, settings)
        limited_rows = (
            sa.select(
                sa.literal_column("true" if is_type else "false", sa.Boolean).label("is_type"),
                name.label("name"),
                (sa.literal_column("''", sa.Text) if is_type else settings.c.fairness_key).label("fairness_key"),
                settings.c.global_concurrency,
                (sa.cast(sa.null(), sa.Integer) if is_type else settings.c.concurrency_per_key).label("concurrency_per_key"),
                *(settings.c[column] for column in RATE),
                *(state.c[column] for column in (*STATE, "version")),
                sa.func.now().label("now"),
            )
            .select_from(settings.outerjoin(state, sa.true()))
            .where(where)
        )
        if locks:
            limited_rows = limited_rows.with_for_update(key_share=True, skip_locked=True, of=settings)
        parts.append(sa.select(*limited_rows.subquery("of_type" if is_type else "of_queues").c))
    return sa.union_all(*parts).subquery("limits")


@statement
def running(t: Tables) -> sa.Select[int, int, str]:
    """Count the running jobs of a queue, with all its fairness keys, and those of a type.

    Parameters: `queue`; `type_name`, or null; `since`, a transaction id as text below which none of them is, by default 0.
    Shape: `(in_queue, of_type, since)`; pass `since` to the next count of the same queue and type. Locks: none.
    Obliges: run it after `lock`, as a separate statement: a statement that waits for a lock sees the rows as of before it
    waited.
    Index: `ix_job_running`, the running jobs from `since` on: at most the concurrency of all workers, and jobs that ended
    after the oldest of them began and are not vacuumed yet.
    """
    in_queue = t.job.c.queue == sa.bindparam("queue", type_=sa.Text)
    of_type = t.job.c.type_name == sa.bindparam("type_name", type_=sa.Text)
    since = _lower_bound(sa.func.min(t.job.c.changed_xid).filter(in_queue | of_type))
    return sa.select(sa.func.count().filter(in_queue), sa.func.count().filter(of_type), since).where(*_running_since(t.job))


@statement
def running_by_fairness_key(t: Tables) -> sa.Select[str, int, str]:
    """Count the running jobs of each fairness key of a queue, and those without one.

    Parameters: `queue`; `since`, as `running`. Shape: `(fairness_key, n, since)` of each that has any, unordered: the lowest
    `since` is for the next count of the same queue. Locks: none.
    Obliges: as `running`. Index: `ix_job_running`, as `running`.
    """
    since = _lower_bound(sa.func.min(t.job.c.changed_xid))
    in_queue = t.job.c.queue == sa.bindparam("queue", type_=sa.Text)
    counts = sa.select(t.job.c.fairness_key, sa.func.count().label("n"), since)
    return counts.where(*_running_since(t.job), in_queue).group_by(t.job.c.fairness_key)


def _running_since(job: sa.Table) -> list[ColumnElement[bool]]:
    since = sa.cast(sa.bindparam("since", "0", type_=sa.Text), Xid8())
    return [job.c.status == status(JobStatus.RUNNING), job.c.changed_xid >= since]


def _lower_bound(oldest: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the lowest id that a row counted later can have: of one counted now, or of a transaction not seen yet."""
    in_flight: ColumnElement[Any] = sa.literal_column("pg_snapshot_xmin(pg_current_snapshot())")
    return sa.cast(sa.func.least(oldest, in_flight), sa.Text).label("since")


@statement
def spend(t: Tables) -> sa.Insert:
    """Record starts under rate limits, each in a new version of its state, if the one that `lock` returned is the newest.

    Parameters: `is_types`, `names` and `fairness_keys` of the rates, `versions` as returned, null for none, and `tokens`;
    all in the same order. Shape: `(name,)` of each that was written.
    Changes: a new row, `spent_at` the database's `now()`, as in `lock`; the row before is deleted.
    Locks: no others, since a writer of these rows holds the locks of `lock`.
    Obliges: roll back if a row was not written, because another claim has spent meanwhile. Run it after `lock`, as a
    separate statement in READ COMMITTED. Index: `pk_rate_state`.
    """
    spent = relation(
        "spent",
        is_type=array("is_types", sa.Boolean()),
        name=array("names", sa.Text()),
        fairness_key=array("fairness_keys", sa.Text()),
        version=array("versions", sa.BigInteger()),
        tokens=array("tokens", sa.Double()),
    )
    key = ("is_type", "name", "fairness_key")
    # Scalar subqueries, which the planner never turns into a scan of the whole index.
    old, newer = t.rate_state.alias("old"), t.rate_state.alias("newer")
    of_old = (old.c[name] == spent.c[name] for name in (*key, "version"))
    place: ColumnElement[Any] = sa.literal_column("old.ctid")
    places = sa.select(sa.select(place).select_from(old).where(*of_old).correlate(spent).scalar_subquery()).select_from(
        spent
    )
    state_place: ColumnElement[Any] = sa.literal_column(f"{t.rate_state.name}.ctid")
    before = sa.delete(t.rate_state).where(state_place == sa.any_(sa.func.array(places.scalar_subquery()))).cte("before")
    version = sa.func.coalesce(spent.c.version, sa.literal_column("0", sa.BigInteger))
    of_newer = sa.select(newer.c.version).where(*(newer.c[name] == spent.c[name] for name in key), newer.c.version > version)
    is_newest = of_newer.limit(sa.literal_column("1")).correlate(spent).scalar_subquery().is_(None)
    new = sa.select(*(spent.c[name] for name in key), version + sa.literal_column("1"), spent.c.tokens, sa.func.now())
    columns = [*key, "version", "tokens", "spent_at"]
    new_states = sa.insert(t.rate_state).from_select(columns, new.where(is_newest)).returning(t.rate_state.c.name)
    return new_states.add_cte(before)


@statement
def current(t: Tables) -> sa.Select[Any]:
    """Return the limits of queues, fairness keys and job types that have any, and what their rates have let start.

    Parameters: `limit`. Shape: as `lock`, by kind and name. Clock: the database's.
    Locks: none. Index: `pk_rate_state`, from its end, once for each row; the rows with settings are few.
    """
    limited = (t.queue.c.rate_limit, t.queue.c.global_concurrency, t.queue.c.concurrency_per_key)
    of_types = sa.func.coalesce(t.job_type.c.rate_limit, t.job_type.c.global_concurrency).is_not(None)
    both = _limits(t, sa.func.coalesce(*limited).is_not(None), of_types, locks=False)
    return (
        sa.select(both)
        .order_by(both.c.is_type, both.c.name, both.c.fairness_key)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )
