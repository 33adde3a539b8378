"""The figures and findings of a health report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any

from sa_jobqueue.errors.drivers import REFERENCED
from sa_jobqueue.operations import DeadLetterGroup, WorkerStatus
from sa_jobqueue.operations.lock_holders import LockHolder
from sa_jobqueue.operations.row_security import HiddenRows
from sa_jobqueue.operations.silence import Silence
from sa_jobqueue.types import AttemptOutcome, JobStatus, RefusedWrite, WorkerState

MISSED = 100
"""Limit of the count of times that a schedule has left out."""
SLOTS = "slots"
"""How `shared` of a `Waiting` starts whose jobs wait for a free slot of workers; their ids follow."""


class Severity(IntEnum):
    """Severity of a finding; the number is the exit status of a probe, as in the Monitoring Plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2

    def __str__(self) -> str:
        return self.name.lower()


class Code(StrEnum):
    """Code of a finding; each has a section in the runbook."""

    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_SILENT = "workers_silent"
    WORKER_FAILING = "worker_failing"
    STUCK_THREADS = "stuck_threads"
    WORKERS_RESTARTING = "workers_restarting"
    DECLARED_DIFFERENTLY = "declared_differently"
    PAUSED = "paused"
    SCHEDULE_LATE = "schedule_late"
    SCHEDULE_BROKEN = "schedule_broken"
    SCHEDULE_MISSED = "schedule_missed"
    CLAIM_AGE = "claim_age"
    LOCKED = "locked"
    FALLING_BEHIND = "falling_behind"
    GROWING = "growing"
    LONG_CHAIN = "long_chain"
    RETRIES = "retries"
    RETRY_LATER = "retry_later"
    EXPIRED = "expired"
    ORPHANED = "orphaned"
    OVERDUE = "overdue"
    AWAITING_EVENT = "awaiting_event"
    LONG_RUNNING = "long_running"
    DEAD_LETTERS = "dead_letters"
    BLOCKED_BY_DEAD = "blocked_by_dead"
    CHAINS_TO_UNBLOCK = "chains_to_unblock"
    QUARANTINED = "quarantined"
    BULK_UNFINISHED = "bulk_unfinished"
    BULK_REJECTED = "bulk_rejected"
    HORIZON = "horizon"
    DEAD_TUPLES = "dead_tuples"
    AUTOVACUUM_OFF = "autovacuum_off"
    BLOAT = "bloat"
    INVALID_INDEX = "invalid_index"
    WRAPAROUND = "wraparound"
    READ_ONLY = "read_only"
    CONNECTIONS = "connections"
    NOTIFY_CONTENDED = "notify_contended"
    CLOCK = "clock"
    OUTGROWN = "outgrown"
    """The load may need a broker, or a separate database for the queue."""
    REPLICA = "replica"
    """The report is of a replica. Always OK, unless it is behind."""
    NOT_MEASURED = "not_measured"
    """A statement of the report was cancelled, by its timeout or by an operator."""
    ROWS_HIDDEN = "rows_hidden"
    """Row-level security may hide rows from the role: the figures are of the rows that it sees."""
    CANNOT_SEE = "cannot_see"
    """The role cannot see all sessions. Always OK."""


