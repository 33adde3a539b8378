"""The words of the queue as types: states, reasons, and the one table of legal transitions.

Everything else imports from here; this module imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

JobId: TypeAlias = UUID | str
"""A job's identity: a UUIDv7 by default, text where the model says so."""

Json: TypeAlias = Any
"""What `json.dumps` takes and PostgreSQL's jsonb stores. Only payloads are allowed to be this loose."""

OutT = TypeVar("OutT", covariant=True)


class JobStatus(StrEnum):
    """Where a job stands. Stored as the enum type `job_status`."""

    BLOCKED = "blocked"
    """Waits for other chains; `open_blockers` says for how many."""
    PENDING = "pending"
    """Will be claimed at `scheduled_at` or soon after; never started, or waiting for its next attempt."""
    RUNNING = "running"
    """Leased by one worker, which alone may end this attempt."""
    COMPLETED = "completed"
    """Its handler returned and its effects are committed."""
    DEAD = "dead"
    """Will not be tried again unless redriven; a dead letter says why."""
    CANCELLED = "cancelled"
    """Somebody said it must not run."""


ENDED: Final = frozenset({JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED})
"""The states in which `completed_at` is set."""

INITIAL: Final = frozenset({JobStatus.PENDING, JobStatus.BLOCKED})
"""The states a row may be inserted in."""

TRANSITIONS: Final = frozenset(
    {
        (JobStatus.BLOCKED, JobStatus.PENDING),  # the last blocker completed
        (JobStatus.BLOCKED, JobStatus.COMPLETED),  # completed without a worker
        (JobStatus.BLOCKED, JobStatus.DEAD),  # a blocker died, and the edge says so
        (JobStatus.BLOCKED, JobStatus.CANCELLED),
        (JobStatus.PENDING, JobStatus.RUNNING),  # claimed
        (JobStatus.PENDING, JobStatus.COMPLETED),  # completed without a worker
        (JobStatus.PENDING, JobStatus.CANCELLED),
        (JobStatus.RUNNING, JobStatus.COMPLETED),
        (JobStatus.RUNNING, JobStatus.PENDING),  # retried, snoozed, released, taken back
        (JobStatus.RUNNING, JobStatus.DEAD),
        (JobStatus.RUNNING, JobStatus.CANCELLED),
        (JobStatus.DEAD, JobStatus.PENDING),  # redriven
        (JobStatus.DEAD, JobStatus.BLOCKED),  # redriven, and still waiting for other chains
    }
)
"""Every legal change of status. The database's trigger and its `job_transition` view are tested against this set."""


class AttemptOutcome(StrEnum):
    """How an attempt ended that did not succeed: one `job_attempt` row each."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """`complete_job` completed its job while it ran."""


class CancelReason(StrEnum):
    """Why a running attempt should stop: `AttemptContext.cancel_reason`."""

    TIMED_OUT = "timed_out"
    """It ran past its timeout. Counted, as a failure."""
    CANCELLED = "cancelled"
    """Its job was cancelled."""
    COMPLETED = "completed"
    """Its job was completed by `complete_job`."""
    DELETED = "deleted"
    """Its job was deleted."""
    LEASE_LOST = "lease_lost"
    """Its job was rescued, and runs elsewhere or will."""
    DATABASE_LOST = "database_lost"
    """Its worker cannot reach the database, and others may soon rescue the job. Not counted."""
    SHUTDOWN = "shutdown"
    """Its worker is shutting down. Not counted."""
    BATCH_STOPPED = "batch_stopped"
    """Another job of its batch was stopped. Not counted."""


LOST: Final = frozenset({CancelReason.CANCELLED, CancelReason.COMPLETED, CancelReason.DELETED, CancelReason.LEASE_LOST})
"""Reasons that stand in the database already: nothing is written of such an attempt."""


UNCOUNTED: Final = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED})
"""Outcomes that give the attempt back, by raising `max_attempts`: `attempt` is the fence and only grows."""


class DeadReason(StrEnum):
    """Why a job died."""

    EXHAUSTED = "exhausted"
    """It failed as often as `max_attempts` allows."""
    DISCARDED = "discarded"
    """Its handler, or its retry policy, gave up on it."""
    INVALID_INPUT = "invalid_input"
    """Its input does not fit its type, so no attempt could ever succeed."""
    TIMED_OUT = "timed_out"
    """Its last attempt ran past its timeout."""
    LOST = "lost"
    """Its last attempt's worker vanished."""
    BLOCKER_FAILED = "blocker_failed"
    """A chain it waited for died or was cancelled, and it must not run without."""


