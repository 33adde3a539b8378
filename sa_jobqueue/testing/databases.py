"""Databases that live as long as one test: made on a running server, cloned from a template, dropped by force."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from sqlalchemy import URL, Connection, Engine, MetaData, NullPool, create_engine, make_url, text
from sqlalchemy.schema import CreateSchema

_PREFIX = "jobqueue"
_MAINTENANCE_DATABASE = "postgres"
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND backend_type = 'client backend'"
# Half the work of the other strategy, which writes each page to the log, where the checkpoints it makes wait for no disk.
_IS_QUICKER_BY_FILE = """
SELECT current_setting('fsync') = 'off' AND current_setting('server_version_num')::integer >= 150000
"""


def create_database(server_url: str, template: str | None = None) -> str:
    """Create an empty database of a new name, or a copy of the database named `template`; return its URL.

    `server_url`: URL of any database of the server, for a role that may create databases.
    Obliges: no session is connected to the template; PostgreSQL waits 5 seconds for sessions that are ending.
    """
    name = f"{_PREFIX}_{secrets.token_hex(6)}"
    with _server(server_url) as connection:
        copied = f" TEMPLATE {_quoted(connection, template)}" if template is not None else ""
        if copied and connection.scalar(text(_IS_QUICKER_BY_FILE)):
            copied += " STRATEGY file_copy"
        connection.execute(text(f"CREATE DATABASE {_quoted(connection, name)}{copied}"))
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(database_url: str) -> None:
    """Drop the database of `database_url` and end the sessions in it; one that does not exist is no error."""
    with _server(database_url) as connection:
        name = _quoted(connection, database_name(database_url))
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


def wait_for_sessions_to_end(database_url: str) -> None:
    """Wait until no client is connected to the database of `database_url`, as soon after a crash of its process.

    Raises: `TimeoutError` after 30 seconds.
    """
    statement = text(_SESSIONS).bindparams(name=database_name(database_url))
    deadline = time.monotonic() + 30
    with _server(database_url) as connection:
        while connection.scalar(statement):
            if time.monotonic() > deadline:
                raise TimeoutError(f"sessions are still connected to {database_name(database_url)}")
            time.sleep(0.002)


def database_name(database_url: str) -> str:
    """Return the name of the database in `database_url`. Raises: `ValueError` if it has none."""
    name = make_url(database_url).database
    if not name:
        raise ValueError("the URL names no database")
    return name


def server_version(server_url: str) -> tuple[int, ...]:
    """Return the release of the server at `server_url`, such as (18, 6), waiting 5 seconds at most for a connection."""
    engine = create_engine(server_url, poolclass=NullPool, connect_args={"connect_timeout": 5})
    with engine.connect() as connection:
        answer = connection.dialect.server_version_info or ()
    return tuple(part for part in answer if isinstance(part, int))


def create_schema(database_url: str, metadata: MetaData) -> None:
    """Create the schemas and tables of `metadata` in the database of `database_url`, and leave no session behind."""
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        for schema in sorted({table.schema for table in metadata.tables.values() if table.schema}):
            connection.execute(CreateSchema(schema, if_not_exists=True))
        metadata.create_all(connection)


@contextmanager
def throw_away_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """Create a database and yield its URL; drop it at the end, even if sessions are connected.

    `server_url`, `template`: as in `create_database`.
    """
    url = create_database(server_url, template)
    try:
        yield url
    finally:
        drop_database(url)


def create_template(server_url: str, prepare: Callable[[str], None]) -> str:
    """Create a database to clone others from, which is quicker than DDL; return its URL.

    `server_url`: as in `create_database`. `prepare` is given the URL and leaves no session in it; if it raises, the database
    is dropped.
    """
    url = create_database(server_url)
    try:
        prepare(url)
    except BaseException:
        drop_database(url)
        raise
    return url


@contextmanager
def _server(url: str) -> Iterator[Connection]:
    # CREATE and DROP DATABASE run outside a transaction, and from another database than the one they are about.
    with _maintenance(make_url(url).set(database=_MAINTENANCE_DATABASE)).connect() as connection:
        yield connection


@cache
def _maintenance(url: URL) -> Engine:
    # Kept, without connections: an engine that is new asks the server for its release and settings.
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)
