"""Reports of the runs: two tables in Markdown, and a document for programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.run import SETTLING_SECONDS, Options, Result

_COLUMNS = (
    "Queue",
    "Enqueued",
    "Lost",
    "Stuck",
    "Ended twice",
    "Overlapping runs",
    "Of these, both awake",
    "Recovery, median",
    "Worst",
    "Manual restarts",
    "Jobs a second before",
    "During",
    "After",
)


def markdown(results: Sequence[Result]) -> str:
    """Return a table of the queues, and one of the worst recovery from each fault."""
    names = [f"{one.system.name} {one.system.version}" for one in results]
    by_fault = [_worst_by_fault(one) for one in results]
    faults = [fault.name for fault in FAULTS if any(fault.name in worst for worst in by_fault)]
    recoveries = [[name, *(_seconds(worst.get(name)) for worst in by_fault)] for name in faults]
    settings = [f"- {name}: {one.system.settings}." for name, one in zip(names, results, strict=True)]
    queues = _table(_COLUMNS, [_row(name, one) for name, one in zip(names, results, strict=True)])
    return "\n".join([*queues, "", *_table(("Worst recovery from", *names), recoveries), "", *settings])


def document(options: Options, results: Sequence[Result]) -> dict[str, Any]:
    """Return everything as JSON would have it."""
    return {
        "seed": options.seed,
        "rounds": options.rounds,
        "workers": options.workers,
        "rate": options.rate,
        "settling_s": SETTLING_SECONDS,
        "systems": [_described(one) for one in results],
    }


def _described(result: Result) -> dict[str, Any]:
    pairs = zip(result.injections, result.recoveries, strict=True)
    return {
        "name": result.system.name,
        "version": result.system.version,
        "settings": result.system.settings,
        "server": result.server,
        **asdict(result.counts),
        "recovery_median_s": _rounded(result.recovery_median),
        "recovery_worst_s": _rounded(result.recovery_worst),
        "never_recovered": sum(one is None for one in result.recoveries),
        "restarted_by_hand": result.restarts,
        "worker_processes": result.processes,
        "throughput": {when: round(rate, 1) for when, rate in result.throughput.items()},
        "seconds": round(result.seconds),
        "faults": [{"fault": one.fault, "detail": one.detail, "recovery_s": _rounded(took)} for one, took in pairs],
    }


def _row(name: str, result: Result) -> list[str]:
    counts = result.counts
    rates = [f"{result.throughput[when]:.1f}" for when in ("before", "during", "after")]
    whole = (counts.lost, counts.stuck, counts.ended_twice, counts.overlapped, counts.overlapped_awake)
    recovery = [_seconds(result.recovery_median), _seconds(result.recovery_worst)]
    return [name, f"{counts.enqueued:,}", *map(str, whole), *recovery, str(result.restarts), *rates]


def _worst_by_fault(result: Result) -> dict[str, float | None]:
    found: dict[str, list[float | None]] = defaultdict(list)
    for injection, took in zip(result.injections, result.recoveries, strict=True):
        found[injection.fault].append(took)
    return {fault: None if None in took else max(one for one in took if one is not None) for fault, took in found.items()}


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = [*columns]
    rule = ["---", *("---:" for _ in head[1:])]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
