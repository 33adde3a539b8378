"""A health report as samples with names, units and labels, shared by Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import add
from typing import Final

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.display.printable import printable
from sa_jobqueue.errors import SchemaError
from sa_jobqueue.observe.health import Code, Health
from sa_jobqueue.observe.health.figures import HolderKind, Restriction
from sa_jobqueue.observe.health.findings import OF_PRIMARY
from sa_jobqueue.observe.metrics.tally import MOST_QUEUES, OTHER
from sa_jobqueue.types import RefusedWrite


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric with its values by label values; without labels, the key is the empty tuple."""

    name: str
    """Name of the metric in Prometheus, which ends with the unit."""
    words: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()
    only_grows: bool = False


def _up(answered: bool) -> Sample:
    return _one("up", "Whether the database answered.", int(answered))


KEPT: Final = 5.0
"""Seconds for which a report serves further scrapes."""


def kept(read: Callable[[], Health], *, clock: Callable[[], float] = time.monotonic) -> Callable[[], Health]:
    """Return a function that measures at most one report in `KEPT` seconds, however many ask; it raises as `read`."""
    lock = threading.Lock()
    report: Health | None = None
    measured_at = 0.0

    def last() -> Health:
        nonlocal report, measured_at
        with lock:
            if report is None or clock() - measured_at >= KEPT:
                report = None  # an error is no reason to go on with an old one
                report, measured_at = read(), clock()
            return report

    return last


def measured(read: Callable[[], Health]) -> list[Sample]:
    """Return the samples of a report; only `up` 0 if the database does not answer."""
    try:
        report = read()
    except (DBAPIError, SchemaError):
        return [_up(False)]
    return [*of_report(report)]


def of_report(report: Health) -> Iterator[Sample]:
    """Yield the samples of a report, but for those of figures that it does not have. The number of labels is bounded."""
    unknown = {*report.missing, *(OF_PRIMARY if report.server.is_replica else ())}
    for read in (_queues, _settings, _jobs, _bulk_writes, _storage, _horizon):
        yield from (sample for sample in read(report) if unknown.isdisjoint(_NEEDS.get(sample.name, ())))
    yield _up(True)
    findings: dict[tuple[str, ...], float] = {(code.value, ""): 0 for code in Code}
    for finding in report.findings:
        # Of few queues, however many wait.
        queues = finding.evidence["queues"] if finding.code is Code.CLAIM_AGE else [""]
        for queue in queues:
            key = (finding.code.value, printable(queue))
            findings[key] = max(findings.get(key, 0), int(finding.severity))
    worst = "Highest severity of each finding: 0 ok, 1 warning, 2 critical; claim_age by queue."
    yield Sample("health_severity", worst, findings, labels=("code", "queue"))
    subjects: dict[tuple[str, ...], float] = {}
    for finding in report.findings[:MOST_QUEUES]:
        subject = next((str(finding.evidence[name]) for name in _SUBJECTS if finding.evidence.get(name)), "")
        label = (finding.code.value, printable(subject)[:_LONGEST_SUBJECT])
        subjects[label] = max(subjects.get(label, 0), int(finding.severity))
    words = "Severity of each finding by what it is about: a schedule, queue, job type, worker, table or session."
    yield Sample("finding_severity", words, subjects, labels=("code", "subject"))


_NEEDS: Mapping[str, set[str]] = {
    name: needs
    for needs, names in (
        ({"queues"}, "due_jobs scheduled_jobs claim_age_seconds"),
        ({"rates"}, "arrivals_per_second completions_per_second retry_ratio"),
        ({"running"}, "running_jobs longest_running_seconds"),
        ({"waiting"}, "waiting_jobs"),
        ({"settings"}, "paused concurrency_limit rate_tokens"),
        ({"settings", "running"}, "concurrency_in_use"),
        ({"due_by_type"}, "due_jobs_by_type"),
        ({"growth"}, "jobs_growth"),
        ({"starts"}, "worker_starts"),
        ({"long_chains"}, "longest_chain_jobs"),
        ({"awaited"}, "awaiting_event_jobs"),
        ({"retrying"}, "retrying_jobs"),
        ({"workers"}, "worker_resident_bytes stuck_threads"),
        ({"running", "workers"}, "orphaned_jobs"),
        ({"workers"}, "live_workers silent_workers slots saturation_ratio"),
        (
            {"failures"},
            "unresolved_dead_letters unresolved_dead_letters_by_age blocked_jobs jobs_blocked_by_dead chains_to_unblock",
        ),
        ({"quarantined"}, "quarantined_rows"),
        ({"bulk_writes"}, "unfinished_bulk_writes unfinished_bulk_write_age_seconds rejected_bulk_rows"),
        ({"tables"}, "table_dead_rows table_live_rows table_bytes table_index_bytes table_changes"),
        ({"horizon"}, "horizon_age_transactions horizon_age_seconds horizon_holders"),
    )
    for name in names.split()
}
"""The figures that a sample is computed from: it is left out where one of them was not measured."""


