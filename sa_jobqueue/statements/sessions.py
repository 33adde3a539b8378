"""Other sessions of the server: holders of locks that others wait for, and sessions of workers."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, array, statement
from sa_jobqueue.statements.storage import TABLES, catalog_table, regclasses

_EVERY_TABLE: Final = (
    *TABLES,
    *("queue", "job_type", "schedule", "job_step", "job_event", "job_minute", "quarantine", "threshold", "job_audit"),
)


@statement
def lock_waits(t: Tables) -> sa.Select[Any]:
    """Return sessions of this database that wait for locks, the sessions that block them, and exclusive holders of tables.

    Shape: `(pid, name, user, kind, state, query, locked_for, waited_for, blockers, is_of_table, table, is_waiting)`. `pid`:
    0 for a prepared transaction, whose `name` is known if it is the only one. `blockers`: the pids that a session waits for;
    null for one that was not asked. `is_of_table`: whether it waits for a table of the queue. `table`: one of these that it
    holds an ACCESS EXCLUSIVE lock on. `locked_for`, `state` and `query` are null for sessions that this role may not see.
    At most the 50 that have waited longest are asked whom they wait for, as each such question locks the lock manager.
    Clock: the database's `clock_timestamp()`. Locks: none.
    """
    lock = catalog_table("pg_locks", "locktype", "relation", "pid", "mode", "granted", "waitstart")
    session = catalog_table(
        "pg_stat_activity",
        *("pid", "datname", "application_name", "usename", "backend_type", "state", "query", "xact_start"),
    )
    prepared = catalog_table("pg_prepared_xacts", "gid", "owner", "prepared", "database")
    now, is_of_table = sa.func.clock_timestamp(), lock.c.relation == sa.any_(regclasses(t, _EVERY_TABLE))
    since = sa.func.coalesce(sa.func.min(lock.c.waitstart), now).label("since")
    longest = (
        sa.select(lock.c.pid, since, sa.func.coalesce(sa.func.bool_or(is_of_table), sa.false()).label("is_of_table"))
        .select_from(lock.join(session, session.c.pid == lock.c.pid))
        .where(~lock.c.granted, session.c.datname == sa.func.current_database())
        .group_by(lock.c.pid)
        .order_by(sa.literal_column("since"))
        .limit(sa.literal_column("50"))
        .subquery("longest")
    )
    waiting = sa.select(longest, sa.func.pg_blocking_pids(longest.c.pid).label("blockers")).cte("waiting")
    table = sa.cast(sa.func.min(lock.c.relation.op("::")(sa.literal_column("regclass::text"))), sa.Text).label("table")
    exclusive = (
        sa.select(lock.c.pid, table)
        .where(lock.c.mode == sa.literal_column("'AccessExclusiveLock'"), lock.c.granted, is_of_table)
        .group_by(lock.c.pid)
        .cte("exclusive")
    )
    pids = sa.union(
        sa.select(waiting.c.pid),
        sa.select(sa.func.unnest(waiting.c.blockers)),
        sa.select(sa.func.coalesce(exclusive.c.pid, sa.literal_column("0"))),
    ).subquery("pids")
    of_prepared = pids.c.pid == sa.literal_column("0")

    def only_one(value: sa.ColumnElement[Any]) -> Any:
        ours = of_prepared & (prepared.c.database == sa.func.current_database())
        return sa.select(value).where(ours).having(sa.func.count() == 1).correlate(pids).scalar_subquery()

    queued = lock.alias("queued")
    is_waiting = sa.exists(sa.literal_column("1")).where(queued.c.pid == pids.c.pid, ~queued.c.granted)
    return (
        sa.select(
            pids.c.pid,
            sa.func.coalesce(session.c.application_name, only_one(sa.func.min(prepared.c.gid))).label("name"),
            sa.func.coalesce(session.c.usename, only_one(sa.func.min(prepared.c.owner))).label("user"),
            session.c.backend_type.label("kind"),
            session.c.state,
            session.c.query,
            sa.cast(
                sa.func.coalesce(now - session.c.xact_start, now - only_one(sa.func.min(prepared.c.prepared))), sa.Interval
            ).label("locked_for"),
            sa.cast(now - waiting.c.since, sa.Interval).label("waited_for"),
            waiting.c.blockers,
            sa.func.coalesce(waiting.c.is_of_table, sa.false()).label("is_of_table"),
            exclusive.c.table,
            is_waiting.label("is_waiting"),
        )
        .select_from(
            pids.outerjoin(session, session.c.pid == pids.c.pid)
            .outerjoin(waiting, waiting.c.pid == pids.c.pid)
            .outerjoin(exclusive, sa.func.coalesce(exclusive.c.pid, sa.literal_column("0")) == pids.c.pid)
        )
        .where(pids.c.pid != sa.func.pg_backend_pid())
        .order_by(waiting.c.since, pids.c.pid)
    )


def cancel_statement() -> sa.Select[Any]:
    """Cancel the statement of another session. Parameters: `pid`. Shape: one row, whether it was notified. Locks: none."""
    return sa.select(sa.func.pg_cancel_backend(sa.bindparam("pid", type_=sa.Integer)))


def by_name() -> sa.Select[Any]:
    """Count the connections of the server by application name.

    Parameters: `limit`. Shape: `(name, n)`, the most first; the name is empty for those without. Locks: none.
    """
    session = catalog_table("pg_stat_activity", "application_name", "backend_type", "datname")
    name = sa.func.coalesce(session.c.application_name, sa.literal_column("''")).label("name")
    n = sa.func.count().label("n")
    return (
        sa.select(name, n)
        .where(session.c.datname.is_not(None))
        .group_by(name)
        .order_by(n.desc(), name)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def connected() -> sa.Select[Any]:
    """Return which application names have sessions in this database.

    Parameters: `names`. Shape: `(name, idle_for)` of each: time since the last statement of its sessions, null if that is
    not visible to this role. Behind a pooler a session may have another name. Clock: the database's `clock_timestamp()`.
    Locks: none.
    """
    session = catalog_table("pg_stat_activity", "datname", "application_name", "state_change", "backend_type")
    name = session.c.application_name.label("name")
    idle_for = sa.cast(sa.func.clock_timestamp() - sa.func.max(session.c.state_change), sa.Interval).label("idle_for")
    return (
        sa.select(name, idle_for)
        .where(session.c.datname == sa.func.current_database(), name == sa.any_(array("names", sa.Text())))
        .group_by(name)
    )
