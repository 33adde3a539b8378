"""A server's counts of a database's statements, by pg_stat_statements where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from benchmarks.place import Place

_READ = (
    "SELECT coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0) FROM pg_stat_statements"
    " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query LIKE %s"
)


@dataclass(frozen=True, slots=True)
class Calls:
    """Since the counting began."""

    count: float
    milliseconds: float


class Statements:
    """Reads the counters over one connection, whose own statements are not in them."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def read(self, like: str = "%") -> Calls:
        """Return how often the statements ran that a pattern of LIKE fits, and how long they took in all."""
        row = self._connection.execute(_READ, (like,)).fetchone()
        assert row is not None
        return Calls(float(row[0]), float(row[1]))

    def scalar(self, statement: str) -> Any:
        """Return the one value that a statement reads, uncounted."""
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def run(self, statement: str) -> None:
        """Run a statement outside any transaction, uncounted."""
        self._connection.execute(statement.encode())


def enable(place: Place) -> bool:
    """Have the server count what later sessions of a database send, and return whether it does. That writes some WAL."""
    if "pg_stat_statements" not in place.scalar("SHOW shared_preload_libraries"):
        return False
    if place.scalar("SELECT count(*) FROM pg_extension WHERE extname = 'pg_stat_statements'"):
        return True
    name = make_url(place.url).database
    try:
        place.run("CREATE EXTENSION pg_stat_statements", f"ALTER DATABASE {name} SET pg_stat_statements.track = 'top'")
    except DBAPIError:  # only superusers may
        return False
    return True


@contextmanager
def counting(place: Place) -> Iterator[Statements | None]:
    """Count every statement that later sessions send; None on a server that does not count, or not for us."""
    if not enable(place):
        yield None
        return
    url = make_url(place.url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("SET pg_stat_statements.track = 'none'")
        place.held += 1
        yield Statements(connection)
        place.held -= 1
