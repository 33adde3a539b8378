"""What can go wrong between Spark and the queue, beside what the queue itself refuses."""

from __future__ import annotations

from sa_jobqueue.errors import InvalidOptionError, JobQueueError


class MissingExtraError(JobQueueError, ImportError):
    """A library is not installed that a feature needs; nothing was started.

    `library` is what cannot be imported, `extra` what to install: `pip install "sa-jobqueue[extra]"`.
    """

    def __init__(self, library: str, extra: str) -> None:
        self.library = library
        self.extra = extra
        super().__init__(f'{library} is not installed: pip install "sa-jobqueue[{extra}]"')


class UnknownOptionError(InvalidOptionError):
    """An option is not known, or means nothing for this kind of reading or writing; nothing was started."""


class JavaNotFoundError(JobQueueError, RuntimeError):
    """Spark needs Java 17 or newer, and there is none; nothing was started."""


class OtherClusterError(JobQueueError):
    """A stream's checkpoint is of another database cluster than the one it is pointed at; nothing was read.

    Transaction numbers mean nothing in another cluster: going on would skip rows, or deliver them again. `reason` says
    how it was noticed. Start the query with a new checkpoint, and `startingXid` where it is to begin.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; start the query with a new checkpoint, and option startingXid where it is to begin")


class ReadError(JobQueueError):
    """The database ended a read; what was delivered of it is thrown away by Spark, which may try again."""


class SparkOnExecutorError(JobQueueError, RuntimeError):
    """A handler asks for a SparkSession, and there is none in a task of Spark: let a worker of its own run it."""


class WorkersFailedError(JobQueueError, RuntimeError):
    """Workers on executors failed, and Spark's retries with them; their jobs are taken back and run elsewhere.

    `reason` is the last error a task told; `app` and `name` say whose workers they were.
    """

    def __init__(self, name: str, app: str, reason: str) -> None:
        self.name = name
        self.app = app
        self.reason = reason
        super().__init__(f"workers {name} of {app}: {reason}")
