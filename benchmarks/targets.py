"""Targets, each a ratio within one run, and whether they were reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.catalogue import OURS

_ALIKE: Final = ("pgqueuer, asyncpg", "awa")
"""The fastest of the others."""
_SINGLE_TABLE: Final = ("pgqueuer, asyncpg", "pgqueuer, psycopg", "chancy", "oban", "procrastinate")


class Found:
    """Looks up the figures of a case in a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._cases = {(one["scenario"], one["case"]): one for one in document["results"]}

    def case(self, scenario: str, case: str) -> dict[str, Any] | None:
        """Return a case's result; None when it was not run."""
        return self._cases.get((scenario, case))

    def rate(self, scenario: str, case: str) -> float | None:
        """Return its jobs a second."""
        found = self.case(scenario, case)
        return found["rate"]["median"] if found and found["rate"] else None

    def figure(self, scenario: str, case: str, name: str) -> float | None:
        """Return one of its figures."""
        found = self.case(scenario, case)
        return found["figures"].get(name) if found else None

    def per_job(self, scenario: str, case: str, name: str) -> float | None:
        """Return the consumption of one of its jobs."""
        found = self.case(scenario, case)
        return found["per_job"][name] if found else None

    def ratio(self, scenario: str, case: str) -> float | None:
        """Return the median of its rounds' ratios."""
        found = self.case(scenario, case)
        return found["ratio"] if found else None


@dataclass(frozen=True, slots=True)
class Target:
    """One line: name, target, measurement, and whether it is reached."""

    what: str
    wanted: str
    measured: str
    is_met: bool | None
    """None where nothing was measured."""


def all_targets(document: Mapping[str, Any]) -> list[Target]:
    """Return every target of a document's run."""
    return list(_all(Found(document)))


def _all(found: Found) -> Iterator[Target]:
    peers = [found.ratio("drain beside peers", name) for name in _ALIKE]
    fastest = [one for one in peers if one]
    yield _least("drain, one worker, against the fastest peer", 1.5, 1 / max(fastest) if fastest else None)
    slow = found.ratio("drain beside peers", "procrastinate")
    yield _least("drain, one worker, against procrastinate", 10, 1 / slow if slow else None)
    yield _least(
        "drain against `pgbench` with our SQL, batch 100, one connection", 0.5, found.ratio("drain", "async handler")
    )
    yield _least("two worker processes against one", 1.6, found.ratio("two workers", f"{OURS.name}, two"))
    handler = found.ratio("session handler", "async handler with AsyncSession")
    yield _least("handler with a session against a bare transaction with the same writes and one UPDATE", 0.7, handler)
    yield _least("`session.add(Job)` against one plain row", 0.8, found.ratio("single enqueue", "session.add(Job)"))
    yield _least(
        "bulk, `enqueue_many`, 100,000 in one transaction, jobs/s", 60_000, found.rate("bulk enqueue", "enqueue_many")
    )
    payloads = "bulk, `handler.enqueue_many`, 100,000 in one transaction"
    yield _least(f"{payloads}, jobs/s", 60_000, found.rate("bulk enqueue", "handler.enqueue_many"))
    yield _least(
        f"{payloads}, against a bare COPY of the same rows", 0.7, found.ratio("bulk enqueue", "handler.enqueue_many")
    )
    yield from _latency(found)
    yield from _claims(found)
    yield from _budget(found)
    idle = found.figure("idle worker", OURS.name, "statements_a_second")
    yield Target("idle worker, statements a second", "under 1", _number(idle), None if idle is None else idle < 1)
    yield _most("idle worker, percent of a core", 0.5, found.figure("idle worker", OURS.name, "client_core_percent"))
    growth = found.figure("memory", "one worker process", "growth_percent")
    yield _most("memory of a worker after all jobs against a tenth of them, growth in percent", 5, growth)
    yield from (one for one in _pipeline(found) if one.is_met is not None)  # of a separate run


