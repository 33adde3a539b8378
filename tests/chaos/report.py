"""Reports of a run: a table for people, a document for programs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import FAULTS
from tests.chaos.run import Outcome, Result


def tally(result: Result) -> list[dict[str, Any]]:
    """Return a row per fault: how often, how often survived, recovery and rescue in seconds."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in result.outcomes:
        by_fault[outcome.injection.fault].append(outcome)
    return [
        {
            "fault": fault.name,
            "injected": len(found),
            "survived": sum(one.survived for one in found),
            "recovery_median_s": _median([one.recovery for one in found]),
            "recovery_worst_s": _worst([one.recovery for one in found]),
            "rescued_worst_s": _worst([one.rescued for one in found]),
        }
        for fault in FAULTS
        if (found := by_fault[fault.name])
    ]


def document(result: Result) -> dict[str, Any]:
    """Return everything as JSON would have it."""
    return {
        "seed": result.options.seed,
        "seconds": result.options.seconds,
        "workers": result.options.workers,
        "rate": result.options.rate,
        "server": result.server,
        "faults": tally(result),
        "order": [f"{one.injection.fault}: {one.injection.detail}" for one in result.outcomes],
        "throughput": {when: round(rate, 1) for when, rate in result.throughput.items()},
        "jobs": result.jobs,
        "attempts": result.attempts,
        "dead_letters": result.dead_letters,
        "worker_processes": result.starts,
        "fenced_zombies": result.fenced,
        "violations": [asdict(violation) for violation in result.violations],
    }


def show(console: Console, result: Result) -> None:
    """Print the table, the counts and the verdict."""
    table = Table(title=f"seed {result.options.seed}, PostgreSQL {result.server}", title_justify="left")
    table.add_column("fault")
    for column in ("injected", "survived", "recovery, median", "worst", "taken back, worst"):
        table.add_column(column, justify="right")
    for row in tally(result):
        times = (row["recovery_median_s"], row["recovery_worst_s"], row["rescued_worst_s"])
        table.add_row(row["fault"], str(row["injected"]), str(row["survived"]), *map(_shown, times))
    console.print(table)
    rates = ", ".join(f"{rate:.1f} {when}" for when, rate in result.throughput.items())
    console.print(f"jobs completed a second: {rates} the faults ({result.options.rate:g} a second were enqueued)")
    console.print(f"jobs: {_listed(result.jobs)}; attempts without success: {_listed(result.attempts)}")
    console.print(f"dead letters: {_listed(result.dead_letters)}; worker processes: {result.starts}")
    console.print(f"attempts that ran on when the next had begun, and were fenced: {result.fenced}")
    for violation in result.violations:
        console.print(f"VIOLATED: {violation.promise} ({violation.count})", style="red", markup=False)
        for line in violation.rows:
            console.print(f"    {line}", markup=False)
    if not result.violations:
        console.print("every promise was kept")


def _median(times: list[timedelta | None]) -> float | None:
    known = [time.total_seconds() for time in times if time is not None]
    return round(statistics.median(known), 2) if known else None


def _worst(times: list[timedelta | None]) -> float | None:
    known = [time.total_seconds() for time in times if time is not None]
    return round(max(known), 2) if known else None


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
