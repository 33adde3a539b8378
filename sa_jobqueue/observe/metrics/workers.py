"""What one worker does, counted from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sa_jobqueue import events as told
from sa_jobqueue.observe.metrics.counting import ALL, OTHER, Counted, counts
from sa_jobqueue.version import __version__

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
    counters = {
        counted: Counter(f"sa_jobqueue_{counted.name}", counted.words, counted.labels, registry=registry) for counted in ALL
    }
    seconds = Histogram(
        "sa_jobqueue_attempt_duration_seconds",
        "How long attempts ran that completed.",
        ["job_type"],
        buckets=_BUCKETS,
        registry=registry,
    )
    gauge = Gauge("sa_jobqueue_worker_running_jobs", "Jobs that run in this worker.", registry=registry)
    gauge.set_function(running)
    Gauge("sa_jobqueue_worker_slots", "Jobs it may run at once.", registry=registry).set(slots)
    Gauge("sa_jobqueue_worker_info", "Its version.", ["version"], registry=registry).labels(__version__).set(1)

    @cache  # finding a counter by its labels takes longer than counting
    def one_more(counted: Counted, labels: tuple[str, ...]) -> Callable[[], None]:
        counter = counters[counted]
        return (counter.labels(*labels) if labels else counter).inc

    observing = {kind: seconds.labels(kind).observe for kind in (*known, OTHER)}

    def count(event: told.Event) -> None:
        for counted, labels in counts(event, known):
            one_more(counted, labels)()
        if isinstance(event, told.JobCompleted):
            observing[event.type_name if event.type_name in known else OTHER](event.ran.total_seconds())

    events.subscribe(count)
