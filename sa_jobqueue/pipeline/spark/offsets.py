"""Positions of streams: transaction ids of a cluster, as stored in checkpoints, and how far streams can read now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from sa_jobqueue.models import JobClass
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DEAD_LETTERS, JOBS, Dataset
from sa_jobqueue.pipeline.spark.connections import connect, sanitised
from sa_jobqueue.pipeline.spark.errors import OtherClusterError, ReadError, RestoredRowsError
from sa_jobqueue.pipeline.spark.options import Use, read_options
from sa_jobqueue.pipeline.statements import watermarks
from sa_jobqueue.statements import restored

VERSION: Final = 1


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

    xid: int
    """The watermark: all transactions below it have ended."""
    next_xid: int
    """Greater than the id of every transaction that has begun to write."""
    system: str
    """System identifier of the cluster."""
    is_replica: bool
    """Whether the server is a replica."""
    holder: Holder | None = None
    """The transaction that holds the watermark back; None if there is none, on a replica, or if the role may not see it."""

    @property
    def transactions_behind(self) -> int:
        """Return the number of transactions between the watermark and the newest."""
        return self.next_xid - self.xid


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a stream that has delivered the changes of transactions below `xid` of cluster `system`."""

    system: str
    xid: int

    def as_json(self) -> dict[str, Any]:
        """Return it as stored in a checkpoint. The id is text, because JSON numbers are exact only up to 2**53."""
        return {"v": VERSION, "system": self.system, "xid": str(self.xid)}

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Offset:
        """Read the result of `as_json`. Raises: OtherClusterError for a format of another version."""
        if stored.get("v") != VERSION:
            raise OtherClusterError(f"the checkpoint is of version {stored.get('v')!r}, this library writes {VERSION}")
        return cls(stored["system"], int(stored["xid"]))

    def check(self, now: StreamLag, *, must_be_there: bool = False) -> None:
        """Check that this offset belongs to a cluster and is not ahead of it.

        A replica may be behind, except with `must_be_there`, because missing rows would never be read again.
        Raises: OtherClusterError; ReadError if a replica is behind.
        """
        if self.system != now.system:
            raise OtherClusterError(
                f"this database belongs to cluster {now.system}, the checkpoint to cluster {self.system}"
            )
        if self.xid <= now.xid:
            return
        if not now.is_replica:
            raise OtherClusterError(
                f"the checkpoint has come to transaction {self.xid}, this cluster only to {now.xid}: it was restored, "
                "or a replica was promoted that had not received everything"
            )
        if must_be_there:
            raise ReadError(
                f"this replica has replayed transactions up to {now.xid}, the batch goes up to {self.xid}: "
                "try again, or name the primary"
            )


def stream_lag(url: str | None = None, **options: str) -> StreamLag:
    """Return how far streams of history can read, and which transaction holds them back. Changes and locks nothing.

    `url` and `options`: as for `spark.readStream.format("jobqueue")`.
    Raises: InvalidOptionError, DatabaseUnavailableError, ReadError.
    """
    read = read_options(dict(url=url, **options), Use.STREAM)
    with sanitised(read), connect(read, read_only=True) as connection:
        return read_lag(connection, with_holder=True)


def read_lag(connection: Connection, *, with_holder: bool = False) -> StreamLag:
    """Return the position of the cluster, read over an open connection. Locks: none."""
    holder = connection.execute(watermarks.holders()).first() if with_holder else None
    now = connection.execute(watermarks.position()).one()
    return StreamLag(now.xid, now.next_xid, now.system, now.is_replica, None if holder is None else Holder(*holder))


def check_restored(connection: Connection, model: JobClass, dataset: Dataset, now: StreamLag) -> None:
    """Check that no row of a dataset has a transaction that the cluster has not reached: it would be skipped.

    Locks: none. Raises: RestoredRowsError.
    """
    if dataset is BLOCKERS:
        return
    table = {JOBS.name: "job", ATTEMPTS.name: "attempt", DEAD_LETTERS.name: "dead_letter"}[dataset.name]
    if connection.scalar(restored.present(model, table=table), {"next_xid": now.next_xid}):
        raise RestoredRowsError(dataset.name, now.next_xid)
