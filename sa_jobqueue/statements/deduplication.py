"""Finding the chain that already has a deduplication key, and preventing that a second one is created meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.selectable import ExecutableReturnsRows, TableValuedAlias

from sa_jobqueue.db.copy import CopyTarget, quote
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.checks import due_at
from sa_jobqueue.statements._parts import XID, Tables, array, bound, excluded, statement, status
from sa_jobqueue.statements.jobs import new_rows
from sa_jobqueue.types import JobId, JobStatus

REPLACEABLE: Final = {"input": ("input", "input_version"), "schedule": ("scheduled_at",), "priority": ("priority",)}
"""Fields of a waiting job that a later job may replace, with their columns."""
_STAGED: Final = "job_copied"


@bound
def lock_name(t: Tables, type_name: str, key: str) -> str:
    """Return the text whose hash is the lock of a key."""
    return f"{t.layout.channel('due')}\x1f{type_name}\x1f{key}"


def lock_keys() -> sa.Select[Any]:
    """Wait until no other transaction is enqueueing with these keys, and keep others waiting until ours ends.

    Parameters: `names`, as `lock_name` makes them, in the order of `(type_name, key)`.
    Shape: a row a key. Locks: an advisory lock each, by a 64-bit hash of queue, type and key, in the order given; two keys
    that share a hash wait for each other for nothing. Each takes a place in the server's lock table: hundreds, not more.
    """
    named = sa.func.unnest(array("names", sa.Text())).table_valued(sa.column("name", sa.Text)).render_derived("named")
    return sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(named.c.name, 0))).select_from(named)


@statement
def find(t: Tables, *, ended: bool) -> ExecutableReturnsRows:
    """Return the jobs of `holders`, with its parameters, as ORM objects."""
    job, held = t.job, holders(t.model, ended=ended).subquery("held")
    return _entity(t, sa.select(job).join_from(held, job, job.c.id == held.c.id))


@bound
def again(t: Tables, job_id: JobId) -> ExecutableReturnsRows:
    """Read a job that the session has again, as an ORM object. Index: the primary key."""
    return _entity(t, sa.select(t.job).where(t.job.c.id == job_id))


def _entity(t: Tables, chosen: sa.Select[Any]) -> ExecutableReturnsRows:
    # Not an ORM select: criteria that the application adds to its own ones could hide who has a key.
    return sa.select(t.model).from_statement(chosen).execution_options(populate_existing=True)


@bound
def replace(
    t: Tables, job_id: JobId, key: str, *, new: JobMixin[Any], replaced: Collection[str], max_wait: timedelta | None
) -> sa.Update:
    """Give the first job of a chain what another says, unless it has begun meanwhile.

    `replaced`: of `REPLACEABLE`; none keeps it from beginning, and that is all. `max_wait`: it stays due so long after it
    was enqueued, however often it is moved.
    Shape: its id; no row where it has begun, has ended, or has the key no longer.
    Changes: those columns, `changed_xid`. Clock: the database's `now()`, from which a delay counts.
    Locks: its row, awaited: a claim under way decides whether it has begun. Index: the primary key.
    """
    values: dict[str, Any] = {"changed_xid": XID}  # also where no trigger would: a claim has passed what we hold
    for part in replaced:
        values |= {name: getattr(new, name) for name in REPLACEABLE[part] if name != "scheduled_at"}
    for name, plain in (("priority", 0), ("input_version", 1)):
        if name in values and values[name] is None:  # decided by the database, as for a new row
            kind = t.job_type
            declared = sa.select(kind.c[name]).where(kind.c.type_name == new.type_name).scalar_subquery()
            values[name] = sa.func.coalesce(declared, plain)
    if "schedule" in replaced:
        moved = due_at(delay=new._delay, at=new._at)
        due: sa.ColumnElement[Any] = sa.func.now() if moved is None else moved
        values["scheduled_at"] = (
            due if max_wait is None else sa.func.least(due, t.job.c.created_at + sa.literal(max_wait, INTERVAL))
        )
    return (
        sa.update(t.job)
        .where(t.job.c.id == job_id, t.job.c.deduplication_key == key, _waits(t.job))
        .values(**values)
        .returning(t.job.c.id)
    )


@statement
def give_up(t: Tables, *, begun: bool) -> sa.Update:
    """Take the keys from open chains: from those whose first job has begun, or from the chains of the parameter `ids`.

    Parameters: `type_names` and `keys`, in one order. Locks: their root jobs.
    Index: `uq_job_deduplication`, a probe a key.
    """
    job, given = t.job, _keys()
    return (
        sa.update(job)
        .where(*_open(job, given), ~_waits(job) if begun else job.c.id == sa.any_(t.ids("ids")))
        .values(deduplication_key=sa.null())
        .execution_options(synchronize_session=False)
    )


@statement
def put(t: Tables, columns: tuple[str, ...], replaced: tuple[str, ...], *, ended: bool, held: bool = False) -> sa.Insert:
    """Insert many jobs, each unless an open chain has its key; replace those parts of one that has not begun.

    Parameters: as `jobs.enqueue_many`, of distinct keys; with `schedule` among `replaced` also `max_wait`, as of `replace`,
    or null; with `ended`, where chains that have ended count as well, `window`, how long they do, null for no limit. With
    `held` a job that has not begun is locked against its start until the transaction ends, even if nothing is replaced.
    Shape: the ids of the rows inserted and of those changed or held, not those of jobs left as they are.
    Changes: a row each; or the values in `replaced`, and `changed_xid`. Clock: the database's `now()`.
    Locks: the rows returned. An equal key of a transaction that is under way, and a claim of the job that has it, are
    awaited. Obliges: keys in one order, for that is the order of locks; with `ended`, `lock_keys` before.
    Index: `uq_job_deduplication`; with `ended`, `ix_job_deduplication`.
    """
    names, chosen, given = new_rows(t, columns)
    if ended:
        past = t.job.alias("past")
        window = _duration("window")
        chosen = chosen.where(
            ~sa.exists(
                sa.select(sa.literal_column("1")).where(
                    past.c.chain_type_name == given.c.chain_type_name,
                    past.c.deduplication_key == given.c.deduplication_key,
                    past.c.deduplication_key.is_not(None),
                    past.c.chain_index == sa.literal_column("0"),
                    past.c.chain_completed_at.is_not(None),  # an open one conflicts, and may be changed
                    sa.or_(window.is_(None), past.c.created_at >= sa.func.now() - window),
                )
            )
        )
    statement: Any = upsert(t.job).from_select(names, chosen)
    arbiter = _arbiter(t.job)
    if not replaced and not held:
        skipping: sa.Insert = statement.on_conflict_do_nothing(**arbiter).returning(t.job.c.id)
        return skipping
    new = statement.excluded
    values: dict[str, Any] = {name: new[name] for part in replaced for name in REPLACEABLE[part]} | {"changed_xid": XID}
    if "schedule" in replaced:  # LEAST passes over null
        values["scheduled_at"] = sa.func.least(new.scheduled_at, t.job.c.created_at + _duration("max_wait"))
    merged: sa.Insert = statement.on_conflict_do_update(**arbiter, set_=values, where=_waits(t.job)).returning(t.job.c.id)
    return merged


@bound
def stage(t: Tables, columns: Sequence[str]) -> tuple[str, CopyTarget]:
    """Return the DDL of a temporary table with these columns of jobs, and the target of a COPY to it.

    Obliges: `drop_staged` in the same transaction. Changes: the session's catalog. Locks: none that others meet.
    """
    quoted = ", ".join(quote(name).replace("%", "%%") for name in columns)  # psycopg halves them
    made = f"CREATE TEMPORARY TABLE {_STAGED} ON COMMIT DROP AS SELECT {quoted} FROM {t.layout.qualified('job')}"
    return f"{made} WITH NO DATA", CopyTarget("pg_temp", _STAGED, tuple(columns))


def drop_staged() -> str:
    """Drop the temporary table of `stage`."""
    return f"DROP TABLE pg_temp.{_STAGED}"


@bound
def put_staged(t: Tables, columns: Sequence[str]) -> sa.Insert:
    """Insert the rows copied by `stage`, each unless an open chain has its key; of equal keys the first.

    Shape: no rows returned, as many affected as were made. Changes: a row each.
    Locks: the new rows, in the order of their keys, which is that of `put`. An equal key of a transaction that is under way
    is awaited. Index: `uq_job_deduplication`.
    """
    staged = sa.table(_STAGED, *(sa.column(name, t.job.c[name].type) for name in columns), schema="pg_temp")
    in_order = sa.select(*staged.c).order_by(
        sa.collate(staged.c.deduplication_key, "C"),
        sa.literal_column("ctid"),  # of equal ones in the order of the copy
    )
    statement = upsert(t.job).from_select(list(columns), in_order)
    return statement.on_conflict_do_nothing(**_arbiter(t.job)).execution_options(preserve_rowcount=True)


@statement
def holders(t: Tables, *, ended: bool) -> sa.Select[Any]:
    """Return the first job of the chain that has each key: of the open one, else with `ended` of the newest.

    Parameters: `type_names` and `keys`, in one order; with `ended`, `window` as of `put`; chains to ignore in `excluded`,
    none by default.
    Shape: `(chain_type_name, deduplication_key, id, queue, fairness_key)`, no row for a key without a chain. Locks: none.
    Index: `uq_job_deduplication`; with `ended`, `ix_job_deduplication`.
    """
    job, given = t.job, _keys()
    columns = ("id", "queue", "fairness_key")
    if not ended:
        chosen = sa.select(given.c.type_name, given.c.key, *(job.c[name] for name in columns)).select_from(
            given.join(job, sa.true())
        )
        return chosen.where(*_open(job, given), excluded(job.c.id, t.id_type))
    window = _duration("window")
    newest = (
        sa.select(*(job.c[name] for name in columns))
        .where(
            job.c.chain_type_name == given.c.type_name,
            job.c.deduplication_key == given.c.key,
            job.c.deduplication_key.is_not(None),
            job.c.chain_index == sa.literal_column("0"),
            excluded(job.c.id, t.id_type),
            sa.or_(job.c.chain_completed_at.is_(None), window.is_(None), job.c.created_at >= sa.func.now() - window),
        )
        .order_by(job.c.chain_completed_at.is_not(None), job.c.created_at.desc())
        .limit(sa.literal_column("1"))
        .lateral("newest")
    )
    return sa.select(given.c.type_name, given.c.key, *newest.c).select_from(given.join(newest, sa.true()))


def _arbiter(job: sa.Table) -> dict[str, Any]:
    return {
        "index_elements": [job.c.chain_type_name, job.c.deduplication_key],
        "index_where": sa.literal_column("deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL"),
    }


def _duration(name: str) -> sa.ColumnElement[Any]:
    return sa.cast(sa.bindparam(name, type_=sa.Interval), sa.Interval)  # a null has no type unless it is cast


def _keys() -> TableValuedAlias:
    return (
        sa.func.unnest(array("type_names", sa.Text()), array("keys", sa.Text()))
        .table_valued(sa.column("type_name", sa.Text), sa.column("key", sa.Text))
        .render_derived("given")
    )


def _open(job: sa.Table, given: TableValuedAlias) -> list[sa.ColumnElement[bool]]:
    return [
        job.c.chain_type_name == given.c.type_name,
        job.c.deduplication_key == given.c.key,
        job.c.deduplication_key.is_not(None),
        job.c.chain_index == sa.literal_column("0"),
        job.c.chain_completed_at.is_(None),
    ]


def _waits(job: sa.Table) -> sa.ColumnElement[bool]:
    return job.c.status.in_([status(JobStatus.PENDING), status(JobStatus.BLOCKED)])
