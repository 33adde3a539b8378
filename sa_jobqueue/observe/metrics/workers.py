"""Prometheus metrics of one worker, counted from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sa_jobqueue.display.printable import printable
from sa_jobqueue.events import EventBus
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.observe.metrics.tally import ALL, Durations, Tally
from sa_jobqueue.version import __version__


def subscribe(
    events: EventBus,
    registry: CollectorRegistry,
    *,
    types: Iterable[str],
    running: Callable[[], Mapping[str, int]],
    slots: int,
) -> None:
    """Count a worker's events in a registry. Use one registry per worker.

    `types`: the job types that get their own label. `running`: returns the number of running jobs by type, such as
    `lambda: worker.running_by_type`; called at every scrape.
    """
    tally = Tally(types)
    tally.subscribe_to(events)
    registry.register(TallyCollector(tally, running))
    Gauge("sa_jobqueue_worker_slots", "Maximum number of jobs to run at once.", registry=registry).set(slots)
    started = Gauge("sa_jobqueue_worker_start_time_seconds", "When the worker started, in Unix time.", registry=registry)
    started.set_to_current_time()
    Gauge("sa_jobqueue_worker_info", "Version of sa_jobqueue.", ["version"], registry=registry).labels(__version__).set(1)


class TallyCollector:
    """Exports a tally and the running jobs at every scrape."""

    def __init__(self, tally: Tally, running: Callable[[], Mapping[str, int]]) -> None:
        self._tally = tally
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """Yield the counters, the histograms of durations and waits, and the gauge of running jobs."""
        for counted in ALL:
            family = CounterMetricFamily(f"sa_jobqueue_{counted.name}", counted.words, labels=counted.labels)
            for labels, total in self._tally.of(counted):
                family.add_metric(labels, total)
            yield family
        yield _histogram("attempt_duration", "Duration of completed attempts.", "job_type", self._tally.completed)
        words = "How long jobs of completed attempts had been due when these began."
        yield _histogram("attempt_wait", words, "queue", self._tally.waits)
        gauge = GaugeMetricFamily("sa_jobqueue_worker_running_jobs", "Running jobs of this worker.", labels=["job_type"])
        for kind, count in self._tally.running(self._running()).items():
            gauge.add_metric([kind], count)
        yield gauge


def _histogram(name: str, words: str, label: str, values: Mapping[str, Durations]) -> Metric:
    family = HistogramMetricFamily(f"sa_jobqueue_{name}_seconds", words, labels=[label])
    ends = [*map(str, BOUNDS), "+Inf"]
    for value, durations in list(values.items()):  # the worker may add one meanwhile
        buckets = list(zip(ends, accumulate(durations.buckets), strict=True))
        family.add_metric([printable(value)], buckets, sum_value=durations.seconds)
    return family