def _latency(found: Found) -> Iterator[Target]:
    for name in ("p50_ms", "p99_ms"):
        ours = found.figure("latency beside peers", OURS.name, name)
        others = {
            other: value
            for other in (*_SINGLE_TABLE, "awa", "celery, Redis")
            if (value := found.figure("latency beside peers", other, name)) is not None
        }
        label = f"enqueue to start at 100 jobs/s, {name.removesuffix('_ms')}, ms"
        if ours is None or not others:
            yield Target(label, "below every peer", _number(ours), None)
            continue
        best = min(others, key=lambda one: others[one])
        wanted = f"below every peer: {others[best]:.2f} ({best})"
        yield Target(label, wanted, f"{ours:.2f}", ours < others[best])


def _pipeline(found: Found) -> Iterator[Target]:
    def ratio(scenario: str, case: str, other: str) -> float | None:
        ours, others = found.rate(scenario, case), found.rate(scenario, other)
        return ours / others if ours and others else None

    limits = (("JDBC, into job", 0.7, 0.5), ("JDBC, into a plain table", 0.7, 0.5), ("COPY", 0.75, None))
    for other, by_name, by_handler in limits:
        label = f"Spark's sink against {other}"
        yield _least(f"{label}: rows by name", by_name, ratio("pipeline write", "Spark", other))
        if by_handler is not None:
            checked = ratio("pipeline write", "Spark, checked by a handler", other)
            yield _least(f"{label}: rows checked by a handler", by_handler, checked)
    slower = ratio("pipeline write", "Spark, 4 partitions", "Spark, 200 partitions")
    yield _most("Spark's sink, seconds with 200 partitions against 4", 1.5, slower)
    for ours, jdbc in (("Spark, one part", "JDBC, 1 parts"), ("Spark", "JDBC, 2 parts")):
        yield _least(f"Spark's source against {jdbc}, all columns", 1, ratio("pipeline read", ours, jdbc))


def _claims(found: Found) -> Iterator[Target]:
    for kind, limit in (("ours", 1.5), ("plain", None)):
        values = [
            found.figure("held-back horizon", f"{kind}, {state}", "p99_ms") for state in ("500,000 dead", "not held back")
        ]
        ratio = values[0] / values[1] if values[0] and values[1] else None
        label = "claim p99 with 500,000 dead rows held back from vacuum, against none"
        if limit is None:
            yield Target(f"{label}: a plain indexed claim", "(over 50)", _number(ratio), None)
        else:
            yield _most(label, limit, ratio)
    deep = found.ratio("deep backlog", "100 types, 10 priorities, all pending")
    yield _most("claim with 1,000,000 pending, 100 types, 10 priorities, against 1,000 and one type", 1.5, deep)


def _budget(found: Found) -> Iterator[Target]:
    drained = ("drain", "async handler")
    for name, limit in (("round_trips", 0.05), ("commits", 0.03), ("row_versions", 2.05), ("dead_tuples", 2.05)):
        yield _most(f"{name.replace('_', ' ')} a job, batch 100", limit, found.per_job(*drained, name))
    ours = found.per_job("drain beside peers", OURS.name, "wal_bytes")
    others = [value for one in _SINGLE_TABLE if (value := found.per_job("drain beside peers", one, "wal_bytes"))]
    wanted = f"below every single-table peer: {min(others):,.0f}" if others else "below every single-table peer"
    yield Target("WAL bytes a job, claim and finish", wanted, _number(ours), ours < min(others) if ours and others else None)


def _least(what: str, limit: float, value: float | None) -> Target:
    return Target(what, f"at least {limit:,g}", _number(value), None if value is None else value >= limit)


def _most(what: str, limit: float, value: float | None) -> Target:
    return Target(what, f"at most {limit:,g}", _number(value), None if value is None else value <= limit)


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 20 else f"{value:.3g}"
