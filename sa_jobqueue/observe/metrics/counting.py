"""What is counted of a worker's events, whoever shows it: the one list behind Prometheus' figures and OpenTelemetry's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sa_jobqueue import events as told
from sa_jobqueue.types import AttemptOutcome

OTHER: Final = "other"
"""The label of a job type that the worker has no handler for."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A figure that only grows."""

    name: str
    words: str
    unit: str
    """Of what, as OpenTelemetry writes it."""
    labels: tuple[str, ...] = ()


ATTEMPTS: Final = Counted("attempts", "Attempts that ended in this worker.", "{attempt}", ("job_type", "outcome"))
DEATHS: Final = Counted("dead_letters", "Jobs that died in this worker.", "{job}", ("job_type", "reason"))
TAKEN_BACK: Final = Counted("jobs_taken_back", "Jobs taken back from workers that were gone.", "{job}")
FAILURES: Final = Counted("component_failures", "Failures of the worker's own duties.", "{failure}", ("component",))
ENDANGERED: Final = Counted("leases_endangered", "How often it could not beat and stopped its jobs.", "{time}")
ALL: Final = (ATTEMPTS, DEATHS, TAKEN_BACK, FAILURES, ENDANGERED)

Count = tuple[Counted, tuple[str, ...]]


def counts(event: told.Event, known: frozenset[str]) -> tuple[Count, ...]:
    """Return what an event adds one to, with the values of the labels; a type that is not `known` is `other`. Pure."""
    match event:
        case told.JobCompleted():
            return ((ATTEMPTS, (_type(event, known), "completed")),)
        case told.JobPutBack():
            return ((ATTEMPTS, (_type(event, known), event.outcome.value)),)
        case told.JobDied():
            kind = _type(event, known)
            return ((ATTEMPTS, (kind, "died")), (DEATHS, (kind, event.reason.value)))
        case told.JobCancelled():
            return ((ATTEMPTS, (_type(event, known), AttemptOutcome.CANCELLED.value)),)
        case told.AttemptLost():
            return ((ATTEMPTS, (_type(event, known), "lost")),)
        case told.JobTakenBack():
            return ((TAKEN_BACK, ()),)
        case told.ComponentFailed():
            return ((FAILURES, (event.component,)),)
        case told.LeaseEndangered():
            return ((ENDANGERED, ()),)
    return ()


def _type(event: told.AttemptEvent, known: frozenset[str]) -> str:
    return event.type_name if event.type_name in known else OTHER
