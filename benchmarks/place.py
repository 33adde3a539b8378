"""Where a scenario runs: its own database, on a server of the benchmark's own or on one it was given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sa_jobqueue.migrations import runner
from sa_jobqueue.models import Base
from sa_jobqueue.testing.databases import throw_away_database
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import PostgresServer, open_server

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_connections": "350",  # 50 databases, or 100 clients of pgbench and what other scenarios keep open meanwhile
    # No checkpoint in the middle of a case: each begins on fresh tables, after a checkpoint.
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "on",
    # It counts statements for the cases that ask for it, and nothing for the others.
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
"""Settings of the benchmark's own server. Commits are as durable as in production."""

SHOWN: Final = (
    *(name for name in SETTINGS if "statements" not in SETTINGS[name] + name),
    "wal_level",
    "server_version",
    "default_toast_compression",
    "track_io_timing",
)
"""Settings of the server that every report contains."""


class Place:
    """One throw-away database with the queue's tables in it, for one scenario."""

    def __init__(self, url: str, *, server_pid: int | None, bin_dir: Path | None) -> None:
        self.url = url
        self.tcp_url = url
        """The same over TCP, for clients that have no other way; of a server of ours that listens there."""
        self.server_pid = server_pid
        """Of the server when it is ours, whose CPU time can be read; None otherwise."""
        self.bin_dir = bin_dir
        self.broker: str | None = None
        """Where the jobs of a system are that does not keep them in PostgreSQL; the database stays empty then."""
        self.held = 0
        """How many sessions the scenario itself keeps open between cases: the meter does not wait for their end."""

    def engine(self, *, size: int = 0, **arguments: Any) -> Engine:
        """Return an engine: of `size` pooled connections, or one that opens and closes a connection each time."""
        pool: dict[str, Any] = {"pool_size": size, "max_overflow": 0} if size else {"poolclass": NullPool}
        return create_engine(self.url, **pool, **arguments)

    def async_engine(self, *, size: int) -> AsyncEngine:
        """Return an asynchronous engine of at most `size` connections."""
        return create_async_engine(self.url, pool_size=size, max_overflow=0)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Give a connection in a transaction, which is committed; the session is gone afterwards."""
        with self.engine().begin() as connection:
            yield connection

    def run(self, *statements: str) -> None:
        """Run statements outside any transaction."""
        with self.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def scalar(self, statement: str) -> Any:
        """Return the one value that a statement reads."""
        with self.begin() as connection:
            return connection.execute(text(statement)).scalar_one()

    def clear(self) -> None:
        """Empty every table of the queue, files and indexes with it, and write everything out where we may."""
        names = ", ".join(f"'{table}'" for table in Base.metadata.sorted_tables)
        # A database of the peers' lacks the tables of the pipeline, which this process has imported.
        created = f"SELECT string_agg(name, ', ') FROM unnest(ARRAY[{names}]) AS name WHERE to_regclass(name) IS NOT NULL"
        self.run(f"TRUNCATE {self.scalar(created)}")
        self.checkpoint()

    def checkpoint(self) -> None:
        """Make a checkpoint, so that images of pages touched for the first time fall where the case wants them."""
        try:
            self.run("CHECKPOINT")
        except DBAPIError:  # only superusers and members of pg_checkpoint may
            return


@contextmanager
def open_place(server: PostgresServer) -> Iterator[Place]:
    """Give a separate place on a server; the database is dropped afterwards."""
    pid, bin_dir = own_server(server)
    url = server.socket_url if isinstance(server, EmbeddedServer) else server.url
    with throw_away_database(url) as database_url:
        place = Place(database_url, server_pid=pid, bin_dir=bin_dir)
        name = make_url(database_url).database
        place.tcp_url = make_url(server.url).set(database=name).render_as_string(hide_password=False)
        with place.begin() as connection:
            runner.upgrade(connection)
        yield place


def own_server(server: PostgresServer) -> tuple[int | None, Path | None]:
    """Return the process of a server of ours and where its programs lie; nothing of a server that was named."""
    return (server.pid, server.bin_dir) if isinstance(server, EmbeddedServer) else (None, None)


@contextmanager
def serve(source: str) -> Iterator[PostgresServer]:
    """Give the server of a URL, or one of our own from the programs named `newest` or `oldest`."""
    with open_server(source, settings=SETTINGS, tcp=True) as server:
        yield server


def describe(server: PostgresServer) -> dict[str, Any]:
    """Return the settings of a server that matter to the figures."""
    select_settings = text(
        "SELECT name, current_setting(name) AS value FROM pg_settings WHERE name = ANY(:names) ORDER BY name"
    )
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.connect() as connection:
        settings = {row.name: row.value for row in connection.execute(select_settings, {"names": list(SHOWN)})}
    return {"ours": isinstance(server, EmbeddedServer), "settings": settings}


def cpu_count() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
