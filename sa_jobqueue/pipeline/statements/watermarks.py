"""Watermark of streams of history: open transactions, the one that holds the watermark back, and the end of a batch."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import UserDefinedType

from sa_jobqueue.pipeline.history import Dataset
from sa_jobqueue.pipeline.statements import history
from sa_jobqueue.pipeline.statements.history import Filters
from sa_jobqueue.statements._parts import Tables, bound


class _Xid(UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


def position() -> sa.Select[int, int, str, bool]:
    """Return where the cluster stands.

    Shape: one row `(xid, next_xid, system, is_replica)`. Below `xid` nothing is in flight; `next_xid` is above all that
    has begun to write; `system` identifies the cluster, replicas included. Locks: none.
    """
    snapshot = sa.func.pg_current_snapshot()
    system = sa.func.pg_control_system().table_valued("system_identifier")
    return sa.select(
        _number(sa.func.pg_snapshot_xmin(snapshot)).label("xid"),
        _number(sa.func.pg_snapshot_xmax(snapshot)).label("next_xid"),
        sa.cast(system.c.system_identifier, sa.Text).label("system"),
        sa.func.pg_is_in_recovery().label("is_replica"),
    )


def holders() -> sa.Select[Any]:
    """Return which open transaction is the oldest that has written: it holds the watermark where it is.

    Shape: a row `(pid, application_name, user, state, open_for, prepared)`, or no row; a prepared transaction has a name
    and no process. Columns that the caller's role may not see are null, or there is no row. Always empty on a replica: use
    the primary.
    """
    oldest: sa.ColumnElement[Any] = sa.cast(sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot()), _Xid())
    session = sa.table(
        "pg_stat_activity",
        *(sa.column(name) for name in ("pid", "application_name", "usename", "state", "xact_start", "backend_xid")),
        schema="pg_catalog",
    )
    prepared = sa.table(
        "pg_prepared_xacts",
        *(sa.column(name) for name in ("gid", "owner", "prepared", "transaction")),
        schema="pg_catalog",
    )
    now = sa.func.clock_timestamp()
    return sa.select(
        sa.union_all(
            sa.select(
                sa.cast(session.c.pid, sa.Integer).label("pid"),
                sa.cast(session.c.application_name, sa.Text).label("application_name"),
                sa.cast(session.c.usename, sa.Text).label("user"),
                sa.cast(session.c.state, sa.Text).label("state"),
                sa.cast(now - session.c.xact_start, sa.Interval).label("open_for"),
                sa.cast(sa.null(), sa.Text).label("prepared"),
            ).where(session.c.backend_xid == oldest),
            sa.select(
                sa.cast(sa.null(), sa.Integer),
                sa.cast(sa.null(), sa.Text),
                sa.cast(prepared.c.owner, sa.Text),
                sa.cast(sa.literal("prepared", sa.Text), sa.Text),
                sa.cast(now - prepared.c.prepared, sa.Interval),
                sa.cast(prepared.c.gid, sa.Text),
            ).where(prepared.c.transaction == oldest),
        ).subquery("holder")
    )


@bound
def first_xid(t: Tables, dataset: Dataset, filters: Filters) -> sa.Select[int]:
    """Return the first transaction of a range that changed a row.

    Shape: one row `(xid,)`, null when no row was changed. Locks: none.
    Index: as `history.rows`; of jobs without a range, the whole table.
    """
    dataset_table = history.source(t, dataset)
    rows = history.rows(t.model, dataset, ("xid",), filters)
    return sa.select(rows.order_by(dataset_table.c.changed_xid).limit(1).scalar_subquery().label("xid"))


@bound
def bounds(t: Tables, dataset: Dataset, filters: Filters, *, rows: int) -> sa.Select[Any]:
    """Return the first transaction of a range, and that of the first row after `rows` of them, in their order.

    Shape: one row `(first, beyond)`; null each where there is no such row. Locks: none. Index: as `history.rows`.
    """
    dataset_table = history.source(t, dataset)
    ordered = history.rows(t.model, dataset, ("xid",), filters).order_by(dataset_table.c.changed_xid).limit(1)
    return sa.select(
        ordered.scalar_subquery().label("first"),
        ordered.offset(rows).scalar_subquery().label("beyond"),
    )


def _number(xid: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.cast(sa.cast(xid, sa.Text), sa.BigInteger)
