"""Finding the chain that already has a deduplication key, and preventing that a second one is created meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.selectable import ExecutableReturnsRows, TableValuedAlias

from sa_jobqueue.db.copy import CopyTarget, quote
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.statements._parts import XID, Tables, array, bound, excluded, relation, statement, status
from sa_jobqueue.statements.jobs import new_rows, unless_taken
from sa_jobqueue.types import JobId, JobStatus

REPLACEABLE: Final = {"input": ("input", "input_version"), "schedule": ("scheduled_at",), "priority": ("priority",)}
"""Fields of a waiting job that a later job may replace, with their columns."""
_STAGED: Final = "job_copied"


@statement
def lock_keys(t: Tables) -> sa.Select[Any]:
    """Wait until no other transaction is enqueueing with these keys, and keep others waiting until ours ends.

    Parameters: `type_names` and `keys`, in one order, that of `(type_name, key)`.
    Shape: a row a key. Locks: an advisory lock each, by a 64-bit hash of queue, type and key, in the order given; two keys
    that share a hash wait for each other for nothing. Each takes a place in the server's lock table: hundreds, not more.
    """
    keys = _keys()
    name = sa.func.concat_ws("\x1f", t.layout.channel("due"), keys.c.type_name, keys.c.key)
    return sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 0))).select_from(keys)


@bound
def again(t: Tables, job_id: JobId) -> ExecutableReturnsRows:
    """Read a job as an ORM object, also one that the session has. Index: the primary key."""
    # Not an ORM select: criteria that the application adds to its own ones could hide who has a key.
    chosen = sa.select(t.job).where(t.job.c.id == job_id)
    return sa.select(t.model).from_statement(chosen).execution_options(populate_existing=True)


@statement
def replace(t: Tables, replaced: tuple[str, ...]) -> sa.Select[Any]:
    """Replace values of the first jobs of chains with those of later jobs, unless they have begun meanwhile.

    `replaced`: of `REPLACEABLE`; none keeps them from beginning until the transaction ends, and that is all.
    Parameters: `ids`; of the later jobs, in the same order, those of `enqueue_many` for `deduplication_key` and those
    columns, whose names begin with `next_`; with "schedule" `max_wait`: however often it is moved, a job is due so long
    after it was enqueued, null for no limit.
    Shape: `(id,)` of the jobs changed; not of one that has begun, has ended, or has the key no longer.
    Changes: those columns, `changed_xid`. Clock: the database's `now()`, from which delays count.
    Locks: their rows, awaited: a claim under way decides whether one has begun. Index: the primary key.
    """
    job = t.job
    columns = replaced_columns(replaced)
    _, chosen, later = new_rows(t, ("deduplication_key", *columns), targets="ids")
    new = chosen.add_columns(later.c.target).subquery("new")
    *_, due, _ = new.c
    values: dict[str, Any] = {name: new.c[name] for name in columns}
    for name, plain in (("priority", 0), ("input_version", 1)):
        if name in values:  # null: decided by the database, as for a new row
            kind = t.job_type
            declared = sa.select(kind.c[name]).where(kind.c.type_name == job.c.type_name).scalar_subquery()
            values[name] = sa.func.coalesce(values[name], declared, plain)
    if "schedule" in replaced:  # LEAST passes over null
        values["scheduled_at"] = sa.func.least(due, job.c.created_at + _duration("max_wait"))
    changed = (
        sa.update(job)
        # By the list as well, which no plan joins by reading the whole table.
        .where(job.c.id == new.c.target, job.c.id == sa.any_(t.ids("ids")))
        .where(job.c.deduplication_key == new.c.deduplication_key, _waits(job))
        .values(values | {"changed_xid": XID})  # also where no trigger would: a claim has passed what we hold
        .returning(job.c.id)
        .cte("changed")
    )
    return sa.select(changed)


def replaced_columns(replaced: Iterable[str]) -> list[str]:
    """Return the columns that `replace` reads from arrays."""
    return [name for part in replaced for name in REPLACEABLE[part] if name != "scheduled_at"]


@statement
def give_up(t: Tables, *, begun: bool) -> sa.Update:
    """Take the keys from open chains: from those whose first job has begun, or from the chains of the parameter `ids`.

    Parameters: `type_names` and `keys`, in one order. Locks: their root jobs.
    Index: `uq_job_deduplication`, a probe a key.
    """
    job, keys = t.job, _keys()
    return (
        sa.update(job)
        .where(*_open(job, keys), ~_waits(job) if begun else job.c.id == sa.any_(t.ids("ids")))
        .values(deduplication_key=sa.null())
        .execution_options(synchronize_session=False)
    )


@bound
def stage(t: Tables, columns: Sequence[str]) -> tuple[sa.TextClause, CopyTarget]:
    """Return the DDL of a temporary table with these columns of jobs, and the target of a COPY to it.

    Obliges: `drop_staged` in the same transaction. Changes: the session's catalog. Locks: none that others meet.
    """
    quoted = ", ".join(quote(name) for name in columns)
    create_table = f"CREATE TEMPORARY TABLE {_STAGED} ON COMMIT DROP AS SELECT {quoted} FROM {t.layout.qualified('job')}"
    return verbatim(f"{create_table} WITH NO DATA"), CopyTarget("pg_temp", _STAGED, tuple(columns))


def drop_staged() -> str:
    """Drop the temporary table of `stage`."""
    return f"DROP TABLE pg_temp.{_STAGED}"


@bound
def put_all_staged(t: Tables, columns: Sequence[str]) -> sa.Insert:
    """Insert the rows copied by `stage`, as a COPY to the table would.

    Shape: no rows returned, as many affected as were made. Changes: a row each. Locks: the new rows.
    """
    staged = sa.table(_STAGED, *(sa.column(name, t.job.c[name].type) for name in columns), schema="pg_temp")
    inserted = sa.insert(t.job).from_select(list(columns), sa.select(*staged.c), include_defaults=False)
    return inserted.execution_options(preserve_rowcount=True)


@bound
def put_staged(t: Tables, columns: Sequence[str]) -> sa.Insert:
    """Insert the rows copied by `stage`, each unless an open chain has its key; of equal keys the first.

    Shape: no rows returned, as many affected as were made. Changes: a row each.
    Locks: the new rows, in the order of their keys, as `enqueue_many` writes them. An equal key of a transaction that is
    under way is awaited. Index: `uq_job_deduplication`.
    """
    staged = sa.table(_STAGED, *(sa.column(name, t.job.c[name].type) for name in columns), schema="pg_temp")
    in_order = sa.select(*staged.c).order_by(
        sa.collate(staged.c.deduplication_key, "C"),
        sa.literal_column("ctid"),  # of equal ones in the order of the copy
    )
    inserted = upsert(t.job).from_select(list(columns), in_order)
    return unless_taken(t.model, inserted).execution_options(preserve_rowcount=True)


@statement
def holders(t: Tables, *, ended: bool) -> sa.Select[Any]:
    """Return the first job of the chain that has each key: of the open one, else with `ended` of the newest.

    Parameters: `type_names` and `keys`, in one order; with `ended`, `window`, how long an ended chain counts, null for no
    limit; chains to ignore in `excluded`, none by default.
    Shape: `(type_name, key, id, waits)`, no row for a key without a chain; `waits`: whether the job has not begun.
    Locks: none.
    Index: `uq_job_deduplication`; with `ended`, `ix_job_deduplication`.
    """
    job, keys = t.job, _keys()
    columns = (job.c.id, _waits(job).label("waits"))
    if not ended:
        chosen = sa.select(keys.c.type_name, keys.c.key, *columns).select_from(keys.join(job, sa.true()))
        return chosen.where(*_open(job, keys), excluded(job.c.id, t.id_type))
    window = _duration("window")
    newest = (
        sa.select(*columns)
        .where(
            job.c.chain_type_name == keys.c.type_name,
            job.c.deduplication_key == keys.c.key,
            job.c.deduplication_key.is_not(None),
            job.c.chain_index == sa.literal_column("0"),
            excluded(job.c.id, t.id_type),
            sa.or_(job.c.chain_completed_at.is_(None), window.is_(None), job.c.created_at >= sa.func.now() - window),
        )
        .order_by(job.c.chain_completed_at.is_not(None), job.c.created_at.desc())
        .limit(sa.literal_column("1"))
        .lateral("newest")
    )
    return sa.select(keys.c.type_name, keys.c.key, *newest.c).select_from(keys.join(newest, sa.true()))


def _duration(name: str) -> sa.ColumnElement[Any]:
    return sa.cast(sa.bindparam(name, type_=sa.Interval), sa.Interval)  # a null has no type unless it is cast


def _keys() -> TableValuedAlias:
    return relation("given", type_name=array("type_names", sa.Text()), key=array("keys", sa.Text()))


def _open(job: sa.Table, keys: TableValuedAlias) -> list[sa.ColumnElement[bool]]:
    return [
        job.c.chain_type_name == keys.c.type_name,
        job.c.deduplication_key == keys.c.key,
        job.c.deduplication_key.is_not(None),
        job.c.chain_index == sa.literal_column("0"),
        job.c.chain_completed_at.is_(None),
    ]


def _waits(job: sa.Table) -> sa.ColumnElement[bool]:
    return job.c.status.in_([status(JobStatus.PENDING), status(JobStatus.BLOCKED)])
