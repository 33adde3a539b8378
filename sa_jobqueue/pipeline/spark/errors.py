"""Errors of the Spark integration, besides those of the queue."""

from __future__ import annotations

from sa_jobqueue.errors import JobQueueError


class JavaNotFoundError(JobQueueError, RuntimeError):
    """Spark needs Java 17 or newer, which was not found; nothing was started."""


class OtherClusterError(JobQueueError):
    """A stream's checkpoint belongs to another database cluster than the one it reads from; nothing was read.

    Start the query with a new checkpoint, and set `startingXid`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; start the query with a new checkpoint, and set startingXid to where it is to begin")


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