_SUBJECTS: Final = ("schedule", "queue", "type", "type_name", "worker", "name", "table", "index", "subject", "failure")
"""The evidence that names the subject of a finding, in order."""
_LONGEST_SUBJECT: Final = 100


def _queues(report: Health) -> Iterator[Sample]:
    rates, running = report.rates, report.running
    ranked = sorted(report.queues, key=lambda queue: queue.due, reverse=True)
    busiest = sorted(rates.queues, key=lambda queue: queue.arrived + queue.completed, reverse=True)
    names = [
        *(queue.queue for queue in ranked),
        *(group.queue for group in running.longest),
        *(queue.queue for queue in busiest),
    ]
    named_queues = set(list(dict.fromkeys(names))[:MOST_QUEUES])

    def of_queue(
        name: str, words: str, pairs: Iterable[tuple[str, float]], joined: Callable[[float, float], float] = add
    ) -> Sample:
        values: dict[str, float] = {}
        for queue, value in pairs:
            label = printable(queue) if queue in named_queues else OTHER
            values[label] = joined(values.get(label, 0.0), value)
        return _labelled(name, words, "queue", values)

    yield of_queue(
        "due_jobs", "Due jobs, counted up to 10,000 per priority.", ((queue.queue, queue.due) for queue in ranked)
    )
    words = "Jobs scheduled for later, counted up to 10,000 per priority."
    yield of_queue("scheduled_jobs", words, ((queue.queue, queue.later) for queue in ranked))
    # A paused fairness key waits intentionally.
    ages = ((queue.queue, 0.0 if queue.fairness_key else queue.claim_age.total_seconds()) for queue in ranked)
    yield of_queue("claim_age_seconds", "Time since the oldest claimable job became due.", ages, max)
    arrivals = ((queue.queue, rates.per_second(queue.arrived)) for queue in rates.queues)
    yield of_queue("arrivals_per_second", "Jobs enqueued per second, over the window.", arrivals)
    completions = ((group.queue, rates.per_second(group.completed)) for group in rates.queues)
    yield of_queue("completions_per_second", "Jobs completed per second, over the window.", completions)
    yield of_queue("running_jobs", "Running jobs.", ((group.queue, group.running) for group in running.groups))
    longest = ((wait.queue, wait.running_for.total_seconds()) for wait in running.longest)
    yield of_queue("longest_running_seconds", "Time since the start of the longest running job.", longest, max)
    waiting = Counter[tuple[str, ...]]()
    for wait in report.waiting:
        waiting[printable(wait.queue) if wait.queue in named_queues else OTHER, wait.cause] += wait.due
    words = "Due jobs that wait longer than they should, by what they wait for."
    yield Sample("waiting_jobs", words, waiting, labels=("queue", "cause"))


def _settings(report: Health) -> Iterator[Sample]:
    def sample(name: str, words: str, values: Iterable[tuple[Restriction, float]]) -> Sample:
        some = islice(values, MOST_QUEUES)
        value_by_label: dict[tuple[str, ...], float] = {
            (restriction.what, printable(f"{restriction.name} {restriction.fairness_key}".rstrip())): value
            for restriction, value in some
        }
        return Sample(name, words, value_by_label, labels=("kind", "name"))

    paused = ((restriction, 1.0) for restriction in report.settings if restriction.paused_for is not None)
    yield sample("paused", "1 for each paused queue, fairness key and job type.", paused)
    limited = [(restriction, restriction.limit) for restriction in report.settings if restriction.limit is not None]
    yield sample("concurrency_limit", "Most jobs that run at a time in all workers together; key: of each key.", limited)
    in_use = ((restriction, report.running.under(restriction)) for restriction, _ in limited)
    yield sample("concurrency_in_use", "Jobs that run under the limit; key: of the key with the most.", in_use)
    rates = ((restriction, restriction.tokens) for restriction in report.settings if restriction.tokens is not None)
    yield sample("rate_tokens", "Cost that may start now under the rate limit; negative: overdrawn.", rates)


