"""Limits that hold across all workers: whose turn it is to claim under one, how much room it has, what a claim has used.

A claim under a limit is a transaction: `lock`, `running`, the claim, `spend`. The row of the queue or the type is locked
for its length, so two such claims never count the same room; nothing is written for a job, and what a dead worker ran
counts until it is taken back.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    Integer,
    Select,
    Table,
    Text,
    Update,
    any_,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import Xid8
from sa_jobqueue.statements._parts import array, element, once_a_model, position, status, table
from sa_jobqueue.statements.parts import whole
from sa_jobqueue.types import JobStatus

RATE: Final = ("rate_limit", "rate_period", "rate_burst", "rate_algorithm", "rate_tokens", "rate_starts", "rate_at")
"""The columns of a rate and of what was started under it, as `rates.Rate` has them."""


@once_a_model
def lock(model: type[JobMixin[Any]]) -> Select[Any]:
    """Lock what limits a queue, parts of it and a job type, and tell the limits.

    Parameters: `queues`, names of queues and parts; `type_name`, null for none.
    Shape: `(is_type, name, max_running, key_max_running)` and `RATE` a row that is there and free, and `now`: how many may
    run at once, how many of each fair key, what a `rates.Rate` is made of; null where there is no such limit. Unordered.
    Clock: the database's, at the start of the transaction, as of `started_at`.
    Locks: those rows, until the transaction ends; skipped where another claim holds them.
    Obliges: a caller must claim nothing that a row limits which it asked for and did not get. Index: the primary keys.
    """
    queue, kind = table(model.Queue), table(model.JobType)
    none = cast(null(), Integer)
    parts = [
        select(
            literal_column("true" if of is kind else "false", Boolean).label("is_type"),
            name.label("name"),
            of.c.max_running,
            (none if of is kind else of.c.key_max_running).label("key_max_running"),
            *(of.c[column] for column in RATE),
            func.now().label("now"),
        )
        .where(where)
        .with_for_update(key_share=True, skip_locked=True)
        .subquery("of_type" if of is kind else "of_queues")
        for of, name, where in (
            (queue, queue.c.name, queue.c.name == any_(array("queues", Text()))),
            (kind, kind.c.type_name, kind.c.type_name == bindparam("type_name", type_=Text)),
        )
    ]
    return select(union_all(*(select(*part.c) for part in parts)).subquery("limits"))


@once_a_model
def running(model: type[JobMixin[Any]]) -> Select[int, int, str]:
    """Count the running jobs of a queue, its parts among them, and those of a type.

    Parameters: `queue`, `type_name`, null for none; `since`, a transaction's id as text below which there are none of them,
    0 unless given. Shape: `(in_queue, of_type, since)`, the last for the next count of the same two. Locks: none.
    Obliges: run it after `lock`, as a statement of its own, for one that locks sees what was before it waited.
    Index: `ix_job_running`, every running job from `since` on: as many as there are slots in all workers together, and what
    has ended after the oldest of them began and is not vacuumed yet.
    """
    job = table(model)
    in_queue = whole(job.c.queue) == bindparam("queue", type_=Text)
    of_type = job.c.type_name == bindparam("type_name", type_=Text)
    since = _floor(func.min(job.c.changed_xid).filter(in_queue | of_type))
    return select(func.count().filter(in_queue), func.count().filter(of_type), since).where(*_running_since(job))


@once_a_model
def running_by_part(model: type[JobMixin[Any]]) -> Select[str, int, str]:
    """Count the running jobs of each part of a queue.

    Parameters: `queue`; `since`, as `running`. Shape: `(queue, n, since)` of each that has any, unordered: the lowest
    `since` is for the next count of the same queue. Locks: none.
    Obliges: as `running`. Index: `ix_job_running`, as `running`.
    """
    job = table(model)
    since = _floor(func.min(job.c.changed_xid))
    is_part_of = whole(job.c.queue) == bindparam("queue", type_=Text)
    return select(job.c.queue, func.count().label("n"), since).where(*_running_since(job), is_part_of).group_by(job.c.queue)


def _running_since(job: Table) -> list[ColumnElement[bool]]:
    since = cast(bindparam("since", "0", type_=Text), Xid8())
    return [job.c.status == status(JobStatus.RUNNING), job.c.changed_xid >= since]


def _floor(oldest: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the lowest id that a row counted later can have: of one counted now, or of a transaction not seen yet."""
    in_flight: ColumnElement[Any] = literal_column("pg_snapshot_xmin(pg_current_snapshot())")
    return cast(func.least(oldest, in_flight), Text).label("since")


@once_a_model
def spend(model: type[JobMixin[Any]], *, of_type: bool) -> Update:
    """Remember what was started under the rates of queues and parts, or of types.

    Parameters: `names`, and in their order `tokens` and `starts`, of which each is an array as text.
    Changes: `rate_tokens`, `rate_starts`, and `rate_at` to the database's `now()`, as of `lock`.
    Locks: the rows, which the transaction has locked before. Index: the primary key.
    """
    of = table(model.JobType) if of_type else table(model.Queue)
    name = of.c.type_name if of_type else of.c.name
    names = array("names", Text())
    place = position(names, name)
    # Each an array of its own length, which one array of all could not hold.
    starts = cast(element(array("starts", Text()), place), ARRAY(BigInteger))
    tokens = element(array("tokens", Double()), place)
    return update(of).where(name == any_(names)).values(rate_tokens=tokens, rate_starts=starts, rate_at=func.now())
