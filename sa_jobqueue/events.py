"""Events of a worker as frozen dataclasses, and the bus that delivers them to subscribers.

Events are emitted after the commit that made them true, so no event reports a change that was rolled back. Subscribers
turn them into logs, metrics and traces; no lower layer imports the subscribers.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from sa_jobqueue.types import AttemptOutcome, DeadReason, JobId, RefusedWrite, StepKind


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of the events that a worker emits."""


@dataclass(frozen=True, slots=True)
class AttemptEvent(Event):
    """Base class of events about one attempt of one job; its fields are theirs too.

    `outcome`: how the attempt ended, or how far it is, in one word. `ran` is how long the handler ran, None if it did not
    start. `error` of `JobRescheduled` and `JobDied` is JSON: `type`, `message`, `traceback`.
    """

    job_id: JobId
    """Id of the job."""
    type_name: str
    """The job type."""
    attempt: int
    """Number of the attempt, from 1."""


@dataclass(frozen=True, slots=True)
class JobStarted(AttemptEvent):
    """The handler of a claimed job is about to be called."""

    outcome = "started"


@dataclass(frozen=True, slots=True)
class JobCompleted(AttemptEvent):
    """A completion was committed."""

    outcome = "completed"
    ran: timedelta
    """How long the handler ran."""
    queue: str = ""
    """The job's queue."""
    waited: timedelta = timedelta(0)
    """How long the job had been due when the attempt began, by the database's clock."""


@dataclass(frozen=True, slots=True)
class JobRescheduled(AttemptEvent):
    """An attempt did not succeed; the job runs again after `delay`, or at `at` if it is set."""

    outcome: AttemptOutcome
    """How the attempt ended."""
    delay: timedelta
    """Time until the job is due; ignored if `at` is set."""
    error: Any
    """Its error as JSON (`type`, `message`, `traceback`); None without an error."""
    at: datetime | None = None
    """When the job is due, if its handler set an instant."""
    ran: timedelta | None = None
    """How long the handler ran; None if it did not start."""


@dataclass(frozen=True, slots=True)
class StepCompleted(AttemptEvent):
    """A step of an attempt was recorded: a call, a transaction, or the end of a loop."""

    outcome = "step"
    kind: StepKind
    """Its kind."""
    name: str
    """Its name."""
    key: str
    """Key of the round of a loop; empty for none."""
    ran: timedelta
    """How long it ran."""


@dataclass(frozen=True, slots=True)
class JobUnblocked(AttemptEvent):
    """The last chain that a job waited for ended; the job is pending now. `attempt` is the number of its attempts so far."""

    outcome = "unblocked"


@dataclass(frozen=True, slots=True)
class JobDied(AttemptEvent):
    """A job became a dead letter."""

    outcome = "died"
    reason: DeadReason
    """Why it died."""
    error: Any
    """Its error as JSON (`type`, `message`, `traceback`); None without an error."""
    ran: timedelta | None = None
    """How long the handler ran; None if it did not start, as for a job whose blocker died."""


@dataclass(frozen=True, slots=True)
class JobCancelled(AttemptEvent):
    """A job was cancelled by its handler."""

    outcome = AttemptOutcome.CANCELLED.value
    ran: timedelta | None = None
    """How long the handler ran; None if it did not start."""


@dataclass(frozen=True, slots=True)
class MiddlewareFailed(AttemptEvent):
    """A middleware raised or was stopped after the handler's commit had completed the job; the job stays completed."""

    outcome = JobCompleted.outcome
    error: BaseException
    """The exception of the middleware."""


@dataclass(frozen=True, slots=True)
class AttemptLost(AttemptEvent):
    """A worker no longer held the lease when it recorded the end of an attempt; nothing was written."""

    outcome = AttemptOutcome.LOST.value


@dataclass(frozen=True, slots=True)
class JobRescued(AttemptEvent):
    """A job of a lost worker, or with an expired lease, was rescued; `died` if that was its last attempt."""

    outcome = AttemptLost.outcome
    worker_id: str
    """Id of the lost worker."""
    died: bool
    """Whether the job became a dead letter."""


