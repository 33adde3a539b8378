"""What a health report is made of: figures as they were read, and the findings they led to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any

from sa_jobqueue.operations import WorkerStatus
from sa_jobqueue.types import AttemptOutcome, RefusedWrite, WorkerState


class Severity(IntEnum):
    """How bad it is; the number is the exit status of a probe, as the Monitoring Plugins have it."""

    OK = 0
    WARNING = 1
    CRITICAL = 2

    def __str__(self) -> str:
        return self.name.lower()


class Code(StrEnum):
    """What a finding is about; each has a section in the runbook."""

    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_SILENT = "workers_silent"
    PAUSED = "paused"
    SCHEDULE_LATE = "schedule_late"
    SCHEDULE_BROKEN = "schedule_broken"
    CLAIM_AGE = "claim_age"
    FALLING_BEHIND = "falling_behind"
    RETRIES = "retries"
    ORPHANED = "orphaned"
    OVERDUE = "overdue"
    LONG_RUNNING = "long_running"
    DEAD_LETTERS = "dead_letters"
    BLOCKED_BY_DEAD = "blocked_by_dead"
    CHAINS_TO_UNBLOCK = "chains_to_unblock"
    QUARANTINED = "quarantined"
    HORIZON = "horizon"
    DEAD_TUPLES = "dead_tuples"
    AUTOVACUUM_OFF = "autovacuum_off"
    BLOAT = "bloat"
    INVALID_INDEX = "invalid_index"
    WRAPAROUND = "wraparound"
    CONNECTIONS = "connections"
    OUTGROWN = "outgrown"
    """Signals that it is time to leave for a broker, or to give the queue a database of its own."""
    CANNOT_SEE = "cannot_see"
    """What this role may not see, and so was not looked at. Never more than OK."""


class HolderKind(StrEnum):
    """What keeps vacuum from removing dead rows."""

    SESSION = "session"
    HANDLER = "handler"
    """A handler's session, of a job of ours."""
    PREPARED_TRANSACTION = "prepared_transaction"
    REPLICATION_SLOT = "replication_slot"
    STANDBY_FEEDBACK = "standby_feedback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    code: Code
    severity: Severity
    summary: str
    """One sentence."""
    advice: str
    """What to do about it, in one line."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The figures it was concluded from, and the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits in one queue. Counts end at `limit` a priority: with `is_capped` they are lower bounds."""

    queue: str
    due: int
    later: int
    """Scheduled for later, retries among them."""
    oldest_due_at: datetime | None
    """`scheduled_at` of the oldest claimable job."""
    claim_age: timedelta
    """How long that one has been due; zero where none is."""
    next_due_at: datetime | None
    is_capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRates:
    """What happened in one queue within the window, as counts."""

    queue: str
    arrived: int
    completed: int
    died: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happened within the window. With `is_partial` more did than was looked at: lower bounds."""

    window: timedelta
    queues: Sequence[QueueRates]
    unsuccessful: Mapping[AttemptOutcome, int]
    """Attempts that did not succeed, by outcome."""
    is_partial: bool

    @property
    def arrived(self) -> int:
        """Return how many jobs were enqueued, in all queues."""
        return sum(queue.arrived for queue in self.queues)

    @property
    def completed(self) -> int:
        """Return how many jobs completed, in all queues."""
        return sum(queue.completed for queue in self.queues)

    @property
    def failed_attempts(self) -> int:
        """Return how many attempts failed, timed out or were taken back; snoozes and releases are nobody's failure."""
        wrong = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST)
        return sum(self.unsuccessful.get(outcome, 0) for outcome in wrong)

    @property
    def retry_rate(self) -> float:
        """Return which part of the attempts that ended failed, 0 to 1; 0 where none ended."""
        ended = self.completed + self.failed_attempts
        return self.failed_attempts / ended if ended else 0.0

    def per_second(self, count: int) -> float:
        """Return a count of the window as a rate."""
        return count / self.window.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who runs jobs, as far as they have beaten lately."""

    heartbeat_timeout: timedelta
    workers: Sequence[WorkerStatus]

    @property
    def live(self) -> list[WorkerStatus]:
        """Return those that have beaten within their time to live."""
        return [worker for worker in self.workers if worker.silent_for <= self.heartbeat_timeout]

    @property
    def silent(self) -> list[WorkerStatus]:
        """Return those whose rows are there and who have not."""
        return [worker for worker in self.workers if worker.silent_for > self.heartbeat_timeout]

    @property
    def slots(self) -> int:
        """Return how many jobs those that claim could run at once."""
        return sum(worker.concurrency for worker in self.live if worker.state is WorkerState.RUNNING)

    @property
    def saturation(self) -> float:
        """Return which part of the slots is taken, 0 to 1; 0 without any."""
        running = sum(worker.running for worker in self.live if worker.state is WorkerState.RUNNING)
        return running / self.slots if self.slots else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What is running."""

    running: int
    orphaned: int
    """Of workers that are gone; they are taken back while any worker lives."""
    overdue: int
    """Past their timeout, and not yet taken back."""
    longest_job_id: Any
    longest_type_name: str | None
    longest_worker_id: str | None
    longest_for: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What is dead and unresolved, and what waits for it. Counts end at the limit of the report."""

    unresolved: int
    last_hour: int
    last_day: int
    last_week: int
    last_month: int
    """Of thirty days."""
    oldest_for: timedelta | None
    """How long the oldest unresolved dead letter has been there."""
    waiting: int
    """Jobs that wait for a dead chain."""
    dead_chains: int
    """Dead chains that somebody waits for."""
    example_chain_id: Any
    chains_to_unblock: int
    """Chains that have ended and whose end nobody has passed on yet."""
    to_unblock_for: timedelta | None

    @property
    def by_age(self) -> dict[str, int]:
        """Return how many unresolved dead letters are how old, each counted once: `under_1h` to `over_30d`."""
        names = ("under_1h", "1h_to_1d", "1d_to_7d", "7d_to_30d", "over_30d")
        within = (0, self.last_hour, self.last_day, self.last_week, self.last_month, self.unresolved)
        return {name: older - younger for name, (younger, older) in zip(names, pairwise(within), strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """One table. Rows are the statistics' estimates; `wasted_bytes` is this report's, null before the first ANALYZE."""

    name: str
    live: int
    dead: int
    vacuum_at: float
    """Dead rows at which autovacuum begins, by the table's own settings or the server's."""
    bytes: int
    index_bytes: int
    wasted_bytes: int | None
    """What a rewrite would give back, within a factor of about two."""
    is_vacuumed: bool
    """Whether autovacuum is on for it."""
    vacuuming: str | None
    """The phase of a vacuum that runs on it now."""
    last_vacuum: datetime | None
    """By whomever."""
    last_autoanalyze: datetime | None
    inserted: int
    updated: int
    deleted: int
    """Since the statistics were last reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHealth:
    """One index; `wasted_bytes` only of btrees."""

    name: str
    table: str
    bytes: int
    wasted_bytes: int | None
    is_valid: bool
    scans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One that holds the horizon."""

    kind: HolderKind
    xmin: str
    """The oldest transaction it still may see."""
    age: int
    """In transactions."""
    held_for: timedelta | None
    """Since its transaction began; null where that cannot be known."""
    pid: int | None
    name: str | None
    """Its application_name; of a slot or a prepared transaction, its own."""
    user: str | None
    state: str | None
    query: str | None
    """What it runs or ran last, shortened, its literals left out."""
    job_id: Any = None
    """Of a handler."""
    type_name: str | None = None
    attempt: int | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far back vacuum must look, and for whose sake; the oldest first."""

    holders: Sequence[Holder]

    @property
    def age(self) -> int:
        """Return its age in transactions; 0 when nobody holds it."""
        return max((holder.age for holder in self.holders), default=0)

    @property
    def held_for(self) -> timedelta | None:
        """Return the longest that anybody is known to hold it."""
        return max((holder.held_for for holder in self.holders if holder.held_for is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server, and what this role may see of it."""

    version: int
    is_replica: bool
    connections: int
    max_connections: int
    frozen_age: int
    """In transactions, of this database's oldest row that is not frozen."""
    autovacuum: bool
    sees_all: bool
    """Whether others' sessions are seen whole: with pg_monitor, or as the same user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A queue or a job type of which somebody has nothing started."""

    what: str
    """`queue` or `type`."""
    name: str
    paused_for: timedelta
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSchedule:
    """A schedule that does not fire as it should."""

    name: str
    overdue: timedelta | None
    """For how long its next time has passed."""
    error: str | None
    """Why it cannot fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row that workers cannot write: it was left out of its batch and is tried again."""

    subject: str
    """The id of the job, chain or dead letter, or the name of the schedule, queue or job type."""
    statement: RefusedWrite
    sqlstate: str | None
    error: str
    failures: int
    failing_for: timedelta
    worker_id: str | None
    """The worker that tried last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One report. Its figures were read one after the other, each with a snapshot of its own."""

    measured_at: datetime
    """By the database's clock."""
    queues: Sequence[QueueDepth]
    pending_estimate: int | None
    """Pending jobs by the statistics of `ix_job_claim`, as of its last vacuum; null before the first."""
    rates: Rates
    workers: Workers
    running: Running
    failures: Failures
    tables: Sequence[TableHealth]
    indexes: Sequence[IndexHealth]
    horizon: Horizon
    server: Server
    unserved: Sequence[str]
    """Queues with due jobs that no live worker serves."""
    paused: Sequence[Paused] = ()
    """Queues, then job types, by name."""
    schedules: Sequence[LateSchedule] = ()
    """Those that are overdue or cannot fire, by name."""
    quarantined: Sequence[Quarantined] = ()
    """Rows that cannot be written, the oldest first; at most 1,000."""
    findings: Sequence[Finding] = ()
    """The worst first."""

    @property
    def severity(self) -> Severity:
        """Return the worst of the findings."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def due(self) -> int:
        """Return how many jobs are due, in all queues."""
        return sum(queue.due for queue in self.queues)

    @property
    def claim_age(self) -> timedelta:
        """Return how long the oldest claimable job has been due; zero where none is."""
        return max((queue.claim_age for queue in self.queues), default=timedelta(0))
