"""A replica serves reads and streams, and refuses rows that it has not received: a real one, fed with WAL by the test."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import chown
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from sa_jobqueue import Job
from sa_jobqueue.pipeline.spark import ReadError, stream_lag
from sa_jobqueue.pipeline.spark.offsets import Offset
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from tests.spark.reading import ALL, batches, numbers, read, stream, write


@dataclass
class Pair:
    """A primary and its replica."""

    primary: EmbeddedServer
    replica: EmbeddedServer

    def ship(self) -> None:
        """Hand over the WAL there is, and wait until the replica has replayed it."""
        url = make_url(self.primary.socket_url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_switch_wal()")
        goal, deadline = stream_lag(self.primary.socket_url).xid, time.monotonic() + 120
        while stream_lag(self.replica.socket_url).xid < goal:
            assert time.monotonic() < deadline, "the replica did not replay what it was sent"


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Give a primary with a queue and two attempts, and a replica that has both."""
    if not binary_dirs():
        pytest.skip("there are no PostgreSQL programs on this machine")
    programs = binary_dirs()[-1].path
    settings = {"archive_mode": "on", "archive_command": "cp %p ../wal/%f", "autovacuum": "off"}
    with EmbeddedServer(programs, settings) as primary:
        engine = create_engine(primary.socket_url)
        Job.metadata.create_all(engine)
        engine.dispose()
        write(primary.socket_url, 1, 2)
        place = primary.data_dir.parent
        (place / "wal").mkdir()
        primary.crash()  # so that its files stand still
        shutil.copytree(primary.data_dir, place / "replica")
        (place / "replica" / "postmaster.pid").unlink()
        (place / "replica" / "standby.signal").touch()
        owner = primary.data_dir.stat()
        for path in (place / "wal", place / "replica", *(place / "replica").rglob("*")):
            chown(path, owner.st_uid, owner.st_gid)
        primary.start()
        following = {"restore_command": f"cp {place / 'wal'}/%f %p", "wal_retrieve_retry_interval": "100ms"}
        with EmbeddedServer(programs, following, data_dir=Path(place / "replica")) as replica:
            yield Pair(primary, replica)


@pytest.mark.long
def test_a_replica_can_be_read_and_streamed_and_reports_its_lag(pair: Pair) -> None:
    here, there = pair.primary.socket_url, pair.replica.socket_url
    pair.ship()
    assert sorted(row["attempt"] for row in read(there, "attempts", upTo="watermark")) == [1, 2]
    ((rows, end),) = batches(stream(there))
    assert numbers(rows) == [1, 2]
    lag = stream_lag(there)
    assert (lag.is_replica, lag.system, lag.holder) == (True, stream_lag(here).system, None)
    write(here, 3, 4)
    on_primary, on_replica = stream(here), stream(there)
    further = on_primary.latestOffset(end, ALL)
    assert Offset.of(further).xid > Offset.of(end).xid
    # What it has not received is no error for who looks for more, and one for who was promised it.
    assert list(batches(on_replica, end)) == []
    assert on_replica.latestOffset(further, ALL) == further
    with pytest.raises(ReadError, match="replica has replayed transactions up to"):
        on_replica.partitions(end, further)
    (part,) = on_primary.partitions(end, further)
    with pytest.raises(ReadError, match="replica has replayed transactions up to"):
        next(on_replica.read(part))
    pair.ship()
    assert numbers([row for batch in on_replica.read(part) for row in batch.to_pylist()]) == [3, 4]
    ((rows, _),) = batches(on_replica, end)
    assert numbers(rows) == [3, 4]
