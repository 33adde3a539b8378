"""Targets, each a ratio within one run, and whether they were reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.catalogue import CONNECTION, OURS
from benchmarks.scenarios.transaction import ADD_ALL, ENQUEUE_MANY

_ALIKE: Final = ("pgqueuer, asyncpg", "awa")
"""The fastest of the others."""
_SINGLE_TABLE: Final = ("pgqueuer, asyncpg", "pgqueuer, psycopg", "chancy", "oban", "procrastinate")


class Figures:
    """Looks up the figures of a case in a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._cases = {(result["scenario"], result["case"]): result for result in document["results"]}

    def case(self, scenario: str, case: str) -> dict[str, Any] | None:
        """Return a case's result; None when it was not run."""
        return self._cases.get((scenario, case))

    def rate(self, scenario: str, case: str) -> float | None:
        """Return its jobs a second."""
        result = self.case(scenario, case)
        return result["rate"]["median"] if result and result["rate"] else None

    def figure(self, scenario: str, case: str, name: str) -> float | None:
        """Return one of its figures."""
        result = self.case(scenario, case)
        return result["figures"].get(name) if result else None

    def per_job(self, scenario: str, case: str, name: str) -> float | None:
        """Return the consumption of one of its jobs."""
        result = self.case(scenario, case)
        return result["per_job"][name] if result else None

    def ratio(self, scenario: str, case: str) -> float | None:
        """Return the median of its rounds' ratios."""
        result = self.case(scenario, case)
        return result["ratio"] if result else None


@dataclass(frozen=True, slots=True)
class Target:
    """One line: name, target, measurement, and whether it is reached."""

    name: str
    target: str
    measured: str
    is_met: bool | None
    """None where nothing was measured."""


def all_targets(document: Mapping[str, Any]) -> list[Target]:
    """Return every target of a document's run."""
    return list(_all(Figures(document)))


def _all(figures: Figures) -> Iterator[Target]:
    yield from _transaction(figures)
    for name in _ALIKE:
        ratio = figures.ratio("drain beside peers", name)
        yield _least(f"drain, one worker, against {name}", 1.25, 1 / ratio if ratio else None)
    costs = [figures.per_job("drain beside peers", OURS.name, f"{side}_cpu_us") for side in ("client", "server")]
    drained = [cost for cost in costs if cost is not None]
    yield _most("drain, CPU time of client and server a job, us", 60, sum(drained) if len(drained) == len(costs) else None)
    slow = figures.ratio("drain beside peers", "procrastinate")
    yield _least("drain, one worker, against procrastinate", 10, 1 / slow if slow else None)
    yield _least(
        "drain against `pgbench` with our SQL, batch 100, one connection", 0.5, figures.ratio("drain", "async handler")
    )
    yield _least("two worker processes against one", 1.6, figures.ratio("two workers", f"{OURS.name}, two"))
    yield _least("`session.add(Job)` against one plain row", 0.8, figures.ratio("single enqueue", "session.add(Job)"))
    single = figures.rate("single enqueue beside peers", CONNECTION.name)
    pgqueuer = figures.rate("single enqueue beside peers", _ALIKE[0])
    yield _least(
        f"`handler.enqueue` on a connection in AUTOCOMMIT, one a commit, against {_ALIKE[0]}",
        1,
        single / pgqueuer if single and pgqueuer else None,
    )
    yield from _latency(figures)
    yield from _claims(figures)
    yield from _budget(figures)
    idle = figures.figure("idle worker", OURS.name, "statements_a_second")
    yield Target("idle worker, statements a second", "under 1", _number(idle), None if idle is None else idle < 1)
    yield _most("idle worker, percent of a core", 0.5, figures.figure("idle worker", OURS.name, "client_core_percent"))
    yield from (target for target in _pipeline(figures) if target.is_met is not None)  # of a separate run


def _transaction(figures: Figures) -> Iterator[Target]:
    for kind in ("sync", "async"):
        for name, yardstick, limit in (("session.add", "a plain row", 1.9), ("handler.enqueue", "a text INSERT", 1.5)):
            case = f"{kind}: {name}(job)" if name == "session.add" else f"{kind}: {name}"
            label = f"CPU time that `{name}` adds to a transaction, against that of {yardstick}, {kind}"
            yield _most(label, limit, figures.ratio("transaction", case))
    label = "CPU time a row, 10,000 in one transaction"
    yield _most(f"{label}: `session.add_all` of jobs against plain rows", 2.5, figures.ratio("bulk transaction", ADD_ALL))
    yield _most(
        f"{label}: `enqueue_many` of jobs against `handler.enqueue_many`",
        3,
        figures.ratio("bulk transaction", ENQUEUE_MANY),
    )
    resumed = figures.figure("events", "child's return to parent", "p50_ms")
    yield _most("a child's return to its parent, p50, ms", 10, resumed)


