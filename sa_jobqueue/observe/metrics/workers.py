"""What one worker does, counted from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sa_jobqueue import events as told
from sa_jobqueue.types import AttemptOutcome
from sa_jobqueue.version import __version__

OTHER: Final = "other"
"""The label of a job type that the worker has no handler for."""
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


def subscribe(
    events: told.EventBus,
    registry: CollectorRegistry,
    *,
    types: Iterable[str],
    running: Callable[[], int],
    slots: int,
) -> None:
    """Count a worker's events from now on. One worker a registry.

    `types`: the job types that get a label of their own. `running`: asked at every scrape.
    """
    known = frozenset(types)
    attempts = Counter(
        "sa_jobqueue_attempts", "Attempts that ended in this worker.", ["job_type", "outcome"], registry=registry
    )
    seconds = Histogram(
        "sa_jobqueue_attempt_duration_seconds",
        "How long attempts ran that completed.",
        ["job_type"],
        buckets=_BUCKETS,
        registry=registry,
    )
    deaths = Counter("sa_jobqueue_dead_letters", "Jobs that died in this worker.", ["job_type", "reason"], registry=registry)
    taken = Counter("sa_jobqueue_jobs_taken_back", "Jobs taken back from workers that were gone.", registry=registry)
    failures = Counter(
        "sa_jobqueue_component_failures", "Failures of the worker's own duties.", ["component"], registry=registry
    )
    endangered = Counter(
        "sa_jobqueue_leases_endangered", "How often it could not beat and stopped its jobs.", registry=registry
    )
    gauge = Gauge("sa_jobqueue_worker_running_jobs", "Jobs that run in this worker.", registry=registry)
    gauge.set_function(running)
    Gauge("sa_jobqueue_worker_slots", "Jobs it may run at once.", registry=registry).set(slots)
    Gauge("sa_jobqueue_worker_info", "Its version.", ["version"], registry=registry).labels(__version__).set(1)

    def of(event: told.AttemptEvent) -> str:
        return event.type_name if event.type_name in known else OTHER

    def count(event: told.Event) -> None:
        match event:
            case told.JobCompleted():
                attempts.labels(of(event), "completed").inc()
                seconds.labels(of(event)).observe(event.ran.total_seconds())
            case told.JobPutBack():
                attempts.labels(of(event), event.outcome.value).inc()
            case told.JobDied():
                attempts.labels(of(event), "died").inc()
                deaths.labels(of(event), event.reason.value).inc()
            case told.JobCancelled():
                attempts.labels(of(event), AttemptOutcome.CANCELLED.value).inc()
            case told.AttemptLost():
                attempts.labels(of(event), "lost").inc()
            case told.JobTakenBack():
                taken.inc()
            case told.ComponentFailed():
                failures.labels(event.component).inc()
            case told.LeaseEndangered():
                endangered.inc()

    events.subscribe(count)
