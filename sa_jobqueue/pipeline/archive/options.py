"""Options, progress and reports of an archiver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from sa_jobqueue.errors.bounds import check_duration, check_instant, check_number

_MOST: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Batch sizes and timeouts of an archiver. The defaults suit a database under load."""

    include_dead: bool = False
    """Whether to archive chains with unresolved dead letters, which may still be redriven."""
    max_jobs: int = 200_000
    """Maximum number of jobs per run; a run is written, verified and deleted before the next begins."""
    max_runs: int | None = None
    """Maximum number of runs; None: no limit."""
    read_batch_size: int = 20_000
    """Maximum number of jobs read per statement, whose snapshot is held for a second or two."""
    delete_batch_size: int = 2_000
    """Maximum number of jobs deleted per transaction; a chain is never split."""
    scan_batch_size: int = 10_000
    """Maximum number of jobs scanned per statement when chains are selected."""
    statement_timeout: timedelta = timedelta(minutes=5)
    """Timeout of each statement, and of an idle transaction of the archiver."""
    lock_timeout: timedelta = timedelta(seconds=5)
    """Maximum time to wait for a lock, of another archiver or of a row; locked chains are tried again later, or stay."""

    def __post_init__(self) -> None:
        for name in ("max_jobs", "read_batch_size", "delete_batch_size", "scan_batch_size"):
            check_number(name, getattr(self, name), 1, _MOST)
        if self.max_runs is not None:
            check_number("max_runs", self.max_runs, 1, _MOST)
        for name in ("statement_timeout", "lock_timeout"):
            check_duration(name, getattr(self, name), most=timedelta(days=1))


class Step(StrEnum):
    """The last completed step of an archiver."""

    PLANNED = "planned"
    """A run and its chains were recorded in the ledger."""
    PART = "part"
    """A part of one dataset was written."""
    FILES = "files"
    """All files of the run were written, not yet visible to readers."""
    VERIFIED = "verified"
    """The files were read back and verified."""
    WRITTEN = "written"
    """The ledger records the run as written."""
    PUBLISHED = "published"
    """A file was moved to where readers see it."""
    DELETING = "deleting"
    """All files were moved, and the deletion begins."""
    DELETED_BATCH = "deleted batch"
    """A batch of chains was deleted from the tables."""
    DELETED = "deleted"
    """The ledger records that the deletion ended."""
    REWRITTEN = "rewritten"
    """A file was rewritten without the rows of chains that stay."""
    DONE = "done"
    """The run ended."""
    ABANDONED_FILES = "abandoned files"
    """The files of a run that was never verified were deleted."""
    ABANDONED = "abandoned"
    """The plan of such a run was deleted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    run_id: UUID
    """Id of the run."""
    step: Step
    """The step that was just completed."""
    completed: int = 0
    """Number of jobs processed in the current kind of step."""
    total: int = 0
    """Number of jobs to process in this kind of step; 0 for a step without a count."""


Listener: TypeAlias = Callable[[Progress], None]
"""Called after each step. An exception stops the archiver, which can be run again."""


@dataclass(frozen=True, slots=True)
class Held:
    """A finished chain that stays because a job of another chain refers to it."""

    chain_id: Any
    """Id of the chain that stays."""
    by_job_id: Any
    """Id of the job that waits, or waited, for it."""
    by_chain_id: Any
    """Id of that job's chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """Result of an archiver. The counts are of chains that left the tables."""

    path: str
    """Location of the archive."""
    engine: str
    """Name of the engine that wrote the files: `pyarrow` or `spark`."""
    cutoff: datetime
    """Chains that ended before this time were archived."""
    runs: int
    """Number of runs."""
    resumed: int
    """Number of runs of earlier archivers that were finished or restarted."""
    chains: int
    """Number of chains."""
    jobs: int
    """Number of their jobs."""
    attempts: int
    """Number of recorded attempts of these jobs."""
    dead_letters: int
    """Number of dead letters of these jobs."""
    blockers: int
    """Number of these jobs' blockers."""
    files: int
    """Number of files."""
    bytes: int
    """Size of the files on disk."""
    retained: int
    """Chains that changed after they were written, are referred to, or were deleted elsewhere: no file has them."""
    held_chains: int
    """Number of finished chains that stay because a chain that stays waits or waited for them."""
    held_by: tuple[Held, ...]
    """Some of the chains that were held back."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class Month:
    """Number and size of the jobs of one type that ended in one month."""

    type_name: str
    """The job type."""
    month: str
    """The month in UTC, such as `2026-01`."""
    chains: int
    """Number of chains."""
    jobs: int
    """Number of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePreview:
    """Number of chains and rows that an archiver would archive now."""

    cutoff: datetime
    """Chains that ended before this time are counted."""
    chains: int
    """Number of chains."""
    jobs: int
    """Number of their jobs."""
    attempts: int
    """Number of recorded attempts of these jobs, which are archived with them."""
    dead_letters: int
    """Number of dead letters of these jobs, which are archived with them."""
    blockers: int
    """Number of these jobs' blockers, which are archived with them."""
    steps: int
    """Number of results of these jobs' steps, which are deleted with them and not archived."""
    months: tuple[Month, ...]
    """Counts by type and month."""
    held_chains: int
    """Number of ended chains that would stay, as in `ArchiveReport`."""
    held_by: tuple[Held, ...]
    """Some of these chains."""
    seconds: float
    """Duration of the preview in seconds."""


def check_before(before: object) -> None:
    """Check an age or a time."""
    if isinstance(before, datetime):
        check_instant("before", before)
    else:
        check_duration("before", before, or_zero=True)
