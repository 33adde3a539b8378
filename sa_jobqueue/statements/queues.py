"""Queues and job types as rows: the settings an operator writes. Workers read them with `controls`.

Both are written by the same statements: `of` is `Job.Queue` or `Job.JobType`. Those that pause, resume and delete them are
in `named_rows`.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobTypeMixin, QueueMixin
from sa_jobqueue.models.options import DECLARED
from sa_jobqueue.registry.settings import QueueColumns, settings_of
from sa_jobqueue.statements._parts import Tables, alive_until, array, once_a_model, relation, statement, status, table
from sa_jobqueue.statements.named_rows import key_of
from sa_jobqueue.types import JobStatus

SETTINGS: Final = tuple(settings_of(QueueColumns))
"""The columns that limit the jobs of a queue; a job type has some of them."""
_STATE: Final = ("paused_at", "paused_by", "created_at", "updated_at")


@statement
def with_pending_jobs(t: Tables) -> sa.Select[Any]:
    """Return those of some queues in which jobs are pending. Parameters: `names`. Locks: none. Index: `ix_job_claim`."""
    queues = relation("given", name=array("names", sa.Text()))
    first = (
        sa.select(t.job.c.queue)
        .where(t.job.c.queue == queues.c.name, t.job.c.status == status(JobStatus.PENDING))
        .limit(sa.literal_column("1"))
        .correlate(queues)
        .scalar_subquery()
    )
    return sa.select(queues.c.name).where(first.is_not(None))


@once_a_model
def put(entity: type[QueueMixin] | type[JobTypeMixin]) -> sa.Insert:
    """Write the settings of a queue or type, unless its row already has them.

    Parameters: the name, as its column is called, `fairness_key`, and those of `SETTINGS` that the table has.
    Shape: `(name, is_new)` of a row that was written; no row if nothing changed.
    Changes: those columns, `updated_at`. It stays paused. Clock: the database's.
    Locks: its row, until the transaction ends; waits for a concurrent writer of it. Index: the primary key.
    """
    row, key = table(entity), key_of(entity)
    setting_names = [name for name in SETTINGS if name in row.c]
    names = (*row.primary_key.columns.keys(), *setting_names)
    statement = insert(row).values({name: sa.bindparam(name, type_=row.c[name].type) for name in names})
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(row.primary_key.columns),
        set_={name: new[name] for name in setting_names} | {"updated_at": sa.func.now()},
        where=sa.or_(*(row.c[name].is_distinct_from(new[name]) for name in setting_names)),
    ).returning(key.label("name"), (row.c.created_at == row.c.updated_at).label("is_new"))


@statement
def add_missing(t: Tables) -> sa.Insert:
    """Insert rows with their settings for those of some queues and fairness keys that have none.

    Parameters: arrays of one length, each called as its column: `name`, `fairness_key` and those of `SETTINGS`.
    Shape: `(name, fairness_key)` of each row that was inserted, unordered. Changes: new rows. Index: the primary key.
    Locks: the new rows, until the transaction ends; waits for a transaction that inserts one of them.
    """
    row = t.queue
    names = (*row.primary_key.columns.keys(), *SETTINGS)
    each = relation("declared", **{name: array(name, row.c[name].type) for name in names})
    chosen = sa.select(*each.c).order_by(each.c.name, each.c.fairness_key)  # two that insert the same do not deadlock
    return insert(row).from_select(names, chosen).on_conflict_do_nothing().returning(row.c.name, row.c.fairness_key)


@statement
def record_types(t: Tables) -> sa.Insert:
    """Write the declarations of handlers for job types, unless the rows have it already.

    Parameters: arrays of one length, each called as its column: `type_name` and those of `DECLARED`.
    Shape: `(type_name,)` of each row that was written, unordered. Changes: those columns. Index: the primary key.
    Locks: the rows written, in the order of their names, until the transaction ends; waits for a transaction that
    inserts one of them.
    """
    names = ("type_name", *DECLARED)
    each = relation("declared", **{name: array(name, t.job_type.c[name].type) for name in names})
    same = t.job_type.alias("same")
    is_there: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        same.c.type_name == each.c.type_name, *(same.c[name].is_not_distinct_from(each.c[name]) for name in DECLARED)
    )
    chosen = sa.select(*each.c).where(~is_there.exists()).order_by(each.c.type_name)
    statement = insert(t.job_type).from_select(list(names), chosen)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[t.job_type.c.type_name], set_={name: new[name] for name in DECLARED}
    ).returning(t.job_type.c.type_name)


@statement
def page(t: Tables, *, types: bool = False) -> sa.Select[Any]:
    """Return queues, or job types, by name: those that have a row, and those that workers serve.

    Parameters: `names`, or null for all; of queues `of_key`, or null for any; `after`, the name that the page follows, or
    null, with `after_key` of queues; `limit`; `ttl`: workers that are silent for longer are dead.
    Shape: the name, of queues `fairness_key`, those of `SETTINGS` and `DECLARED` that the table has, since when it is
    paused, by whom, `created_at`, `updated_at`: null where there is no row; and `workers`: how many live ones have it, of a
    fairness key how many have its queue.
    Locks: none. Index: all of both tables, which are small.
    """
    entity = t.model.JobType if types else t.model.Queue
    row, key, worker = table(entity), key_of(entity), t.worker
    live = alive_until(worker) > sa.func.clock_timestamp()
    names_of = worker.c.job_types if types else worker.c.queues
    each = sa.select(sa.func.unnest(names_of).label("name")).where(live).subquery("each")
    by = sa.select(each.c.name, sa.func.count().label("workers")).group_by(each.c.name).cte("served")
    of_whole = by.alias("of_whole")
    names, after = sa.bindparam("names", type_=ARRAY(sa.Text)), sa.bindparam("after", None, type_=sa.Text)
    name = sa.func.coalesce(key, by.c.name)
    keys: list[ColumnElement[Any]] = []
    conditions = [sa.or_(names.is_(None), name == sa.any_(names))]
    workers: list[ColumnElement[Any]] = [by.c.workers]
    if types:
        joined = row.outerjoin(by, by.c.name == key, full=True)
        conditions += [sa.or_(after.is_(None), name > after)]
    else:
        no_key = sa.literal_column("''", sa.Text)
        fairness_key = sa.bindparam("of_key", type_=sa.Text)
        own_key = sa.func.coalesce(row.c.fairness_key, no_key)
        keys = [own_key.label("fairness_key")]
        position = sa.tuple_(after, sa.bindparam("after_key", None, type_=sa.Text))
        conditions += [
            sa.or_(fairness_key.is_(None), own_key == fairness_key),
            sa.or_(after.is_(None), sa.tuple_(name, own_key) > position),
        ]
        workers += [of_whole.c.workers]
        # A full join takes conditions that hash: the rows of keys have an empty text in the place of their name.
        own_name = sa.case((row.c.fairness_key == no_key, key), else_=no_key)
        joined = row.outerjoin(by, by.c.name == own_name, full=True).outerjoin(of_whole, of_whole.c.name == key)
    columns = [row.c[name] for name in (*SETTINGS, *DECLARED, *_STATE) if name in row.c]
    return (
        sa.select(name.label(key.name), *keys, *columns, sa.func.coalesce(*workers, 0).label("workers"))
        .select_from(joined)
        .where(*conditions)
        .order_by(name, *keys)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )
