"""What the database knows of a queue, read anew at every scrape: a health report as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.observe.health import Code, Health, HolderKind

OTHER: Final = "other"
MOST_QUEUES: Final = 100
"""Queues that have labels of their own: those with most due jobs."""


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
            yield _gauge("up", "Whether the database answered.", 0)
            return
        yield _gauge("up", "Whether the database answered.", 1)
        yield from _queues(report)
        yield from _jobs(report)
        yield from _storage(report)
        yield from _horizon(report)
        findings = dict.fromkeys(Code, 0)
        for finding in report.findings:
            findings[finding.code] = max(findings[finding.code], int(finding.severity))
        worst = "The worst finding of each kind: 0 fine, 1 a warning, 2 critical."
        yield _labelled("health_severity", worst, "code", {code.value: value for code, value in findings.items()})


def _queues(report: Health) -> Iterator[Metric]:
    ranked = sorted(report.queues, key=lambda queue: queue.due, reverse=True)
    own = {queue.queue for queue in ranked[:MOST_QUEUES]}
    due: dict[str, float] = {}
    later: dict[str, float] = {}
    age: dict[str, float] = {}
    for queue in ranked:
        label = queue.queue if queue.queue in own else OTHER
        due[label] = due.get(label, 0) + queue.due
        later[label] = later.get(label, 0) + queue.later
        age[label] = max(age.get(label, 0.0), queue.claim_age.total_seconds())
    yield _labelled("due_jobs", "Claimable jobs, counted up to 10,000 a priority.", "queue", due)
    yield _labelled("scheduled_jobs", "Jobs scheduled for later, counted so too.", "queue", later)
    yield _labelled("claim_age_seconds", "How long the oldest claimable job has been due.", "queue", age)


def _jobs(report: Health) -> Iterator[Metric]:
    rates, running, dead = report.rates, report.running, report.failures
    yield _gauge("arrivals_per_second", "Jobs enqueued, over the window.", rates.per_second(rates.arrived))
    yield _gauge("completions_per_second", "Jobs completed, over the window.", rates.per_second(rates.completed))
    yield _gauge("retry_ratio", "Failed attempts among those that ended in the window.", rates.retry_rate)
    yield _gauge("running_jobs", "Jobs that are running.", running.running)
    yield _gauge("orphaned_jobs", "Running jobs of workers that are gone.", running.orphaned)
    yield _gauge("live_workers", "Workers that have beaten lately.", len(report.workers.live))
    yield _gauge("slots", "Jobs that live workers may run at once.", report.workers.slots)
    yield _gauge("saturation_ratio", "Slots that are taken.", report.workers.saturation)
    yield _gauge("undecided_dead_letters", "Dead letters that nobody has decided on, up to 10,000.", dead.unresolved)
    yield _gauge("jobs_blocked_by_dead", "Jobs that wait for a dead chain.", dead.waiting)
    yield _gauge("unsettled_chains", "Chains whose end was not passed on yet.", dead.unsettled)


def _storage(report: Health) -> Iterator[Metric]:
    tables = report.tables
    yield _labelled("table_dead_rows", "Rows that vacuum has not removed.", "table", {one.name: one.dead for one in tables})
    yield _labelled("table_live_rows", "Rows, estimated.", "table", {one.name: one.live for one in tables})
    yield _labelled("table_bytes", "Size of the table.", "table", {one.name: one.bytes for one in tables})
    yield _labelled("table_index_bytes", "Size of its indexes.", "table", {one.name: one.index_bytes for one in tables})
    changes = CounterMetricFamily(
        "sa_jobqueue_table_changes", "Rows written since the statistics were reset.", labels=["table", "kind"]
    )
    for table in tables:
        for kind, value in (("insert", table.inserted), ("update", table.updated), ("delete", table.deleted)):
            changes.add_metric([table.name, kind], value)
    yield changes


def _horizon(report: Health) -> Iterator[Metric]:
    held = report.horizon.held_for
    yield _gauge("horizon_age_transactions", "Age of what vacuum must respect.", report.horizon.age)
    yield _gauge("horizon_age_seconds", "The same as far as known.", held.total_seconds() if held else 0.0)
    kinds = dict.fromkeys((kind.value for kind in HolderKind), 0.0)
    for holder in report.horizon.holders:
        kinds[holder.kind.value] += 1
    yield _labelled("horizon_holders", "Who holds it, at most ten in all.", "kind", kinds)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sa_jobqueue_{name}", words, value=value)


def _labelled(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"sa_jobqueue_{name}", words, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
