"""Lag of a stream of history, and the transaction that causes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from sa_jobqueue.pipeline.spark import offsets
from sa_jobqueue.pipeline.spark.connections import connect, sanitised
from sa_jobqueue.pipeline.spark.options import Use, read_options
from sa_jobqueue.pipeline.statements import watermarks


@dataclass(frozen=True, slots=True)
class Holder:
    """The oldest open transaction that has written. Streams cannot read past it until it ends."""

    pid: int | None
    """Process id of its session; `pg_terminate_backend(pid)` ends it. None for a prepared transaction."""
    application_name: str | None
    """Its `application_name`; None if this role may not see it, and for a prepared transaction."""
    user: str | None
    """Its database role."""
    state: str | None
    """State as in `pg_stat_activity`; `prepared` for a prepared transaction."""
    open_for: timedelta | None
    """How long it has been open; None if this role may not see it."""
    prepared: str | None
    """The name of a prepared transaction, for `COMMIT PREPARED` or `ROLLBACK PREPARED`."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Position up to which streams of history can read now."""

    system: str
    """System identifier of the cluster."""
    xid: int
    """The watermark: all transactions below it have ended."""
    next_xid: int
    """Greater than the id of every transaction that has begun to write."""
    is_replica: bool
    """Whether the server is a replica."""
    holder: Holder | None
    """The transaction that holds the watermark back; None if there is none, on a replica, or if the role may not see it."""

    @property
    def transactions_behind(self) -> int:
        """Return the number of transactions between the watermark and the newest."""
        return self.next_xid - self.xid


def stream_lag(url: str | None = None, **options: str) -> StreamLag:
    """Return how far streams of history can read, and which transaction holds them back. Changes and locks nothing.

    `url` and `options`: as for `spark.readStream.format("jobqueue")`.
    Raises: InvalidOptionError, DatabaseUnavailableError, ReadError.
    """
    given = options if url is None else {"url": url, **options}
    read = read_options(given, Use.STREAM)
    with sanitised(read), connect(read, read_only=True) as connection:
        return read_lag(connection)


def read_lag(connection: Connection) -> StreamLag:
    """Return the lag, read over an open connection."""
    standing = offsets.read_standing(connection)
    found = connection.execute(watermarks.holders()).first()
    return StreamLag(
        system=standing.system,
        xid=standing.xid,
        next_xid=standing.next_xid,
        is_replica=standing.is_replica,
        holder=None if found is None else Holder(*found),
    )
