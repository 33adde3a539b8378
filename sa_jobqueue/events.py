"""What happened, as frozen values, and the bus that tells it.

Events are told after the commit that made them true, so none tells of a change that was rolled back. Subscribers turn
them into logs, metrics and traces; nobody below them imports them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sa_jobqueue.types import AttemptOutcome, DeadReason, JobId, RefusedWrite


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """Something about one attempt of one job."""

    job_id: JobId
    type_name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(AttemptEvent):
    """A claimed job's handler is about to be called."""


@dataclass(frozen=True, slots=True)
class JobCompleted(AttemptEvent):
    """A completion was committed."""

    ran: timedelta


@dataclass(frozen=True, slots=True)
class JobRescheduled(AttemptEvent):
    """An attempt ended without success and the job will be tried again after `delay`, or at `at` where there is one."""

    outcome: AttemptOutcome
    delay: timedelta
    error: Any
    at: datetime | None = None
    ran: timedelta | None = None
    """How long its handler ran; None where it never began."""


@dataclass(frozen=True, slots=True)
class JobUnblocked(AttemptEvent):
    """The last chain that a job waited for has ended; the job is pending now. `attempt` counts those before."""


@dataclass(frozen=True, slots=True)
class JobDied(AttemptEvent):
    """A job became a dead letter."""

    reason: DeadReason
    error: Any
    ran: timedelta | None = None
    """How long its handler ran; None where none did, as for a job whose blocker died."""


@dataclass(frozen=True, slots=True)
class JobCancelled(AttemptEvent):
    """A running job was cancelled by its own handler."""

    ran: timedelta | None = None


@dataclass(frozen=True, slots=True)
class MiddlewareFailed(AttemptEvent):
    """A middleware raised, or was stopped, after its handler's own commit had completed the job; it stays completed."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class AttemptLost(AttemptEvent):
    """A worker came to write an attempt's end and found that the job was no longer its own; nothing was written."""


@dataclass(frozen=True, slots=True)
class JobRescued(AttemptEvent):
    """A job was taken from a worker that was gone, or whose time for it was up; `died` when that was its last attempt."""

    worker_id: str
    died: bool


@dataclass(frozen=True, slots=True)
class UnknownTypesPending:
    """Due jobs whose type this worker has no handler for, and no live worker either. They stay pending."""

    type_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnservedQueues:
    """Queues with due jobs that no live worker serves. They stay pending."""

    queue_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChainsPruned:
    """Chains whose time was up are gone from the tables: `chains` of them, of `jobs` jobs."""

    chains: int
    jobs: int


@dataclass(frozen=True, slots=True)
class DeadLettersPruned:
    """Dead letters that were resolved long enough ago are gone: `letters` of them."""

    letters: int


@dataclass(frozen=True, slots=True)
class ScheduleFired:
    """A schedule's jobs were enqueued, one for each of its times; none where all were left out."""

    schedule: str
    fire_times: tuple[datetime, ...]
    job_ids: tuple[JobId, ...]
    missed_since: datetime | None
    """The first time that was left out: missed, or while the last job was open; None if none was."""


@dataclass(frozen=True, slots=True)
class ScheduleBroken:
    """A schedule's row is none, so it rests until somebody mends it."""

    schedule: str
    reason: str


@dataclass(frozen=True, slots=True)
class SchedulesUndeclared:
    """Schedules that code once declared for job types handled here, and this code does not. They fire on."""

    schedules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker registered itself."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """A worker learnt that it was told something else of its queues, its job types or itself; what holds from now on."""

    worker_id: str
    paused_queues: tuple[str, ...]
    paused_types: tuple[str, ...]
    concurrency: int
    """How many jobs it runs at once."""


@dataclass(frozen=True, slots=True)
class SchemaAhead:
    """A worker started on tables of the version after its own, as in a deploy; it knows nothing of what is new."""

    worker_id: str
    version: int
    known: int


@dataclass(frozen=True, slots=True)
class PoolerFound:
    """A worker found that it works through a connection pooler; it `listens` on a connection of its own, or polls."""

    worker_id: str
    listens: bool
    poll_interval: timedelta


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """A worker learnt with a beat that somebody asked it to finish, by `drain_workers`; it stops as on SIGTERM."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker stopped; `released` jobs were given back unfinished."""

    worker_id: str
    released: int


@dataclass(frozen=True, slots=True)
class WriteQuarantined:
    """A set-based write failed because of one row; the others were written, and this one is tried again after `delay`."""

    write: RefusedWrite
    subject: str
    """The id of the job, chain or dead letter, or the name of the schedule, queue or job type."""
    worker_id: str
    error: Exception
    sqlstate: str | None
    failures: int
    """How often this worker has tried."""
    delay: timedelta


@dataclass(frozen=True, slots=True)
class ComponentFailed:
    """A worker's duty failed and will be started again after `delay`."""

    component: str
    error: BaseException
    delay: timedelta


