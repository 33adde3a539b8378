"""Fairness keys with waiting jobs: how many are due for each, and the settings of the key."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, statement, status
from sa_jobqueue.types import MIN_PRIORITY, JobStatus

ORDERS: Final = ("due", "oldest", "later", "running", "key")


@statement
def waiting(t: Tables, *, order: str = "due", in_queue: bool = False) -> sa.Select[Any]:
    """Return the fairness keys that have pending or running jobs, or settings, with what of them waits and runs.

    `order`: one of `ORDERS`; most due, oldest, most of later ones, most running, or by queue and key. `in_queue`: only
    of one queue.
    Parameters: `queue` with `in_queue`; `prefix` of the keys, or empty; `scan`, how many pending jobs are read, those whose
    keys come first; `limit`.
    Shape: `(queue, fairness_key, due, oldest_at, later, running, weight, paused_at, paused_by, global_concurrency,
    rate_limit, rate_period, rate_burst, read)`: the settings are null without a row; `read`, the number of
    pending jobs that were read. Clock: the database's. Locks: none.
    Index: `ix_job_claim` from `prefix` on, `ix_job_running`, the primary key of `queue`.
    """
    prefix = sa.bindparam("prefix", type_=sa.Text)
    no_key = sa.literal_column("''", sa.Text)
    columns = (t.job.c.queue, t.job.c.fairness_key)

    def key_conditions(name: sa.ColumnElement[Any], key: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        conditions = [name == sa.bindparam("queue", type_=sa.Text)] if in_queue else []
        return [*conditions, key >= prefix, key != no_key]

    pending = (
        sa.select(*columns, t.job.c.scheduled_at, (t.job.c.scheduled_at <= sa.func.now()).label("is_due"))
        .where(
            t.job.c.status == status(JobStatus.PENDING),
            t.job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"),
            *key_conditions(t.job.c.queue, t.job.c.fairness_key),
        )
        .order_by(t.job.c.queue, t.job.c.fairness_key, t.job.c.priority, t.job.c.scheduled_at, t.job.c.id)
        .limit(sa.bindparam("scan", type_=sa.Integer))
        .cte("pending")
    )
    nothing = sa.cast(sa.null(), sa.DateTime(timezone=True))
    running = sa.select(*columns, nothing, sa.cast(sa.null(), sa.Boolean)).where(
        t.job.c.status == status(JobStatus.RUNNING), *key_conditions(t.job.c.queue, t.job.c.fairness_key)
    )
    # Those with settings as well; neither running nor pending.
    configured = sa.select(
        t.queue.c.name, t.queue.c.fairness_key, sa.literal_column("'infinity'::timestamptz"), sa.null()
    ).where(*key_conditions(t.queue.c.name, t.queue.c.fairness_key))
    each = sa.union_all(sa.select(pending), running, configured).subquery("each")
    is_due, is_pending = each.c.is_due, each.c.is_due.is_not(None)
    key = (each.c.queue, each.c.fairness_key)
    keys = (
        sa.select(
            *key,
            sa.func.count().filter(is_due).label("due"),
            sa.func.min(each.c.scheduled_at).filter(is_due).label("oldest_at"),
            sa.func.count().filter(is_pending & ~is_due).label("later"),
            sa.func.count().filter(each.c.scheduled_at.is_(None)).label("running"),
        )
        .where(sa.func.starts_with(each.c.fairness_key, prefix))
        .group_by(*key)
        .subquery("found")
    )
    settings = ("weight", "paused_at", "paused_by", "global_concurrency", "rate_limit", "rate_period")
    orders: dict[str, list[Any]] = {
        "due": [keys.c.due.desc()],
        "oldest": [keys.c.oldest_at.asc().nulls_last()],
        "later": [keys.c.later.desc()],
        "running": [keys.c.running.desc()],
        "key": [],
    }
    read = sa.select(sa.func.count()).select_from(pending).scalar_subquery().label("read")
    of_key = (t.queue.c.name == keys.c.queue) & (t.queue.c.fairness_key == keys.c.fairness_key)
    return (
        sa.select(*keys.c, *(t.queue.c[name] for name in (*settings, "rate_burst")), read)
        .select_from(keys.outerjoin(t.queue, of_key))
        .order_by(*orders[order], keys.c.queue, keys.c.fairness_key)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )
