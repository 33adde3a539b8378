"""Errors of the Spark integration, besides those of the queue."""

from __future__ import annotations

from sa_jobqueue.errors import JobQueueError


class JavaNotFoundError(JobQueueError, RuntimeError):
    """Spark needs Java 17 or newer, which was not found; nothing was started."""


class OtherClusterError(JobQueueError):
    """A stream's checkpoint belongs to another database cluster than the one it reads from; nothing was read.

    Start the query with a new checkpoint, and set `startingXid`: see "Restore and failover" in the guide to streaming.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; start the query with a new checkpoint, and set startingXid to where it is to begin")


class RestoredRowsError(JobQueueError):
    """The dataset has rows of transactions that this cluster has not reached; nothing was read.

    They were restored from a dump of a cluster with a larger transaction counter. Run `sa-jobqueue restamp`. `dataset` is
    the one that was read, `next_xid` the next transaction of this cluster.
    """

    def __init__(self, dataset: str, next_xid: int) -> None:
        self.dataset = dataset
        self.next_xid = next_xid
        super().__init__(
            f"{dataset} has rows of transactions from {next_xid} on, which this cluster has not reached: they were restored "
            "from another cluster, and a read by transaction would skip them; run sa-jobqueue restamp, then read again"
        )


class ReadError(JobQueueError):
    """The database ended a read; Spark discards the rows delivered so far and may try again."""


class WriteError(JobQueueError):
    """The database refused a bulk write. Staged rows are ignored; nothing was enqueued unless stated otherwise."""


class WorkersFailedError(JobQueueError, RuntimeError):
    """Workers on executors failed, and so did Spark's retries; their jobs are rescued and run elsewhere.

    `reason` is the last error that a task reported; `app` and `name` identify the workers.
    """

    def __init__(self, name: str, app: str, reason: str) -> None:
        self.name = name
        self.app = app
        self.reason = reason
        super().__init__(f"workers {name} of {app}: {reason}")
