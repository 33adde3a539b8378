"""Runtime settings of queues, job types and a worker, as that worker reloads them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Double,
    Integer,
    Interval,
    Select,
    Text,
    any_,
    bindparam,
    func,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy import cast as sql_cast

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements._parts import array, clamped, once_a_model, table


@once_a_model
def of_worker(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the settings of the queues and job types of one worker, of their fairness keys, and of the worker itself.

    Parameters: `queues`, `types`, `worker_id`.
    Shape: a row each that has one: `kind` (`queue`, `type` or `worker`), `name`, `fairness_key`, `is_paused`,
    `weight`, `global_concurrency`, `rate_limit`, `rate_period`, `rate_burst`, `rate_algorithm`,
    `concurrency_per_key`, `retry_base`, `retry_factor`, `retry_cap`; of the worker `global_concurrency` is the concurrency
    asked for, null for its own. Unordered. Locks: none. Index: the primary keys; all of `queue` and of `worker`, which are
    small.
    """
    queue, kind, worker = table(model.Queue), table(model.JobType), table(model.Worker)

    def rows(what: str, of: Any, *columns: Any) -> Select[Any]:
        return select(literal_column(f"'{what}'", Text).label("kind"), *columns).select_from(of)

    def limits(of: Any) -> list[Any]:
        period = clamped(of.c.rate_period).label("rate_period")
        return [of.c.global_concurrency, of.c.rate_limit, period, of.c.rate_burst, of.c.rate_algorithm]

    no_key = literal_column("''", Text)
    one, nothing = literal_column("1", Integer), sql_cast(null(), Integer)
    no_retry = [sql_cast(null(), Interval), sql_cast(null(), Double), sql_cast(null(), Interval)]
    settings = union_all(
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
        ).where(queue.c.name == any_(array("queues", Text()))),
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
        ).where(kind.c.type_name == any_(array("types", Text()))),
        rows(
            "worker",
            worker,
            worker.c.id,
            no_key,
            literal_column("false"),
            one,
            worker.c.concurrency_requested,
            nothing,
            sql_cast(null(), Interval),
            nothing,
            sql_cast(null(), Text),
            nothing,
            *no_retry,
        ).where(worker.c.id == bindparam("worker_id", type_=Text)),
    ).subquery("setting")
    return select(*settings.c)


@once_a_model
def notify_rules(model: type[JobMixin[Any]]) -> Select[Any]:
    """Notify running workers, if this transaction commits, that their settings have changed.

    Locks: a commit that carries a notification takes one lock a database for a moment.
    """
    return select(func.pg_notify(model.__jobqueue__.channel("rules"), literal_column("''")))
