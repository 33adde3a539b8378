"""The horizon: the oldest transaction that vacuum must respect, and everything that holds it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TIMESTAMP

_INSTANT = TIMESTAMP(timezone=True)
_ACTIVITY = (
    *("pid", "datid", "datname", "usename", "application_name", "backend_type", "leader_pid"),
    *("backend_xid", "backend_xmin", "xact_start", "state", "query"),
)


def holders() -> sa.Select[Any]:
    """Return everything that keeps vacuum from removing dead rows of this database's tables, the oldest first.

    Parameters: `limit`. Shape: `(kind, xmin, age, seconds, pid, name, user, state, query)`: `xmin` as text, `age` in
    transactions, `seconds` since its transaction began, null where that cannot be known. Without the rights of
    pg_read_all_stats `seconds`, `state` and `query` of other users' sessions are null.
    Left out: vacuums, which vacuum does not wait for; sessions in other databases; this session; slots that hold back the
    catalogs alone, as logical ones do.
    Clock: the database's `clock_timestamp()`. Locks: none; it reads shared memory.
    Source: `ComputeXidHorizons` of PostgreSQL's procarray.c; a VACUUM (VERBOSE) tells the same number, as its cutoff.
    """
    parts = sa.union_all(_sessions(), _prepared(), _slots()).subquery("holder")
    return (
        sa.select(parts)
        .order_by(parts.c.age.desc(), parts.c.xmin, parts.c.name)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def _sessions() -> Any:
    session = _catalog("pg_stat_activity", *_ACTIVITY).alias("session")
    vacuum = _catalog("pg_stat_progress_vacuum", "pid").alias("vacuum")
    sender = _catalog("pg_stat_replication", "pid").alias("sender")
    # A session holds what it has written and what it reads; the older of the two counts.
    by_xid, by_xmin = sa.func.age(session.c.backend_xid), sa.func.age(session.c.backend_xmin)
    older = sa.case(
        (sa.func.coalesce(by_xid, -1) > sa.func.coalesce(by_xmin, -1), session.c.backend_xid), else_=session.c.backend_xmin
    )
    is_sender = sa.exists(sa.literal_column("1")).where(sender.c.pid == session.c.pid)
    return sa.select(
        sa.case((is_sender, sa.literal_column("'standby_feedback'")), else_=sa.literal_column("'session'")).label("kind"),
        sa.cast(older, sa.Text).label("xmin"),
        sa.func.greatest(by_xid, by_xmin, type_=sa.Integer).label("age"),
        sa.case((~is_sender, _seconds(session.c.xact_start))).label("seconds"),
        sa.cast(session.c.pid, sa.Integer).label("pid"),
        sa.cast(session.c.application_name, sa.Text).label("name"),
        sa.cast(session.c.usename, sa.Text).label("user"),
        sa.cast(session.c.state, sa.Text).label("state"),
        sa.cast(sa.case((~is_sender, sa.func.left(session.c.query, sa.literal_column("500")))), sa.Text).label("query"),
    ).where(
        sa.func.coalesce(by_xid, by_xmin).is_not(None),
        session.c.datid.is_(None) | (session.c.datname == sa.func.current_database()),
        session.c.leader_pid.is_(None),
        session.c.pid != sa.func.pg_backend_pid(),
        ~sa.exists(sa.literal_column("1")).where(vacuum.c.pid == session.c.pid),
    )


def _prepared() -> Any:
    prepared = _catalog("pg_prepared_xacts", "transaction", "gid", "prepared", "owner", "database").alias("prepared")
    return sa.select(
        sa.literal_column("'prepared_transaction'").label("kind"),
        sa.cast(prepared.c.transaction, sa.Text).label("xmin"),
        sa.func.age(prepared.c.transaction, type_=sa.Integer).label("age"),
        _seconds(prepared.c.prepared).label("seconds"),
        sa.cast(sa.null(), sa.Integer).label("pid"),
        sa.cast(prepared.c.gid, sa.Text).label("name"),
        sa.cast(prepared.c.owner, sa.Text).label("user"),
        sa.cast(sa.null(), sa.Text).label("state"),
        sa.cast(sa.null(), sa.Text).label("query"),
    ).where(prepared.c.database == sa.func.current_database())


def _slots() -> Any:
    slot: Any = _catalog("pg_replication_slots", "slot_name", "xmin", "active", "active_pid").alias("slot")
    return sa.select(
        sa.literal_column("'replication_slot'").label("kind"),
        sa.cast(slot.c.xmin, sa.Text).label("xmin"),
        sa.func.age(slot.c.xmin, type_=sa.Integer).label("age"),
        # PostgreSQL 17 and newer have the time since when the slot is inactive; older ones have no such column.
        _seconds(
            sa.cast(sa.func.to_jsonb(sa.literal_column("slot")).op("->>")(sa.literal_column("'inactive_since'")), _INSTANT)
        ),
        sa.cast(slot.c.active_pid, sa.Integer).label("pid"),
        sa.cast(slot.c.slot_name, sa.Text).label("name"),
        sa.cast(sa.null(), sa.Text).label("user"),
        sa.case((slot.c.active, sa.literal_column("'active'")), else_=sa.literal_column("'inactive'")).label("state"),
        sa.cast(sa.null(), sa.Text).label("query"),
    ).where(slot.c.xmin.is_not(None))


def _seconds(since: sa.ColumnElement[Any]) -> sa.ColumnElement[float | None]:
    return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp() - since), sa.Double)


def _catalog(name: str, *columns: str) -> Any:
    return sa.table(name, *(sa.column(each) for each in columns), schema="pg_catalog")
