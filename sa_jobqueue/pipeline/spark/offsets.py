"""Offsets of streams: a transaction id of one cluster, as stored in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from sa_jobqueue.pipeline.spark.errors import OtherClusterError, ReadError
from sa_jobqueue.pipeline.statements import watermarks

VERSION: Final = 1


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


@dataclass(frozen=True, slots=True)
class Standing:
    """Current position of the cluster: all transactions below `xid` have ended."""

    xid: int
    next_xid: int
    system: str
    is_replica: bool

    def check(self, offset: Offset, *, must_be_there: bool = False) -> None:
        """Check that an offset belongs to this cluster and is not ahead of it.

        A replica may be behind, except with `must_be_there`, because missing rows would never be read again.
        Raises: OtherClusterError; ReadError if a replica is behind.
        """
        if offset.system != self.system:
            raise OtherClusterError(
                f"this database belongs to cluster {self.system}, the checkpoint to cluster {offset.system}"
            )
        if offset.xid <= self.xid:
            return
        if not self.is_replica:
            raise OtherClusterError(
                f"the checkpoint has come to transaction {offset.xid}, this cluster only to {self.xid}: it was restored, "
                "or a replica was promoted that had not received everything"
            )
        if must_be_there:
            raise ReadError(
                f"this replica has replayed transactions up to {self.xid}, the batch goes up to {offset.xid}: "
                "try again, or name the primary"
            )


def read_standing(connection: Connection) -> Standing:
    """Read the current position of the cluster. Locks: none."""
    found = connection.execute(watermarks.position()).one()
    return Standing(found.xid, found.next_xid, found.system, found.is_replica)
