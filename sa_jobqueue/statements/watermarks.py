"""Watermark of streams of history: open transactions, the one that holds the watermark back, and the end of a batch."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Interval,
    Select,
    Text,
    cast,
    column,
    func,
    literal,
    null,
    select,
    table,
    union_all,
)
from sqlalchemy.types import UserDefinedType

from sa_jobqueue.history import Dataset
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import history
from sa_jobqueue.statements.history import Filters


class _Xid(UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


def position() -> Select[int, int, str, bool]:
    """Return where the cluster stands.

    Shape: one row `(xid, next_xid, system, is_replica)`. Below `xid` nothing is in flight; `next_xid` is above all that
    has begun to write; `system` identifies the cluster, replicas included. Locks: none.
    """
    snapshot = func.pg_current_snapshot()
    system = func.pg_control_system().table_valued("system_identifier")
    return select(
        _number(func.pg_snapshot_xmin(snapshot)).label("xid"),
        _number(func.pg_snapshot_xmax(snapshot)).label("next_xid"),
        cast(system.c.system_identifier, Text).label("system"),
        func.pg_is_in_recovery().label("is_replica"),
    )


def holders() -> Select[Any]:
    """Return which open transaction is the oldest that has written: it holds the watermark where it is.

    Shape: a row `(pid, application_name, user, state, open_for, prepared)`, or no row; a prepared transaction has a name
    and no process. Columns that the caller's role may not see are null, or there is no row. Always empty on a replica: use
    the primary.
    """
    oldest: ColumnElement[Any] = cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), _Xid())
    session = table(
        "pg_stat_activity",
        *(column(name) for name in ("pid", "application_name", "usename", "state", "xact_start", "backend_xid")),
        schema="pg_catalog",
    )
    prepared = table(
        "pg_prepared_xacts",
        *(column(name) for name in ("gid", "owner", "prepared", "transaction")),
        schema="pg_catalog",
    )
    now = func.clock_timestamp()
    return select(
        union_all(
            select(
                cast(session.c.pid, Integer).label("pid"),
                cast(session.c.application_name, Text).label("application_name"),
                cast(session.c.usename, Text).label("user"),
                cast(session.c.state, Text).label("state"),
                cast(now - session.c.xact_start, Interval).label("open_for"),
                cast(null(), Text).label("prepared"),
            ).where(session.c.backend_xid == oldest),
            select(
                cast(null(), Integer),
                cast(null(), Text),
                cast(prepared.c.owner, Text),
                cast(literal("prepared", Text), Text),
                cast(now - prepared.c.prepared, Interval),
                cast(prepared.c.gid, Text),
            ).where(prepared.c.transaction == oldest),
        ).subquery("holder")
    )


def first_xid(model: type[JobMixin[Any]], dataset: Dataset, filters: Filters) -> Select[int]:
    """Return the first transaction of a range that changed a row.

    Shape: one row `(xid,)`, null when no row was changed. Locks: none.
    Index: as `history.rows`; of jobs without a range, the whole table.
    """
    of = history.source(model, dataset)
    rows = history.rows(model, dataset, ("xid",), filters)
    return select(rows.order_by(of.c.changed_xid).limit(1).scalar_subquery().label("xid"))


def bounds(model: type[JobMixin[Any]], dataset: Dataset, filters: Filters, *, rows: int) -> Select[Any]:
    """Return the first transaction of a range, and that of the first row after `rows` of them, in their order.

    Shape: one row `(first, beyond)`; null each where there is no such row. Locks: none. Index: as `history.rows`.
    """
    of = history.source(model, dataset)
    ordered = history.rows(model, dataset, ("xid",), filters).order_by(of.c.changed_xid).limit(1)
    return select(
        ordered.scalar_subquery().label("first"),
        ordered.offset(rows).scalar_subquery().label("beyond"),
    )


def _number(xid: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(cast(xid, Text), BigInteger)