class HolderKind(StrEnum):
    """Kind of what holds back the xmin horizon."""

    SESSION = "session"
    HANDLER = "handler"
    """The session of a handler of this queue."""
    PREPARED_TRANSACTION = "prepared_transaction"
    REPLICATION_SLOT = "replication_slot"
    STANDBY_FEEDBACK = "standby_feedback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem, or something worth knowing."""

    code: Code
    severity: Severity
    cause: str
    """The problem as a clause, without a full stop."""
    advice: str
    """Advice, in one line."""
    error: str = ""
    """The class of the error that jobs failed with; empty for none."""
    details: str = ""
    """Further sentences: how many rows it concerns, since when."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The figures behind it, and the threshold."""

    @property
    def headline(self) -> str:
        """Return its cause, with the error."""
        return f"{self.cause}: {self.error}" if self.error else self.cause

    @property
    def summary(self) -> str:
        """Return all of it but the advice, as sentences."""
        return f"{self.headline}. {self.details}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Waiting jobs of a queue. Counts stop at a limit per priority: with `is_capped` they are lower bounds."""

    queue: str
    fairness_key: str
    """Empty; only paused fairness keys are counted apart from their queue."""
    due: int
    later: int
    """Scheduled for later, including retries."""
    oldest_due_at: datetime | None
    """`scheduled_at` of the oldest claimable job."""
    claim_age: timedelta
    """Time since that job became due; zero without due jobs."""
    next_due_at: datetime | None
    is_capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Due jobs of one queue that wait for the same cause, by the explanation of the oldest of them."""

    queue: str
    cause: str
    """A `Cause` of `explain_job`."""
    due: int
    """How many; a lower bound where the queue's count is one."""
    job_id: Any
    """The oldest of them."""
    waiting_for: timedelta
    """Time since the oldest became due."""
    reason: str
    """Why the oldest waits, as a clause."""
    type_name: str
    """Its type."""
    fairness_key: str = ""
    """The fairness key of more than half of them; empty for none."""
    due_of_key: int = 0
    """How many are of that key."""
    limit_of: tuple[str, str, str] | None = None
    """Whose limit they wait for: `queue` or `type`, its name, and the fairness key, or empty."""
    per_second: float | None = None
    """The rate limit that they wait for; None for another cause."""
    shared: str = ""
    """What jobs of other queues wait for as well, such as one session's lock; empty if only this queue's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """The jobs that wait for events."""

    jobs: int = 0
    """How many; at most 10,000 are counted."""
    events: int = 0
    """For how many events."""
    job_id: Any = None
    """The one that has waited longest."""
    waiting_for: timedelta = timedelta(0)
    """For how long."""
    event: str = ""
    """What that job waits for."""
    sentence: str = ""
    """Its explanation; empty if it does not wait any more."""
    times_out_in: timedelta | None = None
    """Until the wait of that job ends without the event; None without a timeout."""
    similar_event: str | None = None
    """An event that was sent meanwhile, with nearly the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRates:
    """Counts of one queue within the window."""

    queue: str
    arrived: int
    completed: int
    died: int
    cancelled: int
    expired: int = 0
    """How many of the cancelled had not started by their `expires_at`, or ended by their deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Counts within the window. With `is_partial` not all rows were scanned, and they are lower bounds."""

    window: timedelta
    queues: Sequence[QueueRates] = ()
    unsuccessful: Mapping[str, int] = field(default_factory=dict)
    """Attempts that did not succeed, by `AttemptOutcome`."""
    failing: tuple[str, str, str] | None = None
    """Type, error and fairness key of more than half of the latest of them; None if there is no such, or few failed. The key
    is empty if it is not one of all of these."""
    is_partial: bool = False

    @property
    def arrived(self) -> int:
        """Return the number of jobs enqueued, in all queues."""
        return sum(queue.arrived for queue in self.queues)

    @property
    def completed(self) -> int:
        """Return the number of jobs completed, in all queues."""
        return sum(queue.completed for queue in self.queues)

    @property
    def failed_attempts(self) -> int:
        """Return the number of attempts that failed, timed out or were lost; snoozes and releases do not count."""
        wrong = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST)
        return sum(self.unsuccessful.get(outcome, 0) for outcome in wrong)

    @property
    def retry_rate(self) -> float:
        """Return the share of ended attempts that failed, 0 to 1; 0 if none ended."""
        ended = self.completed + self.failed_attempts
        return self.failed_attempts / ended if ended else 0.0

    def per_second(self, count: int) -> float:
        """Convert a count of the window to a rate."""
        return count / self.window.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Changes of a job type within the last ten minutes that workers recorded."""

    type_name: str
    enqueued: int
    ended: int
    due: int
    """Due jobs at the end of the last minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Workers of one name that ended attempts within the last ten minutes."""

    name: str
    starts: int
    """How many ids they had: each start has another."""
    lost: int
    """How many attempts were lost with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongChain:
    """An open chain with many jobs."""

    chain_id: Any
    type_name: str
    """Of its first job."""
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """A finding that an operator has silenced."""

    code: str
    subject: str
    """The queue, job type, schedule, worker or other value in its evidence; empty for all of the code."""
    until: datetime
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Jobs of a type and a queue that have failed and are due again much later."""

    queue: str
    type_name: str
    count: int
    """How many; a lower bound, as few are read of each lane."""
    error_type: str | None
    """Class of the error of the job that is due first."""
    next_in: timedelta
    last_in: timedelta
    """Until the first and the last of them are due."""
    job_ids: Sequence[Any]
    """Those due first, at most 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers, by their last heartbeats."""

    heartbeat_timeout: timedelta
    workers: Sequence[WorkerStatus] = ()
    silences: Sequence[Silence] = ()
    """Workers without a heartbeat, each with the visible state of its sessions."""

    @property
    def live(self) -> list[WorkerStatus]:
        """Return the workers with a heartbeat within the heartbeat timeout."""
        return [worker for worker in self.workers if worker.silent_for <= self.heartbeat_timeout]

    @property
    def silent(self) -> list[WorkerStatus]:
        """Return the workers without a heartbeat within the heartbeat timeout."""
        return [worker for worker in self.workers if worker.silent_for > self.heartbeat_timeout]

    @property
    def slots(self) -> int:
        """Return the total concurrency of the live workers that claim jobs."""
        return sum(worker.concurrency for worker in self.live if worker.state is WorkerState.RUNNING)

    @property
    def saturation(self) -> float:
        """Return the share of slots in use, 0 to 1; 0 if there are none."""
        running = sum(worker.used for worker in self.live if worker.state is WorkerState.RUNNING)
        return running / self.slots if self.slots else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The running jobs."""

    running: int = 0
    groups: Sequence[RunningGroup] = ()
    """By queue, fairness key and job type; that of the job that has been running for the longest time comes first."""
    orphaned: int = 0
    """Jobs of dead workers; live workers rescue them."""
    overdue: int = 0
    """Running jobs past their timeout that are not yet rescued."""

    @property
    def longest(self) -> list[RunningGroup]:
        """Return the group of the longest running job of each queue; that of all comes first."""
        first: dict[str, RunningGroup] = {}
        for group in self.groups:
            first.setdefault(group.queue, group)
        return list(first.values())

    def under(self, setting: Restriction) -> int:
        """Return how many count against a limit; for the keys of a queue, those of the key with the most."""
        if setting.what == "type":
            return sum(group.running for group in self.groups if group.type_name == setting.name)
        keys = Counter[str]()
        for group in self.groups:
            keys[group.fairness_key] += group.running if group.queue == setting.name else 0
        if setting.what == "key":
            return max((count for key, count in keys.items() if key), default=0)
        return keys[setting.fairness_key] if setting.fairness_key else keys.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup:
    """The running jobs of a queue, a fairness key and a job type."""

    queue: str
    fairness_key: str
    type_name: str
    running: int
    """How many."""
    job_id: Any
    """The one that has been running for the longest time."""
    worker_id: str
    running_for: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An unsuccessful attempt, with the current status of its job."""

    job_id: Any
    type_name: str
    fairness_key: str
    status: JobStatus
    attempt: int
    outcome: AttemptOutcome
    error: dict[str, Any]
    """Its class, and the start of its message, which may be redacted; both None if it has no error."""
    ago: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Unresolved dead letters, and jobs blocked by dead chains. Counts stop at the limit of the report."""

    unresolved: int = 0
    is_capped: bool = False
    """Whether the count of unresolved dead letters stopped at the limit: it and those by age are lower bounds."""
    last_hour: int = 0
    last_day: int = 0
    last_week: int = 0
    last_month: int = 0
    """Thirty days."""
    oldest_for: timedelta | None = None
    """Age of the oldest unresolved dead letter."""
    groups: Sequence[DeadLetterGroup] = ()
    """The largest groups of the unresolved dead letters that were counted."""
    waiting: int = 0
    """Jobs blocked by a dead chain."""
    dead_chains: int = 0
    """Dead chains that block jobs."""
    dead_blockers: Sequence[tuple[Any, str]] = ()
    """The dead jobs of these chains: their ids and types, at most 100."""
    example_chain_id: Any = None
    behind_cancelled: int = 0
    """Jobs that wait for a cancelled chain."""
    cancelled_chains: int = 0
    """Cancelled chains that jobs wait for."""
    behind_cancelled_ids: Sequence[Any] = ()
    """At most 100 of these jobs."""
    blocked: int = 0
    """Blocked jobs, among the newest that are blocked or dead."""
    dead: int = 0
    """Dead jobs, among the same."""
    chains_to_unblock: int = 0
    """Ended chains whose blocked jobs are not unblocked yet."""
    to_unblock_for: timedelta | None = None

    @property
    def by_age(self) -> dict[str, int]:
        """Return the number of unresolved dead letters by age, each counted once: `under_1h` to `over_30d`."""
        names = ("under_1h", "1h_to_1d", "1d_to_7d", "7d_to_30d", "over_30d")
        within = (0, self.last_hour, self.last_day, self.last_week, self.last_month, self.unresolved)
        return {name: older - younger for name, (younger, older) in zip(names, pairwise(within), strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """A table. Row counts are estimates of the statistics, `wasted_bytes` of this report; None before the first ANALYZE."""

    name: str
    live: int
    dead: int
    vacuum_at: float
    """Number of dead rows at which autovacuum starts, by the settings of the table or the server."""
    bytes: int
    index_bytes: int
    wasted_bytes: int | None
    """Bloat that a rewrite would free, within a factor of about two."""
    is_vacuumed: bool
    """Whether autovacuum is on for the table."""
    vacuuming: str | None
    """Phase of a running vacuum."""
    last_vacuum: datetime | None
    """Manual or automatic."""
    last_autoanalyze: datetime | None
    inserted: int
    updated: int
    deleted: int
    """Since the statistics were reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHealth:
    """An index; `wasted_bytes` only for btrees."""

    name: str
    table: str
    bytes: int
    wasted_bytes: int | None
    is_valid: bool
    scans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A session, slot or transaction that holds back the xmin horizon."""

    kind: HolderKind
    xmin: str
    """The oldest transaction that it may still see."""
    age: int
    """In transactions."""
    held_for: timedelta | None
    """Time since its transaction began; None if unknown."""
    pid: int | None
    name: str | None
    """The application_name, or the name of a slot or prepared transaction."""
    user: str | None
    state: str | None
    query: str | None
    """Its current or last query, shortened and without literals."""
    job_id: Any = None
    """Only for a handler."""
    type_name: str | None = None
    attempt: int | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The xmin horizon and what holds it back, oldest first."""

    holders: Sequence[Holder] = ()

    @property
    def age(self) -> int:
        """Return its age in transactions; 0 if it is not held back."""
        return max((holder.age for holder in self.holders), default=0)

    @property
    def held_for(self) -> timedelta | None:
        """Return the longest known time of a holder."""
        return max((holder.held_for for holder in self.holders if holder.held_for is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The database server, and what this role may see of it."""

    version: int
    is_replica: bool
    connections: int
    max_connections: int
    frozen_age: int
    """Age in transactions of the database's oldest unfrozen row."""
    autovacuum: bool
    sees_all: bool
    """Whether other sessions are fully visible: with pg_monitor, or as the same user."""
    replayed_for: timedelta | None = None
    """Of a replica: time since the last transaction that it has replayed."""
    clock_ahead: timedelta = timedelta(0)
    """By how much its clock is ahead of that of the machine that measures; negative if it is behind."""
    read_only_by: str | None = None
    """Where `default_transaction_read_only` is on for every role, such as `database`; None if it is not."""
    notifying: int = 0
    """How many commits wait for the one lock of the server that a commit with a NOTIFY takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """A queue, a fairness key of one, or a job type, that is paused or has a limit of running jobs or a rate."""

    what: str
    """`queue` or `type`; `key` for the limit of each fairness key of a queue."""
    name: str
    fairness_key: str = ""
    """Empty unless it is of this key of the queue."""
    paused_for: timedelta | None = None
    """None if it is not paused."""
    by: str | None = None
    limit: int | None = None
    tokens: float | None = None
    """Cost that may start now under its rate, negative for an overdrawn bucket; None without a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSchedule:
    """A schedule that is overdue, cannot fire, or has left out times."""

    name: str
    overdue: timedelta | None
    """Time since it should have fired."""
    reason: str
    """Why it does not fire, as a clause; empty if it is not due, or was not explained."""
    error: str | None
    """Why it cannot fire."""
    missed_from: datetime | None = None
    """The first time that it left out because no worker fired it, until they are run or acknowledged; None for none."""
    missed_until: datetime | None = None
    """The last such time."""
    missed: int = 0
    """How many; at most 100 are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row that workers cannot write: it was removed from its batch, and the write is retried."""

    subject: str
    """Id of the job, chain or dead letter, or name of the schedule, queue, job type or foreign key."""
    statement: str
    """One of `RefusedWrite`."""
    sqlstate: str | None
    error: str
    failures: int
    failing_for: timedelta
    worker_id: str | None
    """The worker that tried last."""

    @property
    def is_reference(self) -> bool:
        """Whether it is a foreign key of the application that keeps rows past their retention, as it may be meant to."""
        return self.statement is RefusedWrite.PRUNE and self.sqlstate in REFERENCED


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWrites:
    """Bulk writes that have not committed, and the rows that others rejected. Counts stop at the limit of the report."""

    unfinished: int = 0
    """Writes, or batches of a stream, with staged rows."""
    oldest_write_id: str | None = None
    oldest_for: timedelta | None = None
    """Time since the first rows of the oldest arrived."""
    rejected: int = 0
    """Rejected rows that are kept."""
    rejected_last_day: int = 0
    """Rows rejected by writes that committed within the last day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A health report. Its figures are read one after the other, each with its own snapshot."""

    measured_at: datetime
    """By the database's clock."""
    server: Server
    rates: Rates
    workers: Workers
    queues: Sequence[QueueDepth] = ()
    running: Running = Running()
    failures: Failures = Failures()
    tables: Sequence[TableHealth] = ()
    indexes: Sequence[IndexHealth] = ()
    horizon: Horizon = Horizon()
    unserved: Sequence[str] = ()
    """Queues with due jobs that no live worker serves."""
    waiting: Sequence[Waiting] = ()
    """Causes for which jobs wait in queues whose oldest job has been due for too long, by queue."""
    awaited: Awaited = Awaited()
    retrying: Sequence[Retrying] = ()
    """Jobs that have failed and are due again much later, by queue and type, the largest groups first."""
    locks: Sequence[LockHolder] = ()
    """Roots of the chains of sessions that wait for locks, the longest wait first."""
    latest: Sequence[FailedAttempt] = ()
    """The latest unsuccessful attempts, newest first, at most 200."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Estimated number of jobs of each common status, as of the last ANALYZE of their table."""
    settings: Sequence[Restriction] = ()
    """Queues and job types that are paused or have a limit, by name."""
    due_by_type: Mapping[str, int] = field(default_factory=dict)
    """Due jobs of each type at the end of the last minute that workers recorded; empty if that is over an hour ago."""
    growth: Sequence[Growth] = ()
    """Changes of each job type in ten minutes; empty if workers have recorded none in that time."""
    starts: Sequence[Starts] = ()
    """Names of workers that were started several times within ten minutes, by the jobs that they ended."""
    long_chains: Sequence[LongChain] = ()
    """The longest open chains of a thousand jobs or more, at most 3."""
    connected: Mapping[str, int] = field(default_factory=dict)
    """Connections of the server by application name, the most first, at most 5."""
    older_at: datetime | None = None
    """When the figures beside those of queues, workers, waits and locks were measured, if that was in an earlier report."""
    silenced: Sequence[Silenced] = ()
    """Findings that operators have silenced for a while."""
    schedules: Sequence[LateSchedule] = ()
    """Schedules that are overdue, cannot fire or have left out times, by name."""
    quarantined: Sequence[Quarantined] = ()
    """Rows that cannot be written, oldest first; at most 1,000."""
    bulk_writes: BulkWrites = BulkWrites()
    hidden: Sequence[HiddenRows] = ()
    """Tables of which row-level security may hide rows from the role of the report."""
    missing: Sequence[str] = ()
    """Names of the figures above that could not be measured, and are empty here; only in a partial report."""
    findings: Sequence[Finding] = ()
    """Most severe first."""

    @property
    def severity(self) -> Severity:
        """Return the highest severity of the findings."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def due(self) -> int:
        """Return the number of due jobs in all queues."""
        return sum(queue.due for queue in self.queues)

    @property
    def claim_age(self) -> timedelta:
        """Return how long the oldest claimable job has been due; zero without due jobs."""
        return max((queue.claim_age for queue in self.queues), default=timedelta(0))