class RefusedWrite(StrEnum):
    """The write that failed for one row, which is in quarantine: `statement` in the table of that name."""

    COMPLETE = "complete"
    """The completion of an attempt."""
    FINISH = "finish"
    """The end of an attempt that did not succeed."""
    RESCUE = "rescue"
    """Taking a job from a worker that is gone, or whose time for it is up."""
    UNBLOCK = "unblock"
    """Starting or ending a job that waited for a chain; or the end of the chain itself."""
    EXPIRE = "expire"
    """Cancelling a job that was not started in time."""
    FIRE = "fire"
    """Enqueueing a schedule's jobs."""
    DECLARE = "declare"
    """Writing a schedule that code declares."""
    START = "start"
    """Starting an attempt of a job."""
    CLAIM = "claim"
    """Claiming under the limits of a queue or a job type."""
    PRUNE = "prune"
    """Deleting a chain or a dead letter past its retention."""
    ARCHIVE = "archive"
    """Deleting an archived chain."""


class Resolution(StrEnum):
    """What was done about a dead letter."""

    REDRIVEN = "redriven"
    DISMISSED = "dismissed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult(Generic[OutT]):
    """How a chain ended. All of it was read at one moment."""

    id: Any
    """The chain's: its root job's."""
    type_name: str
    """The root job's type."""
    status: JobStatus
    """The last job's: completed, dead or cancelled."""
    output: OutT
    """What the last job's handler returned; None when the chain did not complete."""
    error: Json
    """The last job's last error as JSON (`type`, `message`, `traceback`); None when the chain completed."""
    created_at: datetime
    """When the chain was enqueued."""
    completed_at: datetime
    """When it ended, in whatever way."""
    length: int
    """Of how many jobs it is made."""
    last_job_id: Any
    last_type_name: str


class Enqueued(StrEnum):
    """What became of a job that was enqueued under a deduplication key. True exactly where it was made."""

    CREATED = "created"
    """It is a new job."""
    UPDATED = "updated"
    """Another has the key, and was given what this one was to replace of it."""
    EXISTING = "existing"
    """Another has the key, and is as it was."""


class OnFailure(StrEnum):
    """What the death or cancellation of a chain means for a job that waits for it."""

    WAIT = "wait"
    """The job goes on waiting; a redrive resumes everything."""
    FAIL = "fail"
    """The job dies as well."""
    CONTINUE = "continue"
    """The job runs, and sees that the chain failed."""


class ArchiveState(StrEnum):
    """How far a run of the archive has come. Each state is one that a run can be taken up from."""

    PLANNED = "planned"
    """Its chains are chosen; whatever files it has are incomplete."""
    WRITTEN = "written"
    """Its files hold what they should: they were read back."""
    DELETING = "deleting"
    """Rows that are in its files are being deleted."""
    DELETED = "deleted"
    """Nothing more will be deleted; what changed meanwhile is still to leave its files."""
    DONE = "done"
    """A row is either in its files or in the tables."""


class WorkerState(StrEnum):
    """What a worker says of itself; one that says nothing for long enough is gone, whatever this says."""

    RUNNING = "running"
    DRAINING = "draining"


MIN_PRIORITY: Final = -9
MAX_PRIORITY: Final = 9
"""Priorities are few so that lanes can be counted: a claim probes each (queue, priority) once."""

MOST_CONCURRENT: Final = 10_000
"""Jobs that one worker may run at once."""

MIN_WEIGHT: Final = 1
MAX_WEIGHT: Final = 100
"""Of a queue, beside those of the others."""
MAX_RATE_COST: Final = 1_000_000
"""Of a job, against a rate."""

LONGEST: Final = timedelta(days=36_500)
"""No delay and no timeout is longer: a time that Python or PostgreSQL cannot hold would fail every claim that meets it."""

LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""No instant that a job is due at is later, for the same reason."""

MIN_SERVER_VERSION: Final = 150_000
"""PostgreSQL 15, as `server_version_num` tells it."""