@dataclass(frozen=True, slots=True)
class WorkerEvent(Event):
    """Base class of events about one worker; its field is theirs too."""

    worker_id: str
    """Id of the worker."""


@dataclass(frozen=True, slots=True)
class UnknownTypesPending(Event):
    """Due jobs have types for which no live worker has a handler. They stay pending."""

    type_names: tuple[str, ...]
    """The job types."""


@dataclass(frozen=True, slots=True)
class UnservedQueues(Event):
    """Queues have due jobs but no live worker serves them. The jobs stay pending."""

    queue_names: tuple[str, ...]
    """The queues."""


@dataclass(frozen=True, slots=True)
class ChainsPruned(Event):
    """Rows past their retention were deleted: `chains` with `jobs` jobs, and resolved `dead_letters`."""

    chains: int
    jobs: int
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class ChainsReferenced(Event):
    """A foreign key of the application keeps chains past their retention; once for each key while it does."""

    constraint: str
    """Name of the foreign key."""
    chains: int
    """How many were tried so far."""
    chain_id: JobId
    """One of them."""
    error: Exception
    """The error of its deletion."""


@dataclass(frozen=True, slots=True)
class ScheduleFired(Event):
    """A schedule fired: one job was enqueued for each of its times; none if all were skipped."""

    schedule: str
    """Name of the schedule."""
    fire_times: tuple[datetime, ...]
    """The times that it fired for, oldest first."""
    job_ids: tuple[JobId, ...]
    """Ids of the enqueued jobs, in the order of `fire_times`."""
    missed_since: datetime | None
    """The first time that was skipped: missed, or while the last job was open; None if no time was."""


@dataclass(frozen=True, slots=True)
class ScheduleBroken(Event):
    """A schedule's row is invalid; the schedule does not fire until the row is corrected."""

    schedule: str
    """Name of the schedule."""
    reason: str
    """The fault."""


@dataclass(frozen=True, slots=True)
class SchedulesUndeclared(Event):
    """Schedules of this worker's job types are no longer declared in its code. They keep firing."""

    schedules: tuple[str, ...]
    """Names of the schedules."""


@dataclass(frozen=True, slots=True)
class SettingsDiffer(WorkerEvent):
    """Queues have other settings in the database than this worker's code declares. Those in the database apply."""

    differences: Mapping[str, Mapping[str, tuple[Any, Any]]]
    """By queue and setting: the value in the database, and the declared one."""


@dataclass(frozen=True, slots=True)
class SchedulesChanged(WorkerEvent):
    """When it started, this worker replaced schedules whose rows had another definition, such as another version's."""

    differences: dict[str, dict[str, tuple[Any, Any]]]
    """By schedule and column: the value that was replaced, and the declared one; hidden for payloads."""


@dataclass(frozen=True, slots=True)
class SchedulesDiffer(WorkerEvent):
    """Schedules that this worker's code declares have other definitions in the database, which apply.

    A worker that started later has replaced them, or `sync_schedules` of other code. Emitted once for each difference.
    """

    differences: dict[str, dict[str, tuple[Any, Any]]]
    """By schedule and column: the recorded value, and the one that this worker's code declares; hidden for payloads."""


@dataclass(frozen=True, slots=True)
class JobTypesDiffer(WorkerEvent):
    """Job types are recorded in the database as another worker's code declares them. Repeated until they are equal.

    Jobs that are written without these values, by SQL or by a program without the handler, take the recorded ones.
    """

    differences: dict[str, dict[str, tuple[Any, Any]]]
    """By job type and column: the recorded value, and the one that this worker's code declares."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(WorkerEvent):
    """A worker registered and started."""

    queues: tuple[str, ...] = ()
    """The queues that it serves."""
    concurrency: int = 0
    """Maximum number of jobs it runs at a time."""
    handlers: tuple[str, ...] = ()
    """The job types that it runs."""
    database: str = ""
    """The engine's URL, with the password masked and without query parameters."""
    schema_version: int = 0
    """Version of the database's tables."""
    max_connections: int = 0
    """The most connections that it opens: its own, and one for each running handler that takes a session."""


