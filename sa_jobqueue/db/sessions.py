"""The settings of every session that this library opens for itself, and how a connection gets them.

A server, a database, a role, a service file or an environment variable may set any of them to something else
(`ALTER DATABASE … SET`, `PGDATESTYLE`), and a value that our statements, or psycopg's readers, do not expect breaks them.
So nothing is left to a default. The application's own sessions belong to it and are never changed.

Left to the operator: `search_path` and `role`, which say whose tables are meant and with which rights; `synchronous_commit`;
and `default_transaction_read_only`, a switch that stops writing. A worker that ignored it would claim jobs whose handlers
cannot write. The planner's settings, `GUARDS`, are the worker's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

SETTINGS: Final[dict[str, str]] = {
    # Payloads are UTF-8. Under LATIN1 psycopg misreads JSON, under SQL_ASCII it returns text as bytes.
    "client_encoding": "UTF8",
    # psycopg reads no other style of `timestamptz`, and no other style of `interval`.
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    # psycopg knows no POSIX time zones, and near the years 1 and 9999 another zone's local time cannot be read.
    "timezone": "UTC",
    # Statements that skip or wait for locked rows must see what was committed meanwhile.
    "default_transaction_isolation": "read committed",
    # Values of many rows travel as arrays written as text; with this off, NULL in them is the word "NULL".
    "array_nulls": "on",
    # What is left of a rate must be read as it was written.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    # Literals, and `x = NULL`, mean what the SQL standard says.
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # With it off, a policy on our tables makes every statement an error instead of filtering rows.
    "row_security": "on",
}
"""By name. `client_encoding` is a parameter of the connection, because there it outranks `PGCLIENTENCODING`."""

TIMEOUTS: Final[dict[str, str]] = {
    # A worker bounds its waits itself, as the client, and asks again; one that is cut short each time makes no progress.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
}
"""Further settings of workers. Commands keep the server's timeouts, or take them as options."""

GUARDS: Final[dict[str, str]] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # What the plans are made of. Off in a server's configuration, they would be the job tables read whole.
    "enable_indexscan": "on",
    "enable_indexonlyscan": "on",
    "enable_nestloop": "on",
    "enable_tidscan": "on",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
"""Settings of a worker's own connections. A plan cached while the table was empty, or chosen from the statistics of an
empty index, otherwise scans the whole backlog: 30 to 1,200 ms a claim were measured, against 0.4."""

_BY_ENVIRONMENT: Final = {"DateStyle": "datestyle", "TimeZone": "timezone"}
"""Settings that libpq's environment variables set after the startup options: name reported by the server, name used here."""


def own_options(url: URL) -> str:
    """Return the startup options that a URL or `PGOPTIONS` asks for: they may name the schema."""
    options = url.query.get("options") or os.environ.get("PGOPTIONS", "")
    return options if isinstance(options, str) else " ".join(options)


def startup_arguments(own_options: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments with which psycopg opens a session that has `settings`, whatever the options `own` say."""
    ours = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items() if name != "client_encoding")
    return {"options": f"{own_options} {ours}".strip(), "client_encoding": SETTINGS["client_encoding"]}


def overridden(connection: Any) -> str | None:
    """Return the statement that undoes the environment's settings of a new psycopg connection; None where it set nothing."""
    wrong = [
        f"SET {name} = '{SETTINGS[name]}'"
        for reported, name in _BY_ENVIRONMENT.items()
        if not (connection.info.parameter_status(reported) or "").startswith(SETTINGS[name])
    ]
    return "; ".join(wrong) or None


def set_locally(settings: Mapping[str, str]) -> str:
    """Return the statements, for the driver, that give the transaction that has just begun `settings`."""
    each = [f"SET LOCAL {name} = '{value}'" for name, value in settings.items() if name != _ISOLATION]
    return "; ".join([f"SET TRANSACTION ISOLATION LEVEL {SETTINGS[_ISOLATION]}", *each])


def own_engine(url: URL, **arguments: Any) -> Engine:
    """Return an engine without a pool, for a command or a report. It uses psycopg.

    The settings are those of each transaction, not of the session: behind a connection pooler others share it.
    In AUTOCOMMIT mode there is no transaction to set anything for, and only the encoding is ours.
    """
    arguments = arguments | {"client_encoding": SETTINGS["client_encoding"]}
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    event.listen(engine, "begin", _set_locally)
    return engine


_ISOLATION: Final = "default_transaction_isolation"
_LOCALLY: Final = set_locally({name: value for name, value in SETTINGS.items() if name != "client_encoding"})


def _set_locally(connection: Connection) -> None:
    if connection.get_isolation_level() != "AUTOCOMMIT":
        connection.exec_driver_sql(_LOCALLY)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def application_name(worker_name: str) -> str:
    """Return the `application_name` of a worker's sessions, cut to 63 characters as PostgreSQL cuts names."""
    return f"sa_jobqueue {worker_name}"[:63]
