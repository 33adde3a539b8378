"""Runtime settings of queues, job types and a worker, as that worker reloads them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements._parts import array, clamped, once_a_model, table


@once_a_model
def of_worker(model: type[JobMixin[Any]]) -> sa.Select[Any]:
    """Return the settings of the queues and job types of one worker, of their fairness keys, and of the worker itself.

    Parameters: `queues`, `types`, `worker_id`.
    Shape: a row each that has one: `kind` (`queue`, `type` or `worker`), `name`, `fairness_key`, `is_paused`,
    `weight`, `global_concurrency`, `rate_limit`, `rate_period`, `rate_burst`, `rate_algorithm`,
    `concurrency_per_key`, `retry_base`, `retry_factor`, `retry_cap`; of the worker `global_concurrency` is the concurrency
    asked for, null for its own. Unordered. Locks: none. Index: the primary keys; all of `queue` and of `worker`, which are
    small.
    """
    queue, kind, worker = table(model.Queue), table(model.JobType), table(model.Worker)

    def rows(what: str, of: Any, *columns: Any) -> sa.Select[Any]:
        return sa.select(sa.literal_column(f"'{what}'", sa.Text).label("kind"), *columns).select_from(of)

    def limits(of: Any) -> list[Any]:
        period = clamped(of.c.rate_period).label("rate_period")
        return [of.c.global_concurrency, of.c.rate_limit, period, of.c.rate_burst, of.c.rate_algorithm]

    no_key = sa.literal_column("''", sa.Text)
    one, nothing = sa.literal_column("1", sa.Integer), sa.cast(sa.null(), sa.Integer)
    no_retry = [sa.cast(sa.null(), sa.Interval), sa.cast(sa.null(), sa.Double), sa.cast(sa.null(), sa.Interval)]
    settings = sa.union_all(
        rows(
            "queue",
            queue,
            queue.c.name,
            queue.c.fairness_key,
            queue.c.paused_at.is_not(None).label("is_paused"),
            queue.c.weight,
            *limits(queue),
            queue.c.concurrency_per_key,
            queue.c.retry_base,
            queue.c.retry_factor,
            queue.c.retry_cap,
        ).where(queue.c.name == sa.any_(array("queues", sa.Text()))),
        rows(
            "type",
            kind,
            kind.c.type_name,
            no_key,
            kind.c.paused_at.is_not(None),
            one,
            *limits(kind),
            nothing,
            *no_retry,
        ).where(kind.c.type_name == sa.any_(array("types", sa.Text()))),
        rows(
            "worker",
            worker,
            worker.c.id,
            no_key,
            sa.literal_column("false"),
            one,
            worker.c.concurrency_requested,
            nothing,
            sa.cast(sa.null(), sa.Interval),
            nothing,
            sa.cast(sa.null(), sa.Text),
            nothing,
            *no_retry,
        ).where(worker.c.id == sa.bindparam("worker_id", type_=sa.Text)),
    ).subquery("setting")
    return sa.select(*settings.c)


@once_a_model
def notify_rules(model: type[JobMixin[Any]]) -> sa.Select[Any]:
    """Notify running workers, if this transaction commits, that their settings have changed.

    Locks: a commit that carries a notification takes one lock a database for a moment.
    """
    return sa.select(sa.func.pg_notify(model.__jobqueue__.channel("rules"), sa.literal_column("''")))
