"""Vacuum and the rebuilding of indexes by hand. None runs in a transaction."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.db.copy import quote
from sa_jobqueue.ddl.v0001 import quoted
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.base import verbatim


def vacuum(layout: Layout, table_name: str, *, analyze: bool) -> sa.TextClause:
    """Remove a table's dead rows, and renew the planner's statistics.

    Locks: SHARE UPDATE EXCLUSIVE on the table, which no reader and no writer waits for; an autovacuum on it gives way.
    Obliges: no transaction.
    """
    return verbatim(f"VACUUM {'(ANALYZE) ' if analyze else ''}{_name(layout, table_name)}")


def reindex(layout: Layout, index_name: str) -> sa.TextClause:
    """Rebuild an index concurrently and replace the old one.

    Locks: SHARE UPDATE EXCLUSIVE on the table; it waits for every transaction that may use the old index. If interrupted,
    it leaves an index behind whose name ends in `_ccnew` or `_ccold`. Obliges: no transaction.
    """
    return verbatim(f"REINDEX INDEX CONCURRENTLY {_name(layout, index_name)}")


def drop_index(layout: Layout, index_name: str) -> sa.TextClause:
    """Drop the remains of an ended rebuild. Locks: as `reindex`. Obliges: no transaction."""
    return verbatim(f"DROP INDEX CONCURRENTLY IF EXISTS {_name(layout, index_name)}")


def bounded(*, lock_timeout_ms: int) -> sa.Select[Any]:
    """Set a session's lock timeout, and remove its statement timeout; its application name is that of the maintenance."""
    parameters = {
        "application_name": "sa_jobqueue maintenance",
        "lock_timeout": f"{lock_timeout_ms}ms",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
    }
    return sa.select(*(sa.func.set_config(name, value, False) for name, value in parameters.items()))


def _name(layout: Layout, name: str) -> str:
    # The database's own names, leftovers among them; the schema is quoted as everywhere.
    return f"{quoted(layout.schema)}.{quote(name)}" if layout.schema else quote(name)