@dataclass(frozen=True, slots=True)
class ProviderFailed:
    """What handlers were lent could not be closed when the worker stopped; whatever it is, it stays as it is."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class SelectorFailed:
    """The function that decides over a queue failed; until it answers again, its jobs start in their ordinary order.

    Told once until it has answered; from then on it is left alone for longer each time.
    """

    worker_id: str
    queue: str
    selector: str
    """Where it is declared, `module:function`."""
    error: Exception


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """A worker's process held more than its `max_memory`; it drains and stops, to be started anew."""

    worker_id: str
    resident_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class HeartbeatFailing:
    """A worker could not beat for so long that it stopped its attempts, before others may start them."""

    worker_id: str
    silent: timedelta


Event: TypeAlias = (
    JobStarted
    | JobCompleted
    | JobRescheduled
    | JobUnblocked
    | JobDied
    | JobCancelled
    | MiddlewareFailed
    | AttemptLost
    | JobRescued
    | UnknownTypesPending
    | UnservedQueues
    | ChainsPruned
    | DeadLettersPruned
    | ScheduleFired
    | ScheduleBroken
    | SchedulesUndeclared
    | WorkerStarted
    | SettingsChanged
    | DrainRequested
    | PoolerFound
    | SchemaAhead
    | WorkerStopped
    | WriteQuarantined
    | ComponentFailed
    | ProviderFailed
    | SelectorFailed
    | MemoryExceeded
    | HeartbeatFailing
)
"""Everything a worker tells."""

Subscriber: TypeAlias = Callable[[Event], None]
AttemptHook: TypeAlias = Callable[[Any], None]
"""Called with the `AttemptContext` of an attempt that begins."""

_log = logging.getLogger("sa_jobqueue.events")


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    subscriber: Subscriber
    kinds: frozenset[type[Any]] | None
    wanted: Callable[[], bool] | None
    many: Callable[[Sequence[Any]], None] | None


class EventBus:
    """Tells each event to each subscriber, in order of subscription, on the worker's event loop; they must be quick."""

    __slots__ = ("_attempt_hooks", "_heard_by", "_subscriptions")

    def __init__(self) -> None:
        self._subscriptions: list[_Subscription] = []
        self._heard_by: dict[type[Any], tuple[_Subscription, ...]] = {}
        """By the kind of an event, found once: a worker tells two of each job."""
        self._attempt_hooks: list[AttemptHook] = []

    def subscribe(
        self,
        subscriber: Subscriber,
        *,
        kinds: Iterable[type[Event]] | None = None,
        wanted: Callable[[], bool] | None = None,
        many: Callable[[Sequence[Any]], None] | None = None,
    ) -> Callable[[], None]:
        """Tell `subscriber` every event from now on; return the function that ends it, which may be called again.

        `kinds`: only events of these classes. `wanted`: asked each time, before an event is even made. `many`: told
        instead, where several of one kind happened together, in their order.
        """
        made = _Subscription(subscriber, None if kinds is None else frozenset(kinds), wanted, many)
        self._subscriptions.append(made)
        self._heard_by = {}

        def end() -> None:
            if made in self._subscriptions:
                self._subscriptions.remove(made)
                self._heard_by = {}

        return end

    def on_attempt_start(self, hook: AttemptHook) -> Callable[[], None]:
        """Call `hook` with the context of each attempt that begins; return the function that ends it.

        It is called in the attempt's own task, before its middleware: context variables that it sets are the handler's too.
        """
        self._attempt_hooks.append(hook)
        is_ended = False

        def end() -> None:
            nonlocal is_ended
            if not is_ended:  # one function may have been given twice
                is_ended = True
                self._attempt_hooks.remove(hook)

        return end

    def begin(self, attempt: Any) -> None:
        """Call who asked for it, in order. One that raises is logged: watching must not stop the work."""
        for hook in self._attempt_hooks:
            try:
                hook(attempt)
            except Exception:
                _log.exception("%s failed on the beginning of an attempt", hook)

    def has_subscribers(self, kind: type[Event]) -> bool:
        """Return whether anybody wants events of a kind now: if not, none need be made."""
        for one in self._heard_by.get(kind) or self._subscribed(kind):  # noqa: SIM110 - any() costs more than it all
            if one.wanted is None or one.wanted():
                return True
        return False

    def emit(self, event: Event) -> None:
        """Tell an event. A subscriber that raises is logged and the next one told: watching must not stop the work."""
        kind = type(event)
        for one in self._heard_by.get(kind) or self._subscribed(kind):
            if one.wanted is None or one.wanted():
                _tell(one.subscriber, event, kind)

    def emit_many(self, events: Sequence[Event]) -> None:
        """Tell events of one kind that happened together, as `emit` does; who takes many at once is told once."""
        kind = type(events[0]) if events else None
        for one in () if kind is None else self._subscribed(kind):
            if one.wanted is None or one.wanted():
                if one.many is not None:
                    _tell(one.many, events, kind)
                else:
                    for event in events:
                        _tell(one.subscriber, event, kind)

    def _subscribed(self, kind: type[Any]) -> tuple[_Subscription, ...]:
        found = self._heard_by.get(kind)
        if found is None:
            found = tuple(one for one in self._subscriptions if one.kinds is None or kind in one.kinds)
            self._heard_by[kind] = found
        return found


def _tell(subscriber: Callable[[Any], None], told: Any, kind: type[Any] | None) -> None:
    try:
        subscriber(told)
    except Exception:
        _log.exception("a subscriber failed on %s", kind.__name__ if kind else kind)
