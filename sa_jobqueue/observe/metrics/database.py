"""The figures of a health report as Prometheus metrics, measured for scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sa_jobqueue.observe.health import Health
from sa_jobqueue.observe.metrics.samples import Sample, kept, measured


class DatabaseCollector:
    """Measures a report for scrapes, at most one in 5 s.

    If the database does not answer, `sa_jobqueue_up 0` is the only metric.
    """

    def __init__(self, read: Callable[[], Health]) -> None:
        self._read = kept(read)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one report."""
        yield from map(_shown, measured(self._read))


def _shown(sample: Sample) -> Metric:
    kind = CounterMetricFamily if sample.only_grows else GaugeMetricFamily
    family = kind(f"sa_jobqueue_{sample.name}", sample.words, labels=sample.labels)
    for labels, value in sample.values.items():
        family.add_metric(labels, value)
    return family
