"""What can keep an archive from being made, beside what the database itself refuses."""

from __future__ import annotations

from uuid import UUID

from sa_jobqueue.errors import JobQueueError


class ArchiveError(JobQueueError):
    """The archive could not be made; every row is still in the tables or in the archive."""


class MissingArchiveExtraError(ArchiveError, ImportError):
    """Archives need pyarrow, which is not installed: pip install "sa-jobqueue[archive]"."""


class ArchiveBusyError(ArchiveError):
    """Another archiver works on this queue; nothing was changed. There is one at a time: try again when it is done."""


class ArchivePathError(ArchiveError, OSError):
    """The archive's place cannot be used as it should be; what is not in it yet is still in the tables.

    `path` is the place, `reason` what is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class ArchiveElsewhereError(ArchiveError):
    """A run that did not come to its end belongs to another place; nothing was changed.

    `run_id` names it, `path` is where it writes to: archive there first, and it is taken up.
    """

    def __init__(self, run_id: UUID, path: str, given: str) -> None:
        self.run_id = run_id
        self.path = path
        super().__init__(
            f"run {run_id} is not finished and writes to {path}, not to {given}: archive there first, and it is taken up"
        )


class ArchiveCorruptError(ArchiveError):
    """What was read back from the archive is not what was read from the tables; nothing was deleted because of it.

    `path` is the file, or the run's place; `reason` says what differs. A run whose files were never seen by readers is begun
    anew by the next archiver. One that is already deleting waits for the file to be put right: chains that it deleted are
    nowhere else.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")