def _latency(figures: Figures) -> Iterator[Target]:
    for name in ("p50_ms", "p99_ms"):
        ours = figures.figure("latency beside peers", OURS.name, name)
        latency_by_peer = {
            peer: value
            for peer in (*_SINGLE_TABLE, "awa", "bullmq", "celery, Redis")
            if (value := figures.figure("latency beside peers", peer, name)) is not None
        }
        label = f"enqueue to start at 100 jobs/s, {name.removesuffix('_ms')}, ms"
        if ours is None or not latency_by_peer:
            yield Target(label, "below every peer", _number(ours), None)
            continue
        oban = latency_by_peer.get("oban")
        yield _most(f"{label}, against oban", 0.95, ours / oban if oban else None)
        best = min(latency_by_peer, key=lambda name_of_peer: latency_by_peer[name_of_peer])
        target = f"below every peer: {latency_by_peer[best]:.2f} ({best})"
        yield Target(label, target, f"{ours:.2f}", ours < latency_by_peer[best])


def _pipeline(figures: Figures) -> Iterator[Target]:
    def ratio(scenario: str, case: str, compared_case: str) -> float | None:
        ours, compared_rate = figures.rate(scenario, case), figures.rate(scenario, compared_case)
        return ours / compared_rate if ours and compared_rate else None

    limits = (("JDBC, into job", 0.7, 0.5), ("JDBC, into a plain table", 0.7, 0.5), ("COPY", 0.75, None))
    for compared_case, by_name, by_handler in limits:
        label = f"Spark's sink against {compared_case}"
        yield _least(f"{label}: rows by name", by_name, ratio("pipeline write", "Spark", compared_case))
        if by_handler is not None:
            checked = ratio("pipeline write", "Spark, checked by a handler", compared_case)
            yield _least(f"{label}: rows checked by a handler", by_handler, checked)
    slower = ratio("pipeline write", "Spark, 4 partitions", "Spark, 200 partitions")
    yield _most("Spark's sink, seconds with 200 partitions against 4", 1.5, slower)
    for ours, jdbc in (("Spark, one part", "JDBC, 1 parts"), ("Spark", "JDBC, 2 parts")):
        yield _least(f"Spark's source against {jdbc}, all columns", 1, ratio("pipeline read", ours, jdbc))


def _claims(figures: Figures) -> Iterator[Target]:
    for kind, limit in (("ours", 1.5), ("plain", None)):
        values = [
            figures.figure("held-back horizon", f"{kind}, {state}", "p99_ms") for state in ("500,000 dead", "not held back")
        ]
        ratio = values[0] / values[1] if values[0] and values[1] else None
        label = "claim p99 with 500,000 dead rows held back from vacuum, against none"
        if limit is None:
            yield Target(f"{label}: a plain indexed claim", "(over 50)", _number(ratio), None)
        else:
            yield _most(label, limit, ratio)


def _budget(figures: Figures) -> Iterator[Target]:
    drained = ("drain", "async handler")
    for name, limit in (("round_trips", 0.05), ("commits", 0.03), ("row_versions", 2.05), ("dead_tuples", 2.05)):
        yield _most(f"{name.replace('_', ' ')} a job, batch 100", limit, figures.per_job(*drained, name))
    ours = figures.per_job("drain beside peers", OURS.name, "wal_bytes")
    peer_bytes = [value for peer in _SINGLE_TABLE if (value := figures.per_job("drain beside peers", peer, "wal_bytes"))]
    target = f"below every single-table peer: {min(peer_bytes):,.0f}" if peer_bytes else "below every single-table peer"
    yield Target(
        "WAL bytes a job, claim and finish", target, _number(ours), ours < min(peer_bytes) if ours and peer_bytes else None
    )


def _least(label: str, limit: float, value: float | None) -> Target:
    return Target(label, f"at least {limit:,g}", _number(value), None if value is None else value >= limit)


def _most(label: str, limit: float, value: float | None) -> Target:
    return Target(label, f"at most {limit:,g}", _number(value), None if value is None else value <= limit)


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 20 else f"{value:.3g}"
