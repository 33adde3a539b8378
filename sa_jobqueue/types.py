"""Enums, limits and result types of the queue, and the table of legal status transitions.

Everything else imports from here; this module imports nothing from the package.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

JobId: TypeAlias = UUID | str
"""A job's id: a UUIDv7 by default, text if the model is declared so."""

Json: TypeAlias = Any
"""A JSON value that PostgreSQL's jsonb stores. Used for payloads only."""

OutT = TypeVar("OutT", covariant=True)


class JobStatus(StrEnum):
    """Status of a job. Stored as the enum type `job_status`."""

    BLOCKED = "blocked"
    """Waits for other chains; `open_blockers` is their number."""
    PENDING = "pending"
    """Will be claimed at or soon after `scheduled_at`, for its first or its next attempt."""
    RUNNING = "running"
    """Leased by one worker; only that worker may end the attempt."""
    COMPLETED = "completed"
    """Its handler returned and its writes are committed."""
    DEAD = "dead"
    """Will not be retried unless redriven; its dead letter has the reason."""
    CANCELLED = "cancelled"
    """Was cancelled; it will not run."""


ENDED: Final = frozenset({JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED})
"""The states in which `completed_at` is set."""

INITIAL: Final = frozenset({JobStatus.PENDING, JobStatus.BLOCKED})
"""The states a row may be inserted in."""

TRANSITIONS: Final = frozenset(
    {
        (JobStatus.BLOCKED, JobStatus.PENDING),  # the last blocker completed
        (JobStatus.BLOCKED, JobStatus.COMPLETED),  # completed without a worker
        (JobStatus.BLOCKED, JobStatus.DEAD),  # a blocker died, and `on_failure` is "fail"
        (JobStatus.BLOCKED, JobStatus.CANCELLED),
        (JobStatus.PENDING, JobStatus.RUNNING),  # claimed
        (JobStatus.PENDING, JobStatus.COMPLETED),  # completed without a worker
        (JobStatus.PENDING, JobStatus.CANCELLED),
        (JobStatus.RUNNING, JobStatus.COMPLETED),
        (JobStatus.RUNNING, JobStatus.PENDING),  # retried, snoozed, released, rescued
        (JobStatus.RUNNING, JobStatus.DEAD),
        (JobStatus.RUNNING, JobStatus.CANCELLED),
        (JobStatus.DEAD, JobStatus.PENDING),  # redriven
        (JobStatus.DEAD, JobStatus.BLOCKED),  # redriven, and still waiting for other chains
    }
)
"""Every legal change of status, as in the view `job_transition`."""


class AttemptOutcome(StrEnum):
    """Outcome of an attempt that did not succeed: one `job_attempt` row each."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """`complete_job` completed its job while it ran."""


EVENT_STEP: Final = "event"
"""Name of the step of a job that only waits for an event (`JobQueue.event`)."""


class StepKind(StrEnum):
    """Kind of a step of a job."""

    STEP = "step"
    """`AttemptContext.step`."""
    FAILURE = "failure"
    """A step or a transaction that raised an error which its call declares by `catch`."""
    RETRY = "retry"
    """A step that has failed and is called again in a later attempt, as its `retry` decides."""
    TRANSACTION = "transaction"
    """`AttemptContext.transaction`."""
    SLEEP = "sleep"
    """`AttemptContext.sleep`."""
    WAIT = "wait"
    """`AttemptContext.wait_for`."""
    CURSOR = "cursor"
    """`AttemptContext.cursor`."""
    RUN = "run"
    """`AttemptContext.run`."""


class CancelReason(StrEnum):
    """Reason why a running attempt should stop: `AttemptContext.cancel_reason`."""

    TIMED_OUT = "timed_out"
    """It exceeded its timeout. Counted as a failure."""
    CANCELLED = "cancelled"
    """Its job was cancelled."""
    COMPLETED = "completed"
    """Its job was completed by `complete_job`."""
    DELETED = "deleted"
    """Its job was deleted."""
    LEASE_LOST = "lease_lost"
    """Its job was rescued and will run elsewhere."""
    DATABASE_LOST = "database_lost"
    """Its worker cannot reach the database, so another may soon rescue the job. Not counted."""
    SHUTDOWN = "shutdown"
    """Its worker is shutting down. Not counted."""
    BATCH_STOPPED = "batch_stopped"
    """Another job of its batch was stopped. Not counted."""


LOST: Final = frozenset({CancelReason.CANCELLED, CancelReason.COMPLETED, CancelReason.DELETED, CancelReason.LEASE_LOST})
"""Reasons that the database already records: nothing is written for such an attempt."""


class DeadReason(StrEnum):
    """Reason why a job died."""

    EXHAUSTED = "exhausted"
    """It used all of its `max_attempts`."""
    DISCARDED = "discarded"
    """Its handler or its retry policy discarded it."""
    INVALID_INPUT = "invalid_input"
    """Its input does not match its type, so no attempt can succeed."""
    TIMED_OUT = "timed_out"
    """Its last attempt exceeded its timeout."""
    LOST = "lost"
    """The worker of its last attempt was lost."""
    BLOCKER_FAILED = "blocker_failed"
    """A chain it waited for died or was cancelled, and its `on_failure` is "fail"."""


class RefusedWrite(StrEnum):
    """Kind of write that failed for a quarantined row: `statement` in the quarantine table."""

    COMPLETE = "complete"
    """The completion of an attempt."""
    FINISH = "finish"
    """The end of an attempt that did not succeed."""
    RESCUE = "rescue"
    """Rescuing a job of a lost worker or with an expired lease."""
    UNBLOCK = "unblock"
    """Unblocking or failing a job that waited for a chain, or ending the chain itself."""
    EXPIRE = "expire"
    """Cancelling a job that did not start before its deadline."""
    FIRE = "fire"
    """Enqueueing the jobs of a schedule."""
    DECLARE = "declare"
    """Writing a schedule that code declares."""
    DECLARE_QUEUE = "declare_queue"
    """Writing the settings of a queue that code declares."""
    RECORD_TYPE = "record_type"
    """Recording the declarations of a job type's handler."""
    START = "start"
    """Starting an attempt of a job."""
    CLAIM = "claim"
    """Claiming under the limits of a queue or a job type."""
    PRUNE = "prune"
    """Deleting a chain, a dead letter or an audit record past its retention, or an expired event."""
    ARCHIVE = "archive"
    """Deleting an archived chain."""


