"""Rows of a restored database that have transaction numbers of another cluster, which this one has not reached.

A row that a statement can see was written by a transaction below the end of its snapshot. If its `changed_xid` is not below
it, the row came from elsewhere, by a dump or by logical replication. Readers of a range of transactions would take it for a
row of the future.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from sa_jobqueue.models.base import CURRENT_XID, Xid8
from sa_jobqueue.statements._parts import Tables, block, number, statement

TABLES: Final = ("job", "attempt", "dead_letter")
"""The tables whose rows have such a number, as `present` names them."""


def next_number() -> sa.Select[int]:
    """Return a number above every transaction whose rows a statement can see. Shape: one row `(next_xid,)`. Locks: none."""
    return sa.select(sa.cast(sa.cast(_end(), sa.Text), sa.BigInteger).label("next_xid"))


@statement
def present(t: Tables, *, table: str) -> sa.Select[bool]:
    """Return whether a table has rows with numbers that this cluster has not reached.

    `table`: `job`, `attempt` or `dead_letter`. Parameters: `next_xid`, read by an earlier statement, so that the planner
    estimates with it. Shape: one boolean. Locks: none.
    Index: `ix_job_history`, `ix_job_attempt_changed` or `ix_dead_letter_changed`.
    """
    row: sa.Table = getattr(t, table)
    next_xid = sa.bindparam("next_xid", type_=sa.BigInteger)
    conditions = [_is_ahead(row), row.c.changed_xid >= sa.cast(sa.cast(next_xid, sa.Text), Xid8())]
    if row is t.job:
        conditions.append(block(number(row)) >= block(sa.cast(next_xid, sa.BigInteger)))
    return sa.select(sa.exists(sa.select(sa.null()).select_from(row).where(*conditions)))


@statement
def job_page(t: Tables, *, first: bool) -> sa.Select[Any]:
    """Return the next jobs, by id. Parameters: `after`, unless it is the `first` page; `limit`. Shape: `(id, is_ahead)`.

    Locks: none. Index: the primary key, `limit` entries.
    """
    page = sa.select(t.job.c.id, _is_ahead(t.job).label("is_ahead")).order_by(t.job.c.id)
    if not first:
        page = page.where(t.job.c.id > t.id("after"))
    return page.limit(sa.bindparam("limit", type_=sa.Integer))


@statement
def stamp_jobs(t: Tables) -> ReturningUpdate[Any]:
    """Give those of some jobs that are ahead the number of this transaction. Parameters: `ids`. Shape: `(id,)`.

    Locks: the rows; held ones are skipped. Obliges: it is the only statement of its transaction that writes. Index: the
    primary key.
    """
    ahead = sa.select(t.job.c.id).where(t.job.c.id == sa.any_(t.ids("ids")), _is_ahead(t.job)).order_by(t.job.c.id)
    chosen = ahead.with_for_update(key_share=True, skip_locked=True).cte("chosen")
    return (
        sa.update(t.job)
        .where(t.job.c.id.in_(sa.select(chosen.c.id)), _is_ahead(t.job))
        .values(changed_xid=CURRENT_XID)
        .returning(t.job.c.id)
    )


@statement
def stamp_attempts(t: Tables) -> ReturningUpdate[Any]:
    """Give attempts that are ahead the number of this transaction. Parameters: `limit`. Shape: `(job_id,)`.

    Locks, Obliges: as `stamp_jobs`. Index: `ix_job_attempt_changed`, `pk_job_attempt`.
    """
    row = t.attempt
    ahead = sa.select(row.c.job_id, row.c.attempt).where(_is_ahead(row)).order_by(row.c.changed_xid)
    chosen = ahead.limit(sa.bindparam("limit", type_=sa.Integer)).with_for_update(skip_locked=True).cte("chosen")
    return (
        sa.update(row)
        .where(row.c.job_id == chosen.c.job_id, row.c.attempt == chosen.c.attempt)
        .values(changed_xid=CURRENT_XID)
        .returning(row.c.job_id)
    )


@statement
def stamp_dead_letters(t: Tables) -> ReturningUpdate[Any]:
    """Give dead letters that are ahead the number of this transaction. Parameters: `limit`. Shape: `(id,)`.

    Locks, Obliges: as `stamp_jobs`. Index: `ix_dead_letter_changed`, the primary key.
    """
    row = t.dead_letter
    ahead = sa.select(row.c.id).where(_is_ahead(row)).order_by(row.c.changed_xid)
    chosen = ahead.limit(sa.bindparam("limit", type_=sa.Integer)).with_for_update(skip_locked=True).cte("chosen")
    return sa.update(row).where(row.c.id == chosen.c.id).values(changed_xid=CURRENT_XID).returning(row.c.id)


def _end() -> sa.ColumnElement[Any]:
    return sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot(), type_=Xid8())


def _is_ahead(row: sa.Table) -> sa.ColumnElement[bool]:
    # Jobs with the number 0 are not ahead. What this transaction has stamped before can be: it would be stamped again.
    return row.c.changed_xid >= _end()