@dataclass(frozen=True, slots=True)
class SettingsChanged(WorkerEvent):
    """A worker reloaded the settings of its queues, its job types or itself; the fields are the new values."""

    paused_queues: tuple[str, ...]
    """The queues, and fairness keys of queues, of which no job is started."""
    paused_types: tuple[str, ...]
    """The job types of which no job is started."""
    concurrency: int
    """How many jobs it runs at a time."""


@dataclass(frozen=True, slots=True)
class SchemaAhead(WorkerEvent):
    """A worker started on tables one version newer than its own, as during a deployment; it ignores new columns."""

    version: int
    """Version of the database's tables."""
    known_version: int
    """Latest version that the worker knows."""


@dataclass(frozen=True, slots=True)
class RowsHidden(WorkerEvent):
    """A worker started with a role from which row-level security may hide rows: it does not run jobs that it cannot see."""

    role: str
    """The role."""
    tables: tuple[str, ...]
    """The tables."""


@dataclass(frozen=True, slots=True)
class PoolerFound(WorkerEvent):
    """A worker connects through a connection pooler; it `listens` on a separate connection, or polls."""

    listens: bool
    poll_interval: timedelta
    """Its poll interval, as in `WorkerOptions`."""


@dataclass(frozen=True, slots=True)
class DrainRequested(WorkerEvent):
    """A worker found a request of `drain_workers` at its heartbeat; it stops as on SIGTERM."""


@dataclass(frozen=True, slots=True)
class WorkerStopped(WorkerEvent):
    """A worker stopped and released `released` unfinished jobs."""

    released: int


@dataclass(frozen=True, slots=True)
class WriteQuarantined(Event):
    """A set-based write failed because of one row; the others were written, and this one is retried after `delay`."""

    write: RefusedWrite
    """Which write failed."""
    subject: str
    """Id of the job, chain or dead letter, or name of the schedule, queue or job type."""
    worker_id: str
    """Id of the worker."""
    error: Exception
    """The error of the database, or of Python: a default, a column type or an event listener of the application."""
    sqlstate: str | None
    """Its SQLSTATE code; None if it has none."""
    failures: int
    """Number of times this worker has tried."""
    delay: timedelta


@dataclass(frozen=True, slots=True)
class ComponentFailed(Event):
    """A background task of a worker failed and will be restarted after `delay`."""

    component: str
    """Name of the task."""
    error: BaseException
    """Its exception."""
    delay: timedelta


@dataclass(frozen=True, slots=True)
class ProviderFailed(Event):
    """A provider's `close` raised when the worker stopped; its dependency may still be open."""

    error: BaseException
    """The exception of `close`."""


@dataclass(frozen=True, slots=True)
class SelectorFailed(WorkerEvent):
    """A queue's selector failed; the queue's jobs start in the default order until the selector works again.

    Emitted once until it works.
    """

    queue: str
    """Name of the queue."""
    selector: str
    """Where it is declared, `module:function`."""
    error: Exception
    """The exception of the selector, or the fault of its result."""


@dataclass(frozen=True, slots=True)
class MemoryExceeded(WorkerEvent):
    """A worker's process held more than its `max_memory`; it drains and stops, to be restarted."""

    resident_bytes: int
    """Resident memory of the process, in bytes."""
    limit_bytes: int
    """Its `max_memory`, in bytes."""


@dataclass(frozen=True, slots=True)
class HeartbeatFailing(WorkerEvent):
    """A worker's heartbeats failed for so long that it stopped its attempts before others can rescue the jobs."""

    silent: timedelta
    """Time since the last successful heartbeat."""


Subscriber: TypeAlias = Callable[[Event], None]
AttemptHook: TypeAlias = Callable[[Any], None]
"""Called with the `AttemptContext` of each attempt that starts."""

_log = logging.getLogger("sa_jobqueue.events")
_CONTAINED: Final = (Exception, CancelledError)
"""Errors of subscribers that are logged. Nothing can be cancelled while one runs: its `CancelledError` is an error too."""


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    subscriber: Subscriber
    kinds: frozenset[type[Any]] | None
    condition: Callable[[], bool] | None
    many: Callable[[Sequence[Any]], None] | None