class Resolution(StrEnum):
    """Resolution of a dead letter."""

    REDRIVEN = "redriven"
    DISMISSED = "dismissed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult(Generic[OutT]):
    """Result of a chain that has ended, read at one moment."""

    id: Any
    """Id of the chain, which is its root job's."""
    type_name: str
    """Type of the root job."""
    status: JobStatus
    """Status of the last job: completed, dead or cancelled."""
    output: OutT
    """Return value of the last job's handler; None if the chain did not complete."""
    error: Json
    """Last error of the last job as JSON (`type`, `message`, `traceback`); None if the chain completed."""
    created_at: datetime
    """When the chain was enqueued."""
    completed_at: datetime
    """When it completed, died or was cancelled."""
    length: int
    """Number of jobs in the chain."""
    last_job_id: Any
    """Id of the last job."""
    last_type_name: str
    """Type of the last job."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running attempt, as its handler reported it with `AttemptContext.progress`."""

    done: float
    """In the handler's own unit; an int where it reported one."""
    total: float | None = None
    """None: not known."""
    message: str | None = None
    """Text of the report; None for none."""
    _: KW_ONLY
    attempt: int
    """Number of the attempt, from 1."""
    as_of: datetime
    """When the worker wrote it: its last heartbeat, by the database's clock."""

    @property
    def fraction(self) -> float | None:
        """`done / total`, from 0 to 1; None without a total above zero."""
        return self.done / self.total if self.total else None

    def __str__(self) -> str:
        """Return it in a few words, such as `40 of 100 (40 %): resizing`."""
        text = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        text += "" if self.fraction is None else f" ({self.fraction:.0%})"
        return text if self.message is None else f"{text}: {self.message}"


class Enqueued(StrEnum):
    """Outcome of enqueueing under a deduplication key. Compare with a member: every member is true as a boolean."""

    CREATED = "created"
    """A new job was inserted."""
    UPDATED = "updated"
    """An existing job had the key and was updated from this one."""
    EXISTING = "existing"
    """An existing job had the key and is unchanged."""


class OnFailure(StrEnum):
    """Effect of a chain's death or cancellation on a job that waits for it."""

    WAIT = "wait"
    """The job keeps waiting; a redrive of the chain resumes both."""
    FAIL = "fail"
    """The job dies too."""
    CONTINUE = "continue"
    """The job runs and receives None as the chain's output."""


class ArchiveState(StrEnum):
    """Progress of an archive run. A run can be resumed from each state."""

    PLANNED = "planned"
    """Its chains are selected; its files are incomplete."""
    WRITTEN = "written"
    """Its files are complete and were verified by reading them. They are moved into place; no row has been deleted."""
    DELETING = "deleting"
    """Its files are in place, and their rows are deleted from the tables."""
    DELETED = "deleted"
    """Deletion is finished; chains that changed meanwhile are still to be removed from its files."""
    DONE = "done"
    """Finished: each row is either in its files or in the tables."""


class WorkerState(StrEnum):
    """State that a worker last reported. A worker without heartbeats is lost, whatever its state."""

    RUNNING = "running"
    DRAINING = "draining"


MIN_PRIORITY: Final = -9
MAX_PRIORITY: Final = 9
"""The largest priority; the smallest is its negative."""

MOST_CONCURRENT: Final = 10_000
"""Highest concurrency of one worker."""

MIN_WEIGHT: Final = 1
MAX_WEIGHT: Final = 100
"""Weight of a queue, relative to the others."""
MAX_RATE_COST: Final = 1_000_000
"""Cost of a job against a rate limit."""

LONGEST: Final = timedelta(days=36_500)
"""Longest delay and timeout."""

LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Latest time at which a job can be due."""

MIN_SERVER_VERSION: Final = 150_000
"""PostgreSQL 15, as in `server_version_num`."""
