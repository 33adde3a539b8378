"""Report of a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict
from datetime import timedelta
from typing import Any

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
            "injected": len(outcomes),
            "survived": sum(outcome.survived for outcome in outcomes),
            "recovery_median_s": _median([outcome.recovery for outcome in outcomes]),
            "recovery_worst_s": _worst([outcome.recovery for outcome in outcomes]),
            "rescued_worst_s": _worst([outcome.rescued for outcome in outcomes]),
        }
        for fault in FAULTS
        if (outcomes := by_fault[fault.name])
    ]


def document(result: Result) -> dict[str, Any]:
    """Return all that a run found."""
    return {
        "seed": result.options.seed,
        "seconds": result.options.seconds,
        "workers": result.options.workers,
        "rate": result.options.rate,
        "server": result.server,
        "faults": tally(result),
        "order": [f"{outcome.injection.fault}: {outcome.injection.detail}" for outcome in result.outcomes],
        "throughput": {when: round(rate, 1) for when, rate in result.throughput.items()},
        "jobs": result.jobs,
        "attempts": result.attempts,
        "dead_letters": result.dead_letters,
        "worker_processes": result.starts,
        "fenced_zombies": result.fenced,
        "violations": [asdict(violation) for violation in result.violations],
    }


def _median(times: list[timedelta | None]) -> float | None:
    durations = [time.total_seconds() for time in times if time is not None]
    return round(statistics.median(durations), 2) if durations else None


def _worst(times: list[timedelta | None]) -> float | None:
    durations = [time.total_seconds() for time in times if time is not None]
    return round(max(durations), 2) if durations else None
