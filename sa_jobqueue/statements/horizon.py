"""The horizon: the oldest transaction that vacuum must respect, and everything that holds it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy import table as named
from sqlalchemy.dialects.postgresql import TIMESTAMP

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import array, once_a_model, table

_INSTANT = TIMESTAMP(timezone=True)
_ACTIVITY = (
    *("pid", "datid", "datname", "usename", "application_name", "backend_type", "leader_pid"),
    *("backend_xid", "backend_xmin", "xact_start", "state", "query"),
)


def holders() -> Select[Any]:
    """Return everything that keeps vacuum from removing dead rows of this database's tables, the oldest first.

    Parameters: `limit`. Shape: `(kind, xmin, age, seconds, pid, name, user, state, query)`: `xmin` as text, `age` in
    transactions, `seconds` since its transaction began, null where that cannot be known. Without the rights of
    pg_read_all_stats `seconds`, `state` and `query` of other users' sessions are null.
    Left out: vacuums, which vacuum does not wait for; sessions in other databases; this session; slots that hold back the
    catalogs alone, as logical ones do.
    Clock: the database's `clock_timestamp()`. Locks: none; it reads shared memory.
    Source: `ComputeXidHorizons` of PostgreSQL's procarray.c; a VACUUM (VERBOSE) tells the same number, as its cutoff.
    """
    parts = union_all(_sessions(), _prepared(), _slots()).subquery("holder")
    return select(parts).order_by(parts.c.age.desc(), parts.c.xmin, parts.c.name).limit(bindparam("limit", type_=Integer))


def _sessions() -> Any:
    session = _catalog("pg_stat_activity", *_ACTIVITY).alias("session")
    vacuum = _catalog("pg_stat_progress_vacuum", "pid").alias("vacuum")
    sender = _catalog("pg_stat_replication", "pid").alias("sender")
    # A session holds what it has written and what it reads; the older of the two counts.
    by_xid, by_xmin = func.age(session.c.backend_xid), func.age(session.c.backend_xmin)
    older = case(
        (func.coalesce(by_xid, -1) > func.coalesce(by_xmin, -1), session.c.backend_xid), else_=session.c.backend_xmin
    )
    is_sender = exists(literal_column("1")).where(sender.c.pid == session.c.pid)
    return select(
        case((is_sender, literal_column("'standby_feedback'")), else_=literal_column("'session'")).label("kind"),
        cast(older, Text).label("xmin"),
        func.greatest(by_xid, by_xmin, type_=Integer).label("age"),
        case((~is_sender, _seconds(session.c.xact_start))).label("seconds"),
        cast(session.c.pid, Integer).label("pid"),
        cast(session.c.application_name, Text).label("name"),
        cast(session.c.usename, Text).label("user"),
        cast(session.c.state, Text).label("state"),
        cast(case((~is_sender, func.left(session.c.query, literal_column("500")))), Text).label("query"),
    ).where(
        func.coalesce(by_xid, by_xmin).is_not(None),
        session.c.datid.is_(None) | (session.c.datname == func.current_database()),
        session.c.leader_pid.is_(None),
        session.c.pid != func.pg_backend_pid(),
        ~exists(literal_column("1")).where(vacuum.c.pid == session.c.pid),
    )


def _prepared() -> Any:
    prepared = _catalog("pg_prepared_xacts", "transaction", "gid", "prepared", "owner", "database").alias("prepared")
    return select(
        literal_column("'prepared_transaction'").label("kind"),
        cast(prepared.c.transaction, Text).label("xmin"),
        func.age(prepared.c.transaction, type_=Integer).label("age"),
        _seconds(prepared.c.prepared).label("seconds"),
        cast(null(), Integer).label("pid"),
        cast(prepared.c.gid, Text).label("name"),
        cast(prepared.c.owner, Text).label("user"),
        cast(null(), Text).label("state"),
        cast(null(), Text).label("query"),
    ).where(prepared.c.database == func.current_database())


def _slots() -> Any:
    slot: Any = _catalog("pg_replication_slots", "slot_name", "xmin", "active", "active_pid").alias("slot")
    return select(
        literal_column("'replication_slot'").label("kind"),
        cast(slot.c.xmin, Text).label("xmin"),
        func.age(slot.c.xmin, type_=Integer).label("age"),
        # PostgreSQL 17 and newer have the time since when the slot is inactive; older ones have no such column.
        _seconds(cast(func.to_jsonb(literal_column("slot")).op("->>")(literal_column("'inactive_since'")), _INSTANT)),
        cast(slot.c.active_pid, Integer).label("pid"),
        cast(slot.c.slot_name, Text).label("name"),
        cast(null(), Text).label("user"),
        case((slot.c.active, literal_column("'active'")), else_=literal_column("'inactive'")).label("state"),
        cast(null(), Text).label("query"),
    ).where(slot.c.xmin.is_not(None))


@once_a_model
def jobs_held(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the jobs whose handlers' sessions were found among the holders.

    Parameters: `ids`. Shape: `(id, type_name, status, attempt, leased_by)` a job that is there. Locks: none.
    Index: the primary key.
    """
    job = table(model)
    names = ("id", "type_name", "status", "attempt", "leased_by")
    ids = array("ids", id_parameter(model.__jobqueue__))
    return select(*(job.c[name] for name in names)).where(job.c.id == func.any(ids))


def _seconds(since: ColumnElement[Any]) -> ColumnElement[float | None]:
    return cast(func.extract("epoch", func.clock_timestamp() - since), Double)


def _catalog(name: str, *columns: str) -> Any:
    return named(name, *(column(each) for each in columns), schema="pg_catalog")
