"""The consumption of a case: time, CPU on both sides, round trips, and counters of the server."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event, make_url

from benchmarks.place import Place

_QUIET_SECONDS: Final = 10.0
_CLOCK_TICK: Final = 0.01


@dataclass(slots=True)
class Counted:
    """Counters of the server during a case."""

    commits: int
    wal_bytes: int
    inserted: int
    updated: int
    deleted: int
    dead: int


class RoundTrips:
    """Counts the driver's calls: statements, and BEGIN and COMMIT or ROLLBACK of real transactions.

    A batch that the driver pipelines counts as one, for it is awaited once; a prepared statement's first PREPARE is not
    seen. Does not use SQLAlchemy's events: the worker takes another code path if they have listeners.
    """

    def __init__(self) -> None:
        self.count = 0
        for kind in (psycopg.Cursor, psycopg.AsyncCursor):
            for name in ("execute", "executemany"):
                setattr(kind, name, self._counted(getattr(kind, name)))
        event.listen(Engine, "commit", self._end)
        event.listen(Engine, "rollback", self._end)

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return method(*args, **kwargs)

        return counting

    def _end(self, connection: Connection) -> None:
        driver: Any = None if connection.invalidated else connection.connection.driver_connection
        # Other drivers are not counted.
        if (
            isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection))
            and driver.info.transaction_status != TransactionStatus.IDLE
        ):
            self.count += 2


ROUND_TRIPS: Final = RoundTrips()


class Stopwatch:
    """Adds up the spans in which a case does its work: `with watch: ...`, as often as it takes."""

    def __init__(self, server_pid: int | None) -> None:
        self._server_pid = server_pid
        self.seconds = 0.0
        self.client_cpu = 0.0
        self.server_cpu = 0.0
        self.round_trips: int | None = 0
        """Added to by code that bypasses SQLAlchemy; None if they cannot be counted."""
        self.figures: dict[str, float] = {}
        """What else the case found: percentiles, buffers."""
        self.is_divided = True
        """Whether usage is reported per job; False if the subject of a case is not its jobs."""
        self.used = False
        self.beside: Callable[[], Iterable[int]] = tuple
        """Tells the processes that work for the case as well, and live on: their CPU time is the client's."""

    def start(self) -> None:
        """Begin a span."""
        self.used = True
        self._before = (ROUND_TRIPS.count, server_cpu(self._server_pid), client_cpu(self.beside()), time.perf_counter())

    def stop(self) -> None:
        """End the span."""
        trips, server, client, began = self._before
        self.seconds += time.perf_counter() - began
        # Never below zero: the CPU time of a process beside it is lost if that was killed and not waited for.
        self.client_cpu += max(0.0, client_cpu(self.beside()) - client)
        self.server_cpu += server_cpu(self._server_pid) - server
        if self.round_trips is not None:
            self.round_trips += ROUND_TRIPS.count - trips

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def client_cpu(beside: Iterable[int] = ()) -> float:
    """Return the CPU seconds that this process has used and its children that ended, and those that live on `beside` it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(_with_ended(pid) for pid in beside)


def _with_ended(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) * _CLOCK_TICK


def server_cpu(pid: int | None) -> float:
    """Return the CPU seconds of a server and all its processes, those that ended included; 0 where it cannot be read.

    Live processes are read to the nanosecond; those that ended are in the counters of their parent, in hundredths of a
    second: a case of 10,000 jobs is measured to within 2 us a job, a small one not at all.
    """
    if pid is None:
        return 0.0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    seconds = (int(ended[13]) + int(ended[14])) * _CLOCK_TICK
    for process_id in (str(pid), *children):
        try:
            seconds += int(Path(f"/proc/{process_id}/schedstat").read_text().split()[0]) / 1e9
        except OSError:  # it ended between the two reads: its parent counts it the next time
            continue
    return seconds


@dataclass(slots=True)
class Meter:
    """Reads the server's counters around a case. It counts none of its own transactions."""

    place: Place
    _outside: psycopg.Connection[Any] = field(init=False)
    _inside: psycopg.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        url = make_url(self.place.url).set(drivername="postgresql")
        self._inside = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
        outside = url.set(database="postgres").render_as_string(hide_password=False)
        self._outside = psycopg.connect(outside, autocommit=True)
        self._outside.execute("SET stats_fetch_consistency = none")
        self._inside.execute("SET stats_fetch_consistency = none")

    @contextmanager
    def reading(self, counted: list[Counted]) -> Iterator[None]:
        """Append the server's counters of the block, once every session of the case has ended."""
        self._wait_for_statistics()
        before_tables = self._tables()
        before = self._database()
        yield
        self._wait_for_statistics()
        after = self._database()
        after_tables = self._tables()
        change = [last - first for first, last in zip((*before, *before_tables), (*after, *after_tables), strict=True)]
        counted.append(Counted(*change))

    def close(self) -> None:
        """Close the meter's own connections."""
        self._inside.close()
        self._outside.close()

    def _wait_for_statistics(self) -> None:
        # A session hands its counters over at the latest when it ends, and leaves pg_stat_activity after that.
        count_sessions = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' AND pid <> %s"
        )
        arguments = (self._inside.info.dbname, self._inside.info.backend_pid)
        deadline = time.monotonic() + _QUIET_SECONDS
        while self._one(self._outside, count_sessions, arguments)[0] > self.place.held:
            if time.monotonic() > deadline:
                raise TimeoutError("a case left sessions open; what they did was not counted")
            time.sleep(0.002)

    def _database(self) -> tuple[int, int]:
        commits, lsn = self._one(
            self._outside,
            "SELECT xact_commit, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_database WHERE datname = %s",
            (self._inside.info.dbname,),
        )
        return int(commits), int(lsn)

    def _tables(self) -> tuple[int, int, int, int]:
        # The flush carries this very statement's commit over, before the commits of the case are counted.
        row = self._one(
            self._inside,
            "SELECT sum(n_tup_ins), sum(n_tup_upd), sum(n_tup_del), sum(n_dead_tup), pg_stat_force_next_flush()"
            " FROM pg_stat_user_tables",
        )
        inserted, updated, deleted, dead = (int(value or 0) for value in row[:4])
        return inserted, updated, deleted, dead

    @staticmethod
    def _one(connection: psycopg.Connection[Any], statement: str, arguments: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = connection.execute(statement.encode(), arguments).fetchone()
        assert row is not None
        return row
