"""Limits that hold across all workers: whose turn it is to claim under one, how much room it has, what a claim has used.

A claim under a limit is a transaction: `lock`, `running`, the claim, `spend`. The row of the queue or the type is locked
for its length, so two such claims never count the same room; nothing is written for a job, and what a dead worker ran
counts until it is taken back.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Double,
    Integer,
    Select,
    Table,
    Text,
    Update,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements._parts import once_a_model, status, table
from sa_jobqueue.statements.parts import whole
from sa_jobqueue.types import JobStatus


@once_a_model
def lock(model: type[JobMixin[Any]]) -> Select[Any]:
    """Lock what limits a queue and a job type, and tell the limits.

    Parameters: `queue`, `type_name`, null for none.
    Shape: `(max_running, tokens, per_second)` a row that is there and free, first the queue's: how many may run at once, how
    many may be started now, and how many more each second; null where there is no such limit.
    Clock: the database's, at the start of the transaction, as of `started_at`.
    Locks: those rows, until the transaction ends; skipped where another claim holds them.
    Obliges: a caller that gets fewer rows than it asked for must not claim. Index: the primary keys.
    """
    queue, kind = table(model.Queue), table(model.JobType)
    parts = [
        select(of.c.max_running, _tokens(of).label("tokens"), _per_second(of).label("per_second"))
        .where(name == bindparam(parameter, type_=Text))
        .with_for_update(key_share=True, skip_locked=True)
        .subquery(parameter)
        for of, name, parameter in ((queue, queue.c.name, "queue"), (kind, kind.c.type_name, "type_name"))
    ]
    return select(union_all(*(select(*part.c) for part in parts)).subquery("limits"))


@once_a_model
def running(model: type[JobMixin[Any]]) -> Select[int, int]:
    """Count the running jobs of a queue, its parts among them, and those of a type.

    Parameters: `queue`, `type_name`, null for none. Shape: `(in_queue, of_type)`. Locks: none.
    Obliges: run it after `lock`, as a statement of its own, for one that locks sees what was before it waited.
    Index: `ix_job_running`, every running job: a limit costs as much as there are slots in all workers together.
    """
    job = table(model)
    in_queue = func.count().filter(whole(job.c.queue) == bindparam("queue", type_=Text))
    of_type = func.count().filter(job.c.type_name == bindparam("type_name", type_=Text))
    return select(in_queue, of_type).where(job.c.status == status(JobStatus.RUNNING))


@once_a_model
def spend(model: type[JobMixin[Any]], *, of_type: bool) -> Update:
    """Take `count` from what a queue, or a type, may start by its rate; nothing where it has none.

    Parameters: `limited`, its name, and `count`. Changes: `rate_tokens`, `rate_at`. Clock: as `lock`.
    Locks: the row, which the transaction has locked before. Index: the primary key.
    """
    of = table(model.JobType) if of_type else table(model.Queue)
    name = of.c.type_name if of_type else of.c.name
    return (
        update(of)
        .where(name == bindparam("limited", type_=Text), of.c.rate_limit.is_not(None))
        .values(rate_tokens=_tokens(of) - bindparam("count", type_=Integer), rate_at=func.greatest(of.c.rate_at, func.now()))
    )


def _per_second(of: Table) -> ColumnElement[float]:
    return cast(of.c.rate_limit / func.extract("epoch", of.c.rate_period), Double)


def _tokens(of: Table) -> ColumnElement[float]:
    """Return the token bucket's content: full at first, refilled at the rate since it was written, never above the burst."""
    burst = cast(func.coalesce(of.c.rate_burst, of.c.rate_limit), Double)
    since = func.greatest(func.extract("epoch", func.now() - of.c.rate_at), literal_column("0"))
    filled = func.coalesce(of.c.rate_tokens + cast(since, Double) * _per_second(of), burst)
    return case((of.c.rate_limit.is_not(None), func.least(burst, filled)))
