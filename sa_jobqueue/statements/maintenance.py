"""Vacuum and the rebuilding of indexes by hand, and how far each has come. None runs in a transaction."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from sa_jobqueue.layout import Layout

_PREPARER = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]


def vacuum(layout: Layout, table_name: str, *, analyze: bool) -> sa.TextClause:
    """Remove a table's dead rows, and renew the planner's statistics.

    Locks: SHARE UPDATE EXCLUSIVE on the table, which no reader and no writer waits for; an autovacuum on it gives way.
    Obliges: no transaction.
    """
    return sa.text(f"VACUUM {'(ANALYZE) ' if analyze else ''}{_name(layout, table_name)}")


def reindex(layout: Layout, index_name: str) -> sa.TextClause:
    """Rebuild an index concurrently and replace the old one.

    Locks: SHARE UPDATE EXCLUSIVE on the table; it waits for every transaction that may use the old index. If interrupted,
    it leaves an index behind whose name ends in `_ccnew` or `_ccold`. Obliges: no transaction.
    """
    return sa.text(f"REINDEX INDEX CONCURRENTLY {_name(layout, index_name)}")


def drop_index(layout: Layout, index_name: str) -> sa.TextClause:
    """Drop the remains of an ended rebuild. Locks: as `reindex`. Obliges: no transaction."""
    return sa.text(f"DROP INDEX CONCURRENTLY IF EXISTS {_name(layout, index_name)}")


def bounded(*, lock_timeout_ms: int) -> sa.Select[Any]:
    """Set a session's lock timeout, and remove its statement timeout; its application name is that of the maintenance."""
    wanted = {
        "application_name": "sa_jobqueue maintenance",
        "lock_timeout": f"{lock_timeout_ms}ms",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
    }
    return sa.select(*(sa.func.set_config(name, value, False) for name, value in wanted.items()))


def progress() -> sa.Select[Any]:
    """Return the progress of a session's vacuum or rebuild. Parameters: `pid`.

    Shape: `(phase, done, total)`, in blocks or whatever the phase counts; no row where it is at neither. Locks: none.
    """
    vacuuming = sa.table(
        "pg_stat_progress_vacuum", *_columns("pid", "phase", "heap_blks_scanned", "heap_blks_total"), schema=_PG
    )
    building = sa.table(
        "pg_stat_progress_create_index", *_columns("pid", "phase", "blocks_done", "blocks_total"), schema=_PG
    )
    pid = sa.bindparam("pid", type_=sa.Integer)
    one: Any = sa.select(
        sa.cast(vacuuming.c.phase, sa.Text).label("phase"),
        sa.cast(vacuuming.c.heap_blks_scanned, sa.BigInteger).label("done"),
        sa.cast(vacuuming.c.heap_blks_total, sa.BigInteger).label("total"),
    ).where(vacuuming.c.pid == pid)
    other: Any = sa.select(
        sa.cast(building.c.phase, sa.Text),
        sa.cast(building.c.blocks_done, sa.BigInteger),
        sa.cast(building.c.blocks_total, sa.BigInteger),
    ).where(building.c.pid == pid)
    both: Any = sa.union_all(one, other)
    chosen: sa.Select[Any] = sa.select(both.subquery("progress"))
    return chosen


_PG = "pg_catalog"


def _columns(*names: str) -> list[Any]:
    return [sa.column(name) for name in names]


def _name(layout: Layout, name: str) -> str:
    # The database's own names, leftovers among them; the schema is quoted as everywhere.
    quoted = _PREPARER.quote(name)
    return f'"{layout.schema}".{quoted}' if layout.schema else quoted
