"""What the database knows of a queue, read anew at every scrape: a health report as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.observe.health import Health
from sa_jobqueue.observe.metrics.figures import Figure, of_report, up


class DatabaseCollector:
    """Reads a report at every scrape. A database that does not answer is `sa_jobqueue_up 0`, and no other metric."""

    def __init__(self, read: Callable[[], Health]) -> None:
        self._read = read

    def register(self, registry: CollectorRegistry) -> None:
        """Serve it with a registry; nothing is read until the first scrape."""
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known without asking the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one report."""
        try:
            report = self._read()
        except DBAPIError:
            yield _shown(up(False))
            return
        yield _shown(up(True))
        for figure in of_report(report):
            yield _shown(figure)


def _shown(figure: Figure) -> Metric:
    kind = CounterMetricFamily if figure.only_grows else GaugeMetricFamily
    family = kind(f"sa_jobqueue_{figure.name}", figure.words, labels=figure.labels)
    for labels, value in figure.values.items():
        family.add_metric(labels, value)
    return family
