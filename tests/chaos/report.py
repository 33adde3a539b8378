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
    """Return all that a run found."""
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


def _median(times: list[timedelta | None]) -> float | None:
    known = [time.total_seconds() for time in times if time is not None]
    return round(statistics.median(known), 2) if known else None


def _worst(times: list[timedelta | None]) -> float | None:
    known = [time.total_seconds() for time in times if time is not None]
    return round(max(known), 2) if known else None
