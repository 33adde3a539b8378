"""What an archiver is told, what it tells while it works, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from sa_jobqueue.errors import InvalidOptionError

_MOST: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """How much an archiver does at a time. The defaults suit a database that is at work."""

    include_dead: bool = False
    """Also chains with unresolved dead letters: open work, for which somebody may still decide on a redrive."""
    max_jobs: int = 200_000
    """Of a run: what is written, verified and deleted before the next begins. Its keys are held in memory, some 300 bytes
    a chain."""
    max_runs: int | None = None
    """How many runs at most; none for as many as it takes."""
    part_jobs: int = 20_000
    """Read in one statement, whose snapshot is held for as long as that takes: a second or two."""
    batch_jobs: int = 2_000
    """Deleted in one transaction, a chain never in two."""
    scan_jobs: int = 10_000
    """Looked at in one statement while chains are chosen."""
    statement_timeout: timedelta = timedelta(minutes=5)
    """Of each statement; also how long the server lets a transaction of the archiver's stand idle."""
    lock_timeout: timedelta = timedelta(seconds=5)
    """How long it waits for a lock; what it cannot get is tried again later, or stays."""

    def __post_init__(self) -> None:
        for name in ("max_jobs", "part_jobs", "batch_jobs", "scan_jobs", "max_runs"):
            number = getattr(self, name)
            if number is None and name == "max_runs":
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST:
                raise InvalidOptionError(name, f"must be a whole number from 1 to {_MOST:,}, got {number!r}")
        for name in ("statement_timeout", "lock_timeout"):
            duration = getattr(self, name)
            if not isinstance(duration, timedelta) or not timedelta(milliseconds=1) <= duration <= timedelta(days=1):
                raise InvalidOptionError(name, f"must be a timedelta from a millisecond to a day, got {duration!r}")


class Step(StrEnum):
    """What an archiver has just done."""

    PLANNED = "planned"
    """A run and its chains are in the ledger."""
    PART = "part"
    """A part of one dataset was written."""
    FILES = "files"
    """All files of the run are there, out of readers' sight."""
    VERIFIED = "verified"
    """The files were read back, and are what they should be."""
    WRITTEN = "written"
    """The ledger says so."""
    PUBLISHED = "published"
    """A file was moved to where readers see it."""
    DELETING = "deleting"
    """The ledger says that rows may be deleted."""
    DELETED_BATCH = "deleted batch"
    """Some chains are gone from the tables."""
    DELETED = "deleted"
    """The ledger says that no more will be."""
    REWRITTEN = "rewritten"
    """A file lost the rows of chains that stay."""
    DONE = "done"
    """The run is over."""
    ABANDONED_FILES = "abandoned files"
    """The files of a run that never was verified are gone."""
    ABANDONED = "abandoned"
    """So is its plan."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    run_id: UUID
    step: Step
    done: int = 0
    """Of the present kind of step: jobs."""
    total: int = 0


Listener: TypeAlias = Callable[[Progress], None]
"""Told after each step. What it raises stops the archiver, which can be run again."""


@dataclass(frozen=True, slots=True)
class Held:
    """A finished chain that stays because a job of another chain refers to it."""

    chain_id: Any
    by_job_id: Any
    by_chain_id: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """What an archiver did. The numbers are of chains that left the tables."""

    path: str
    engine: str
    cutoff: datetime
    runs: int
    taken_up: int
    """Runs of earlier archivers, brought to their end or begun anew."""
    chains: int
    jobs: int
    attempts: int
    dead_letters: int
    blockers: int
    files: int
    bytes: int
    """Of the files, as they are on disk."""
    survivors: int
    """Chains that changed after they were written, or are referred to; they are in the tables and not in the files."""
    held: int
    """Finished chains that stay because another one that stays waits for them, or waited."""
    held_by: tuple[Held, ...]
    """Some of those."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Month:
    """How much of one type ended in one month."""

    type_name: str
    month: str
    chains: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePreview:
    """What an archiver would take on now."""

    cutoff: datetime
    chains: int
    jobs: int
    months: tuple[Month, ...]
    """By type and month."""
    held: int
    held_by: tuple[Held, ...]
    seconds: float


def check_before(before: object) -> None:
    """Check an age or an instant. Raises: InvalidOptionError."""
    if isinstance(before, datetime):
        if before.utcoffset() is None:
            raise InvalidOptionError("before", f"must be an aware datetime, such as datetime.now(UTC), got {before!r}")
    elif not isinstance(before, timedelta) or before < timedelta(0):
        raise InvalidOptionError("before", f"must be a timedelta, not negative, or an aware datetime, got {before!r}")