class EventBus:
    """Delivers events to subscribers, in order of subscription, on the worker's event loop; they must return quickly."""

    __slots__ = ("_attempt_hooks", "_by_kind", "_subscriptions")

    def __init__(self) -> None:
        self._subscriptions: list[_Subscription] = []
        self._by_kind: dict[type[Any], tuple[_Subscription, ...]] = {}
        """By class of event, cached: a worker emits two for each job."""
        self._attempt_hooks: list[AttemptHook] = []

    def subscribe(
        self,
        subscriber: Subscriber,
        *,
        kinds: Iterable[type[Event]] | None = None,
        condition: Callable[[], bool] | None = None,
        many: Callable[[Sequence[Any]], None] | None = None,
    ) -> Callable[[], None]:
        """Call `subscriber` with every event from now on; return a function that unsubscribes.

        `kinds`: only events of these classes. `condition`: called before each event; if it returns False, the event is
        skipped. `many`: called instead with the list of events, in order, when several of one class happened together.
        """
        subscription = _Subscription(subscriber, None if kinds is None else frozenset(kinds), condition, many)
        self._subscriptions.append(subscription)
        self._by_kind = {}

        def end() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._by_kind = {}

        return end

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Return whether a subscriber equal to `subscriber` receives events."""
        return any(subscription.subscriber == subscriber for subscription in self._subscriptions)

    def on_attempt_start(self, hook: AttemptHook) -> Callable[[], None]:
        """Call `hook` with the context of each attempt that starts; return a function that removes the hook.

        It is called in the attempt's task, before middleware.
        """
        self._attempt_hooks.append(hook)
        is_ended = False

        def end() -> None:
            nonlocal is_ended
            if not is_ended:  # the same function may have been added twice
                is_ended = True
                self._attempt_hooks.remove(hook)

        return end

    def begin(self, attempt: Any) -> None:
        """Call the hooks of an attempt's start with `attempt`, in order.

        An exception is logged and does not fail the attempt.
        """
        for hook in self._attempt_hooks:
            try:
                hook(attempt)
            except _CONTAINED:
                _log.exception("hook %s failed at the start of an attempt", hook)

    def has_subscribers(self, kind: type[Event]) -> bool:
        """Return whether events of the class `kind` have a subscriber now; if not, they need not be created."""
        for subscription in self._by_kind.get(kind) or self._subscribed(kind):
            if subscription.condition is None or _is_wanted(subscription, kind):
                return True
        return False

    def emit(self, event: Event) -> None:
        """Deliver `event`. An exception of a subscriber is logged, and the next subscriber is called."""
        kind = type(event)
        for subscription in self._by_kind.get(kind) or self._subscribed(kind):
            if subscription.condition is None or _is_wanted(subscription, kind):
                _call(subscription.subscriber, event, kind)

    def emit_many(self, events: Sequence[Event]) -> None:
        """Deliver `events` of one class that happened together, as `emit` does; call each `many` once."""
        kind = type(events[0]) if events else None
        for subscription in () if kind is None else self._subscribed(kind):
            if subscription.condition is None or _is_wanted(subscription, kind):
                if subscription.many is not None:
                    _call(subscription.many, events, kind)
                else:
                    for event in events:
                        _call(subscription.subscriber, event, kind)

    def _subscribed(self, kind: type[Any]) -> tuple[_Subscription, ...]:
        subscriptions = self._by_kind.get(kind)
        if subscriptions is None:
            subscriptions = tuple(
                subscription
                for subscription in self._subscriptions
                if subscription.kinds is None or kind in subscription.kinds
            )
            self._by_kind[kind] = subscriptions
        return subscriptions


def _is_wanted(subscription: _Subscription, kind: type[Any] | None) -> bool:
    try:
        return subscription.condition is None or subscription.condition()
    except _CONTAINED:
        _log.exception("subscriber failed on %s", kind.__name__ if kind else kind)
        return False


def _call(subscriber: Callable[[Any], None], event: Any, kind: type[Any] | None) -> None:
    try:
        subscriber(event)
    except _CONTAINED:
        _log.exception("subscriber failed on %s", kind.__name__ if kind else kind)
