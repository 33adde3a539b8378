"""The queue's tables as the session of a handler sees them, where it does not find the row of its job.

The handler decides by its search path, its role, settings that policies of row-level security read, or a temporary table. A
name may belong to another table there, and a row that is not found may exist.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.statements._parts import XID, Tables, claimed_table, is_claimed_table, statement

_LOOK = """
WITH claimed AS (
  SELECT c.oid, quote_ident(n.nspname) AS schema, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.oid = CAST(CAST(:table_oid AS bigint) AS oid)
), session AS MATERIALIZED (
  SELECT current_setting('search_path') AS search_path, CAST(current_user AS text) AS role,
    CAST(current_database() AS text) AS database, current_setting('application_name') AS session_name,
    to_regclass(CAST(:job AS text)) AS visible
)
SELECT session.search_path, session.role, session.database, session.session_name, CAST(session.visible AS text) AS visible,
  claimed.name AS claimed, row_security_active(claimed.oid) AS has_row_security, CASE WHEN claimed.oid IS NOT NULL
    THEN set_config('search_path', concat_ws(', ', claimed.schema, NULLIF(session.search_path, ''), 'pg_temp'), true) END
FROM session LEFT JOIN claimed ON true
"""


@statement
def find_claimed_table(t: Tables) -> sa.TextClause:
    """Put the schema of the claimed table first on the search path, until the transaction ends, and describe the session.

    Parameters: `table_oid`.
    Shape: one row, of the session before the change: `search_path`, `role`, `database`, `session_name`; `visible`, the table
    that has the name of the job table, null for none; `claimed`, the name of the claimed table, null if this database does
    not have it; and `has_row_security`, whether policies decide which of its rows the session sees.
    Changes: the setting `search_path`, where the table exists. Locks: none.
    """
    return sa.text(_LOOK).bindparams(sa.bindparam("table_oid", type_=sa.BigInteger), job=t.layout.qualified("job"))


@statement
def search_path(_: Tables) -> sa.Select[Any]:
    """Return the search path. Shape: one row `(search_path,)`. Locks: none."""
    return sa.select(sa.func.current_setting(sa.literal_column("'search_path'"), type_=sa.Text).label("search_path"))


@statement
def set_search_path(_: Tables) -> sa.Select[Any]:
    """Set the search path until the transaction ends. Parameters: `search_path`. Locks: none."""
    path = sa.bindparam("search_path", type_=sa.Text)
    return sa.select(sa.func.set_config(sa.literal_column("'search_path'"), path, sa.true()))


@statement
def rows(t: Tables) -> sa.Select[Any]:
    """Return the rows of attempts as the session sees them, those of the claimed table only.

    Parameters: `ids`, `table_oid`. Shape: `(id, status, attempt, leased_by, is_own)`: whether this transaction changed its
    status. Locks: none. Index: the primary key.
    """
    names = ("id", "status", "attempt", "leased_by")
    return sa.select(*(t.job.c[name] for name in names), (t.job.c.changed_xid == XID).label("is_own")).where(
        t.job.c.id == sa.any_(t.ids("ids")), is_claimed_table(t)
    )


def is_companion(t: Tables, noun: str) -> ColumnElement[bool]:
    """Return whether the name of another table of the queue belongs, in this session, to the one beside the claimed table.

    `noun`: as in `Layout.name`. Parameters: `table_oid`. With a schema in its name it cannot be another.
    """
    if t.layout.schema:
        return sa.true()
    companion, claimed = (
        sa.table(
            "pg_class", sa.column("oid", OID()), sa.column("relname"), sa.column("relnamespace"), schema="pg_catalog"
        ).alias(name)
        for name in ("companion", "claimed")
    )
    beside = (
        sa.select(companion.c.oid)
        .select_from(companion.join(claimed, companion.c.relnamespace == claimed.c.relnamespace))
        .where(companion.c.relname == t.layout.name(noun), claimed.c.oid == claimed_table())
    )
    visible: ColumnElement[bool] = sa.cast(sa.func.to_regclass(t.layout.qualified(noun)), OID()) == beside.scalar_subquery()
    return visible
