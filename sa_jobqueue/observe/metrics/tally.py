"""The counters of a worker's events, shared by Prometheus and OpenTelemetry."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sa_jobqueue import events
from sa_jobqueue.models.minute import BOUNDS

OTHER: Final = "other"
"""The label of a job type that the worker has no handler for, and of queues beyond `MOST_QUEUES`."""
MOST_QUEUES: Final = 100
"""Maximum number of queues with their own label."""


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity: hashing its texts for each event was slow
class Counted:
    """A counter."""

    name: str
    words: str
    unit: str
    """The unit, as OpenTelemetry writes it."""
    labels: tuple[str, ...] = ()


ATTEMPTS: Final = Counted(
    "attempts", "Attempts that ended in this worker, by outcome.", "{attempt}", ("job_type", "outcome")
)
DEATHS: Final = Counted("dead_letters", "Jobs that died in this worker.", "{job}", ("job_type", "reason"))
LOST: Final = Counted("jobs_rescued", "Jobs that this worker rescued from dead workers.", "{job}")
FAILURES: Final = Counted("component_failures", "Failures of the worker's components.", "{failure}", ("component",))
ENDANGERED: Final = Counted("heartbeat_failures", "How often the worker stopped its jobs after failed heartbeats.", "{time}")
QUARANTINED: Final = Counted("writes_quarantined", "Writes that failed because of one row.", "{failure}", ("statement",))
ALL: Final = (ATTEMPTS, DEATHS, LOST, FAILURES, ENDANGERED, QUARANTINED)

Count = tuple[Counted, tuple[str, ...]]

_RARE: Final = (
    *(events.JobRescheduled, events.JobDied, events.JobCancelled, events.AttemptLost, events.JobRescued),
    *(events.ComponentFailed, events.HeartbeatFailing, events.WriteQuarantined),
)
"""Counted events, except the one that occurs for every job."""


def counts(event: events.Event, type_names: frozenset[str]) -> tuple[Count, ...]:
    """Return the counters that an event increments, with label values; a type that is not `type_names` is `other`. Pure."""
    match event:
        case events.JobDied():
            kind = _type(event, type_names)
            return ((ATTEMPTS, (kind, event.outcome)), (DEATHS, (kind, event.reason.value)))
        case events.JobCompleted() | events.JobRescheduled() | events.JobCancelled() | events.AttemptLost():
            return ((ATTEMPTS, (_type(event, type_names), str(event.outcome))),)
        case events.JobRescued():
            return ((LOST, ()),)
        case events.ComponentFailed():
            return ((FAILURES, (event.component,)),)
        case events.WriteQuarantined():
            return ((QUARANTINED, (event.write.value,)),)
        case events.HeartbeatFailing():
            return ((ENDANGERED, ()),)
    return ()


def _type(event: events.AttemptEvent, type_names: frozenset[str]) -> str:
    return event.type_name if event.type_name in type_names else OTHER


class Durations:
    """A histogram of durations."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        """The count of each bucket; the last is above all bounds."""
        self.seconds = 0.0

    def add(self, duration: timedelta) -> None:
        """Count a duration; a negative one, of a job that was started early, as none."""
        seconds = max(duration.total_seconds(), 0.0)
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Tally:
    """Counts a worker's events in plain integers, which is about ten times faster than the metrics libraries.

    Written only on the worker's event loop; may be read from any thread.
    """

    def __init__(self, types: Iterable[str]) -> None:
        self.known = frozenset(types)
        self.totals: Counter[Count] = Counter()
        self.completed = {kind: Durations() for kind in (*sorted(self.known), OTHER)}
        """Durations of completed attempts, by job type."""
        self.waits: defaultdict[str, Durations] = defaultdict(Durations)
        """How long their jobs had been due when they began, by queue."""

    def running(self, by_type: Mapping[str, int]) -> dict[str, int]:
        """Return the number of running jobs of each known type, and of all others together."""
        counted = dict.fromkeys(self.completed, 0)
        for kind, count in by_type.items():
            counted[kind if kind in self.known else OTHER] += count
        return counted

    def subscribe_to(self, bus: events.EventBus) -> None:
        """Subscribe to a worker's events."""
        bus.subscribe(self, kinds=_RARE)
        bus.subscribe(self, kinds=[events.JobCompleted], many=self.add_completed)

    def __call__(self, event: events.Event) -> None:
        """Count an event."""
        if isinstance(event, events.JobCompleted):  # one per job, so counted together with its duration
            self.add_completed([event])
        else:
            for count in counts(event, self.known):
                self.totals[count] += 1

    def add_completed(self, completed: Iterable[events.JobCompleted]) -> None:
        """Count completions."""
        of_types, other_types = self.completed, self.completed[OTHER]
        for event in completed:
            of_types.get(event.type_name, other_types).add(event.ran)
            queue = event.queue
            self.waits[queue if queue in self.waits or len(self.waits) < MOST_QUEUES else OTHER].add(event.waited)

    def of(self, counted: Counted) -> list[tuple[tuple[str, ...], int]]:
        """Return a counter's totals by label values; a counter without labels starts at 0."""
        totals = [(labels, total) for (name, labels), total in list(self.totals.items()) if name is counted]
        if counted is ATTEMPTS:
            ran = ((kind, sum(durations.buckets)) for kind, durations in self.completed.items())
            totals += [((kind, "completed"), total) for kind, total in ran if total]
        return totals or ([] if counted.labels else [((), 0)])