def _jobs(report: Health) -> Iterator[Sample]:
    dead = report.failures
    ranked = sorted(report.due_by_type.items(), key=lambda item: -item[1])
    of_types = Counter[str]()
    for number, (type_name, due) in enumerate(ranked):
        of_types[printable(type_name) if number < MOST_QUEUES else OTHER] += due
    words = "Due jobs at the end of the last minute that workers recorded."
    yield _labelled("due_jobs_by_type", words, "job_type", of_types)
    growing = sorted(report.growth, key=lambda growth: growth.ended - growth.enqueued)[:MOST_QUEUES]
    growths = {printable(growth.type_name): float(growth.enqueued - growth.ended) for growth in growing}
    words = "Jobs that were enqueued less those that ended, within the last ten minutes that workers recorded."
    yield _labelled("jobs_growth", words, "job_type", growths)
    starts = {printable(name.name): float(name.starts) for name in report.starts}
    words = "Starts of workers of one name within ten minutes, if there were more than three, by the jobs that they ended."
    yield _labelled("worker_starts", words, "worker", starts)
    memory: dict[str, float] = {}
    for worker in report.workers.live[:MOST_QUEUES]:
        memory[printable(worker.name)] = max(memory.get(printable(worker.name), 0.0), float(worker.resident_bytes or 0))
    yield _labelled("worker_resident_bytes", "Resident memory of the largest live worker of a name.", "worker", memory)
    longest = max((chain.jobs for chain in report.long_chains), default=0)
    yield _one("longest_chain_jobs", "Jobs of the longest open chain, if it has a thousand or more.", longest)
    yield _one("awaiting_event_jobs", "Jobs that wait for events, counted up to 10,000.", report.awaited.jobs)
    retrying = Counter[str]()
    for group in report.retrying:
        retrying[printable(group.type_name)] += group.count
    yield _labelled("retrying_jobs", "Failed jobs that are due again much later.", "job_type", retrying)
    stuck = sum(worker.stuck_threads for worker in report.workers.live)
    yield _one("stuck_threads", "Slots of live workers that are taken by threads of ended attempts.", stuck)
    yield _one("retry_ratio", "Share of failed attempts among those that ended in the window.", report.rates.retry_rate)
    yield _one("orphaned_jobs", "Running jobs of dead workers.", report.running.orphaned)
    yield _one("live_workers", "Workers with a recent heartbeat.", len(report.workers.live))
    yield _one("silent_workers", "Workers without a recent heartbeat.", len(report.workers.silent))
    yield _one("slots", "Total concurrency of live workers.", report.workers.slots)
    yield _one("saturation_ratio", "Share of slots in use.", report.workers.saturation)
    yield _one("unresolved_dead_letters", "Unresolved dead letters, counted up to 10,000.", dead.unresolved)
    yield _labelled("unresolved_dead_letters_by_age", "Unresolved dead letters by age.", "age", dead.by_age)
    yield _one("blocked_jobs", "Blocked jobs among the newest 10,000 that are blocked or dead.", dead.blocked)
    yield _one("jobs_blocked_by_dead", "Jobs blocked by a dead chain.", dead.waiting)
    refused = dict.fromkeys((write.value for write in RefusedWrite), 0.0)
    for row in report.quarantined:
        refused[row.statement] = refused.get(row.statement, 0) + (not row.is_reference)
    yield _labelled("quarantined_rows", "Rows in quarantine, counted up to 1,000.", "statement", refused)
    yield _one("chains_to_unblock", "Ended chains whose blocked jobs are not unblocked yet.", dead.chains_to_unblock)


def _bulk_writes(report: Health) -> Iterator[Sample]:
    bulk = report.bulk_writes
    age = bulk.oldest_for.total_seconds() if bulk.oldest_for else 0.0
    yield _one("unfinished_bulk_writes", "Bulk writes with staged rows, counted up to 1,000.", bulk.unfinished)
    yield _one("unfinished_bulk_write_age_seconds", "Time since the oldest of them staged its first rows.", age)
    yield _one("rejected_bulk_rows", "Rejected rows of bulk writes that are kept, counted up to 10,000.", bulk.rejected)


def _storage(report: Health) -> Iterator[Sample]:
    tables = report.tables
    yield _labelled(
        "table_dead_rows", "Dead rows that vacuum has not removed.", "table", {table.name: table.dead for table in tables}
    )
    yield _labelled("table_live_rows", "Live rows, estimated.", "table", {table.name: table.live for table in tables})
    yield _labelled("table_bytes", "Size of the table.", "table", {table.name: table.bytes for table in tables})
    yield _labelled(
        "table_index_bytes", "Size of the table's indexes.", "table", {table.name: table.index_bytes for table in tables}
    )
    changes: dict[tuple[str, ...], float] = {}
    for table in tables:
        for kind, value in (("insert", table.inserted), ("update", table.updated), ("delete", table.deleted)):
            changes[table.name, kind] = value
    words = "Rows written since the statistics were reset."
    yield Sample("table_changes", words, changes, labels=("table", "kind"), only_grows=True)


def _horizon(report: Health) -> Iterator[Sample]:
    held_for = report.horizon.held_for
    yield _one("horizon_age_transactions", "Age of the xmin horizon in transactions.", report.horizon.age)
    yield _one(
        "horizon_age_seconds",
        "Longest known time that the xmin horizon has been held back.",
        held_for.total_seconds() if held_for else 0.0,
    )
    kinds = dict.fromkeys((kind.value for kind in HolderKind), 0.0)
    for holder in report.horizon.holders:
        kinds[holder.kind.value] += 1
    yield _labelled(
        "horizon_holders", "Sessions, slots and transactions that hold back the xmin horizon, at most ten.", "kind", kinds
    )


def _one(name: str, words: str, value: float) -> Sample:
    return Sample(name, words, {(): value})


def _labelled(name: str, words: str, label: str, values: Mapping[str, float]) -> Sample:
    return Sample(name, words, {(value,): number for value, number in values.items()}, labels=(label,))
