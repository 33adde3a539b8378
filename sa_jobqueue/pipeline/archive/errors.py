"""Errors of archiving, besides those of the database."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sa_jobqueue.errors import JobQueueError


class ArchiveError(JobQueueError):
    """The archive could not be written; every row is still in the tables or in the archive."""


class ArchiveBusyError(ArchiveError):
    """Another archiver works on this queue; nothing was changed. Only one can run at a time: try again when it has ended."""


class ArchivePathError(ArchiveError, OSError):
    """The archive's location cannot be used; rows that are not archived yet are still in the tables.

    `path` is the location, `reason` the fault.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class UnarchivedColumnsError(ArchiveError):
    """A table has columns that the archive would not keep; the rows that have them were not deleted.

    `columns` are their names, `cure` is the advice.
    """

    def __init__(self, table: str, columns: Sequence[str], cure: str) -> None:
        self.table = table
        self.columns = tuple(columns)
        super().__init__(
            f"the archive would not keep {', '.join(columns)} of table {table}: {cure}; no row with them was deleted"
        )


class ArchiveElsewhereError(ArchiveError):
    """An unfinished run writes to another location; nothing was changed.

    `path` is the location of the run `run_id`: archive there first to finish it. `requested_path` is the path
    that was passed.
    """

    def __init__(self, run_id: UUID, path: str, requested_path: str) -> None:
        self.run_id = run_id
        self.path = path
        super().__init__(
            f"run {run_id} is unfinished and writes to {path}, not to {requested_path}; archive to {path} first to "
            f"finish it, or give up a run that has only been planned: sa-jobqueue archive runs --abandon {run_id}"
        )


class ArchiveCorruptError(ArchiveError):
    """The archive read back differs from the rows read from the tables; nothing was deleted because of it.

    `path` is the file, or the run's location. The next archiver restarts the run, unless its files had been verified:
    restore the file then.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")
