"""Queues and job types as rows: the settings an operator writes. Workers read them with `controls`.

Both are written by the same statements: `of` is `Job.Queue` or `Job.JobType`, and a name is that of its row.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    Column,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    Update,
    any_,
    bindparam,
    delete,
    func,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, TIMESTAMP, insert
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.models import JobMixin, JobTypeMixin, QueueMixin
from sa_jobqueue.registry.settings import RETRY
from sa_jobqueue.statements._parts import array, clamped, once_a_model, table
from sa_jobqueue.statements.parts import whole

TOLD: Final = (
    *("weight", "concurrency_per_key", "global_concurrency", "rate_limit", "rate_period", "rate_burst", "rate_algorithm"),
    *RETRY,
    *("retain_completed", "retain_cancelled", "retain_dead"),
)
"""The columns that limit what a queue may run; a job type has some of them."""
_STATE: Final = ("paused_at", "paused_by", "created_at", "updated_at")


@once_a_model
def put(of: type[QueueMixin] | type[JobTypeMixin]) -> Insert:
    """Write the settings of a queue or type, unless its row already has them.

    Parameters: the name, as its column is called, and those of `TOLD` that the table has.
    Shape: `(name, is_new)` of a row that was written; no row if nothing changed.
    Changes: those columns, `updated_at`. It stays paused. Clock: the database's.
    Locks: its row, until the transaction ends; waits for a concurrent writer of it. Index: the primary key.
    """
    row, key = table(of), _key(of)
    told = [name for name in TOLD if name in row.c]
    statement = insert(row).values({name: bindparam(name, type_=row.c[name].type) for name in (key.name, *told)})
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[key],
        set_={name: new[name] for name in told} | {"updated_at": func.now()},
        where=or_(*(row.c[name].is_distinct_from(new[name]) for name in told)),
    ).returning(key.label("name"), (row.c.created_at == row.c.updated_at).label("is_new"))


@once_a_model
def pause(of: type[QueueMixin] | type[JobTypeMixin]) -> Insert:
    """Pause queues or types; those without a row get one, those that are paused stay so since when they were.

    Parameters: `names`, `by`. Shape: `(name,)` of each that was not paused, unordered.
    Changes: `paused_at` to the database's `now()`, `paused_by`, `updated_at`.
    Locks: their rows, in the order of their names, until the transaction ends. Index: the primary key.
    """
    row, key = table(of), _key(of)
    name = func.unnest(array("names", Text())).column_valued("name")
    named = select(name, func.now(), bindparam("by", type_=Text)).order_by(name)
    statement = insert(row).from_select([key.name, "paused_at", "paused_by"], named)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[key],
        set_={"paused_at": new.paused_at, "paused_by": new.paused_by, "updated_at": func.now()},
        where=row.c.paused_at.is_(None),
    ).returning(key.label("name"))


@once_a_model
def resume(of: type[QueueMixin] | type[JobTypeMixin]) -> Update:
    """Let the jobs of paused queues or types be started again.

    Parameters: `names`. Shape: `(name,)` of each that was paused, unordered.
    Changes: `paused_at` and `paused_by` to null, `updated_at`.
    Locks: the rows of those that are paused, in the order of their names, until the transaction ends.
    Index: the primary key.
    """
    row, key = table(of), _key(of)
    chosen = select(key.label("name")).where(key == any_(array("names", Text())), row.c.paused_at.is_not(None))
    locked = chosen.order_by(key).with_for_update(key_share=True).cte("locked")
    return (
        update(row)
        .where(key == locked.c.name)
        .values(paused_at=null(), paused_by=null(), updated_at=func.now())
        .returning(key.label("name"))
    )


@once_a_model
def drop(of: type[QueueMixin] | type[JobTypeMixin]) -> ReturningDelete[Any]:
    """Delete the rows of queues or types; their jobs stay.

    Parameters: `names`. Shape: `(name,)` of each that had a row, unordered.
    Locks: those rows, in the order of their names, until the transaction ends. Index: the primary key.
    """
    row, key = table(of), _key(of)
    chosen = select(key.label("name")).where(key == any_(array("names", Text())))
    locked = chosen.order_by(key).with_for_update().cte("locked")
    return delete(row).where(key == locked.c.name).returning(key.label("name"))


@once_a_model
def make(of: type[QueueMixin] | type[JobTypeMixin]) -> Insert:
    """Insert a row without settings for each of some names that has none.

    Parameters: `names`. Shape: none. Changes: new rows. Index: the primary key.
    Locks: the new rows, until the transaction ends; waits for a transaction that inserts one of them.
    """
    row, key = table(of), _key(of)
    name = func.unnest(array("names", Text())).column_valued("name")
    return insert(row).from_select([key.name], select(name).order_by(name)).on_conflict_do_nothing()


@once_a_model
def lock(of: type[QueueMixin] | type[JobTypeMixin]) -> Select[Any]:
    """Lock the existing rows of some names, for a caller that compares before it writes.

    Parameters: `names`. Shape: all columns of each, by name.
    Locks: those rows, in the order of their names, until the transaction ends. Index: the primary key.
    """
    row, key = table(of), _key(of)
    return select(row).where(key == any_(array("names", Text()))).order_by(key).with_for_update(key_share=True)


@once_a_model
def page(model: type[JobMixin[Any]], *, types: bool = False) -> Select[Any]:
    """Return queues, or job types, by name: those that have a row, and those that workers serve.

    Parameters: `names`, or null for all; `after`, the name that the page follows, or null; `limit`.
    Shape: the name, those of `TOLD` that the table has, since when it is paused, by whom, `created_at`, `updated_at`: null
    where there is no row; and `workers`: how many have it; of a part of a queue, such as `mail/42`, how many have the queue.
    Locks: none. Index: all of both tables, which are small.
    """
    of = model.JobType if types else model.Queue
    row, key, worker = table(of), _key(of), table(model.Worker)
    each = select(func.unnest(worker.c.job_types if types else worker.c.queues).label("name")).subquery("each")
    by = select(each.c.name, func.count().label("workers")).group_by(each.c.name).cte("served")
    of_whole, joined = by.alias("of_whole"), row.outerjoin(by, by.c.name == key, full=True)
    workers = [by.c.workers]
    if not types:
        workers, joined = [*workers, of_whole.c.workers], joined.outerjoin(of_whole, of_whole.c.name == whole(key))
    names, after = bindparam("names", type_=ARRAY(Text)), bindparam("after", None, type_=Text)
    name = func.coalesce(key, by.c.name)
    own = [row.c[name] for name in (*TOLD, *_STATE) if name in row.c]
    others = [clamped(one).label(one.name) if isinstance(one.type, TIMESTAMP | INTERVAL) else one for one in own]
    return (
        select(name.label(key.name), *others, func.coalesce(*workers, 0).label("workers"))
        .select_from(joined)
        .where(or_(names.is_(None), name == any_(names)), or_(after.is_(None), name > after))
        .order_by(name)
        .limit(bindparam("limit", type_=Integer))
    )


def _key(of: type[QueueMixin] | type[JobTypeMixin]) -> Column[Any]:
    row: Table = table(of)
    (key,) = row.primary_key.columns
    return key
