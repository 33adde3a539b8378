"""What is counted of a worker's events, whoever shows it: the one list behind Prometheus' figures and OpenTelemetry's."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sa_jobqueue import events as told
from sa_jobqueue.types import AttemptOutcome

OTHER: Final = "other"
"""The label of a job type that the worker has no handler for."""


@dataclass(frozen=True, slots=True, eq=False)  # itself its key: hashing its words for each event took half of all
class Counted:
    """A figure that only grows."""

    name: str
    words: str
    unit: str
    """Of what, as OpenTelemetry writes it."""
    labels: tuple[str, ...] = ()


ATTEMPTS: Final = Counted("attempts", "Attempts that ended in this worker.", "{attempt}", ("job_type", "outcome"))
DEATHS: Final = Counted("dead_letters", "Jobs that died in this worker.", "{job}", ("job_type", "reason"))
LOST: Final = Counted("jobs_rescued", "Jobs taken back from workers that were gone.", "{job}")
FAILURES: Final = Counted("component_failures", "Failures of the worker's own duties.", "{failure}", ("component",))
ENDANGERED: Final = Counted("heartbeat_failures", "How often it could not beat and stopped its jobs.", "{time}")
QUARANTINED: Final = Counted("writes_quarantined", "Writes that failed because of one row.", "{failure}", ("statement",))
ALL: Final = (ATTEMPTS, DEATHS, LOST, FAILURES, ENDANGERED, QUARANTINED)

Count = tuple[Counted, tuple[str, ...]]

_RARE: Final = (
    *(told.JobRescheduled, told.JobDied, told.JobCancelled, told.AttemptLost, told.JobRescued),
    *(told.ComponentFailed, told.HeartbeatFailing, told.WriteQuarantined),
)
"""Events that are counted, but for the one that is told of every job."""

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: upper ends of the buckets that durations of attempts are counted in."""


def counts(event: told.Event, known: frozenset[str]) -> tuple[Count, ...]:
    """Return what an event adds one to, with the values of the labels; a type that is not `known` is `other`. Pure."""
    match event:
        case told.JobCompleted():
            return ((ATTEMPTS, (_type(event, known), "completed")),)
        case told.JobRescheduled():
            return ((ATTEMPTS, (_type(event, known), event.outcome.value)),)
        case told.JobDied():
            kind = _type(event, known)
            return ((ATTEMPTS, (kind, "died")), (DEATHS, (kind, event.reason.value)))
        case told.JobCancelled():
            return ((ATTEMPTS, (_type(event, known), AttemptOutcome.CANCELLED.value)),)
        case told.AttemptLost():
            return ((ATTEMPTS, (_type(event, known), "lost")),)
        case told.JobRescued():
            return ((LOST, ()),)
        case told.ComponentFailed():
            return ((FAILURES, (event.component,)),)
        case told.WriteQuarantined():
            return ((QUARANTINED, (event.write.value,)),)
        case told.HeartbeatFailing():
            return ((ENDANGERED, ()),)
    return ()


def _type(event: told.AttemptEvent, known: frozenset[str]) -> str:
    return event.type_name if event.type_name in known else OTHER


class Durations:
    """How long some attempts took, in buckets."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        """How many fell between each bound and the one before; the last above them all."""
        self.seconds = 0.0


class Tally:
    """Adds up a worker's events in plain numbers, for whoever asks: the metrics libraries take ten times as long a count.

    Written on the worker's loop alone; it may be read from any thread.
    """

    def __init__(self, types: Iterable[str]) -> None:
        self.known = frozenset(types)
        self.totals: Counter[Count] = Counter()
        self.completed = {kind: Durations() for kind in (*sorted(self.known), OTHER)}
        """By job type: how long attempts ran that completed."""

    def running(self, by_type: Mapping[str, int]) -> dict[str, int]:
        """Return how many jobs run of each known type, and of all others together."""
        counted = dict.fromkeys(self.completed, 0)
        for kind, count in by_type.items():
            counted[kind if kind in self.known else OTHER] += count
        return counted

    def follow(self, events: told.EventBus) -> None:
        """Count from now on."""
        events.subscribe(self, kinds=_RARE)
        events.subscribe(self, kinds=[told.JobCompleted], many=self.add_completed)

    def __call__(self, event: told.Event) -> None:
        """Count an event."""
        if isinstance(event, told.JobCompleted):  # told for each job, so counted once, with how long it took
            self.add_completed([event])
        else:
            for count in counts(event, self.known):
                self.totals[count] += 1

    def add_completed(self, events: Iterable[told.JobCompleted]) -> None:
        """Count completions."""
        of_types, others = self.completed, self.completed[OTHER]
        for event in events:
            durations, seconds = of_types.get(event.type_name, others), event.ran.total_seconds()
            durations.buckets[bisect_left(BOUNDS, seconds)] += 1
            durations.seconds += seconds

    def of(self, counted: Counted) -> list[tuple[tuple[str, ...], int]]:
        """Return a figure's totals by the values of its labels; one without labels is nought before anything is counted."""
        found = [(labels, total) for (name, labels), total in list(self.totals.items()) if name is counted]
        if counted is ATTEMPTS:
            ran = ((kind, sum(durations.buckets)) for kind, durations in self.completed.items())
            found += [((kind, "completed"), total) for kind, total in ran if total]
        return found or ([] if counted.labels else [((), 0)])
