"""A health report as figures with names, units and labels: the one list behind Prometheus' and OpenTelemetry's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sa_jobqueue.observe.health import Code, Health, HolderKind
from sa_jobqueue.printable import printable
from sa_jobqueue.types import RefusedWrite

OTHER: Final = "other"
MOST_QUEUES: Final = 100
"""Queues that have labels of their own: those with most due jobs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One name, and its values by those of its labels; one without labels has the empty tuple."""

    name: str
    """As Prometheus has it, its unit at the end."""
    words: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()
    only_grows: bool = False


def up(answered: bool) -> Figure:
    """Return whether there is a report."""
    return _one("up", "Whether the database answered.", int(answered))


def of_report(report: Health) -> Iterator[Figure]:
    """Yield the figures of a report. Labels are bounded, whatever queues there are."""
    yield from _queues(report)
    yield from _jobs(report)
    yield from _storage(report)
    yield from _horizon(report)
    findings = dict.fromkeys(Code, 0)
    for finding in report.findings:
        findings[finding.code] = max(findings[finding.code], int(finding.severity))
    worst = "The worst finding of each kind: 0 fine, 1 a warning, 2 critical."
    yield _labelled("health_severity", worst, "code", {code.value: value for code, value in findings.items()})


def _queues(report: Health) -> Iterator[Figure]:
    ranked = sorted(report.queues, key=lambda queue: queue.due, reverse=True)
    own = {queue.queue for queue in ranked[:MOST_QUEUES]}
    due: dict[str, float] = {}
    later: dict[str, float] = {}
    age: dict[str, float] = {}
    for queue in ranked:
        label = printable(queue.queue) if queue.queue in own else OTHER
        due[label] = due.get(label, 0) + queue.due
        later[label] = later.get(label, 0) + queue.later
        age[label] = max(age.get(label, 0.0), queue.claim_age.total_seconds())
    yield _labelled("due_jobs", "Claimable jobs, counted up to 10,000 a priority.", "queue", due)
    yield _labelled("scheduled_jobs", "Jobs scheduled for later, counted so too.", "queue", later)
    yield _labelled("claim_age_seconds", "How long the oldest claimable job has been due.", "queue", age)


def _jobs(report: Health) -> Iterator[Figure]:
    rates, running, dead = report.rates, report.running, report.failures
    yield _one("arrivals_per_second", "Jobs enqueued, over the window.", rates.per_second(rates.arrived))
    yield _one("completions_per_second", "Jobs completed, over the window.", rates.per_second(rates.completed))
    yield _one("retry_ratio", "Failed attempts among those that ended in the window.", rates.retry_rate)
    yield _one("running_jobs", "Jobs that are running.", running.running)
    yield _one("orphaned_jobs", "Running jobs of workers that are gone.", running.orphaned)
    yield _one("live_workers", "Workers that have beaten lately.", len(report.workers.live))
    yield _one("slots", "Jobs that live workers may run at once.", report.workers.slots)
    yield _one("saturation_ratio", "Slots that are taken.", report.workers.saturation)
    yield _one("unresolved_dead_letters", "Dead letters that nobody has decided on, up to 10,000.", dead.unresolved)
    yield _labelled("unresolved_dead_letters_by_age", "The same by how long they have been there.", "age", dead.by_age)
    yield _one("jobs_blocked_by_dead", "Jobs that wait for a dead chain.", dead.waiting)
    refused = dict.fromkeys((write.value for write in RefusedWrite), 0.0)
    for one in report.quarantined:
        refused[one.statement.value] += 1
    yield _labelled("quarantined_rows", "Rows that cannot be written, up to 1,000.", "statement", refused)
    yield _one("chains_to_unblock", "Chains whose end was not passed on yet.", dead.chains_to_unblock)


def _storage(report: Health) -> Iterator[Figure]:
    tables = report.tables
    yield _labelled("table_dead_rows", "Rows that vacuum has not removed.", "table", {one.name: one.dead for one in tables})
    yield _labelled("table_live_rows", "Rows, estimated.", "table", {one.name: one.live for one in tables})
    yield _labelled("table_bytes", "Size of the table.", "table", {one.name: one.bytes for one in tables})
    yield _labelled("table_index_bytes", "Size of its indexes.", "table", {one.name: one.index_bytes for one in tables})
    changes: dict[tuple[str, ...], float] = {}
    for table in tables:
        for kind, value in (("insert", table.inserted), ("update", table.updated), ("delete", table.deleted)):
            changes[table.name, kind] = value
    words = "Rows written since the statistics were reset."
    yield Figure("table_changes", words, changes, labels=("table", "kind"), only_grows=True)


def _horizon(report: Health) -> Iterator[Figure]:
    held = report.horizon.held_for
    yield _one("horizon_age_transactions", "Age of what vacuum must respect.", report.horizon.age)
    yield _one("horizon_age_seconds", "The same as far as known.", held.total_seconds() if held else 0.0)
    kinds = dict.fromkeys((kind.value for kind in HolderKind), 0.0)
    for holder in report.horizon.holders:
        kinds[holder.kind.value] += 1
    yield _labelled("horizon_holders", "Who holds it, at most ten in all.", "kind", kinds)


def _one(name: str, words: str, value: float) -> Figure:
    return Figure(name, words, {(): value})


def _labelled(name: str, words: str, label: str, values: Mapping[str, float]) -> Figure:
    return Figure(name, words, {(value,): number for value, number in values.items()}, labels=(label,))
