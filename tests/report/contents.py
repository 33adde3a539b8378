"""A report's contents with something in each part, made by hand: pages are tested without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue.pipeline.report import Contents
from tests.fixtures.histories import AS_OF, HOSTILE, T0, at

NAMES = ("resize", HOSTILE, "</script><script>document.title = 'owned'</script>")


def filled() -> Contents:
    """Return contents in which every text that could be an attack is one."""
    hours = [T0 + timedelta(hours=hour) for hour in range(6)]
    counts = {"enqueued": 9, "completed": 7, "cancelled": 1, "failed": 2, "dead": 1}
    times = {
        "mean_seconds": 1.5,
        "p50_seconds": 0.0,
        "p90_seconds": 2.0,
        "p95_seconds": 3.0,
        "p99_seconds": 90.0,
        "max_seconds": 7300.0,
    }
    step = {
        "position": 1,
        "job_id": "j1",
        "type_name": HOSTILE,
        "status": "completed",
        "run_seconds": 1.0,
        "wait_seconds": 0.5,
    }
    ages = (
        "unresolved_under_1h",
        "unresolved_1h_to_1d",
        "unresolved_1d_to_7d",
        "unresolved_7d_to_30d",
        "unresolved_over_30d",
    )
    return Contents(
        sources=("/srv/archive", HOSTILE),
        generated_at=AS_OF,
        since=T0,
        until=None,
        queues=("images", HOSTILE),
        first=T0,
        last=hours[-1],
        summary={
            **{
                "jobs": 54,
                "completed": 42,
                "open": 3,
                "dead": 6,
                "cancelled": 3,
                "attempts": 60,
                "unresolved_dead_letters": 4,
            },
            **{
                "failure_rate": 0.2,
                "retry_rate": 0.0004,
                "wait_p50_seconds": 0.002,
                "wait_p95_seconds": 3.0,
                "run_p95_seconds": None,
            },
        },
        throughput=[{"bucket_start": hour, **counts} for hour in hours],
        latency=[
            {"type_name": name, "measure": measure, "count": 3, **times}
            for name in NAMES
            for measure in ("wait", "run", "total")
        ],
        retries=[
            {"type_name": name, "jobs": 9, "retried_jobs": 1, "retry_rate": 1 / 9, "attempts": 10, "failure_rate": None}
            | {"failed": 1, "timed_out": 0, "lost": 0, "snoozed": 0}
            for name in NAMES
        ],
        errors=[_error(number) for number in range(60)],
        dead_letters=[
            {"type_name": HOSTILE, "reason": "exhausted", "dead_letters": 6, "unresolved": 4, "redriven": 1, "dismissed": 1}
            | dict.fromkeys(ages, 1)
            | {"oldest_unresolved_seconds": 90_000.0, "resolution_p50_seconds": None}
        ],
        workflows=[
            {
                "workflow_id": "w1",
                "type_name": HOSTILE,
                "chains": 2,
                "jobs": 3,
                "is_ended": False,
                "created_at": T0,
                "length": 2,
                "width": 2,
            }
            | {"max_parallel": 1, "wall_seconds": 9.0, "critical_seconds": 3.0, "critical_share": 1 / 3, "is_cyclic": True}
            | {"critical_path": ["j1", "j2"], "steps": [step | {"is_straggler": True}]}
        ],
        workflow_count=1,
        busy=[{"bucket_start": hour, "type_name": name, "busy_workers": 0.5} for hour in hours for name in NAMES],
        capacity=[
            {"type_name": name, "started": 20, "mean_busy_workers": 0.5, "peak_start": T0, "peak_busy_workers": 0.7}
            | {
                "peak_arrivals_per_second": 0.01,
                "peak_mean_run_seconds": 5.0,
                "worst_p95_wait_seconds": None,
                "workers_needed": 2,
            }
            for name in (*NAMES, None)
        ],
    )


def _error(number: int) -> dict[str, Any]:
    kind = HOSTILE if number else "KeyError"
    return {
        **{
            "fingerprint": f"f{number}",
            "error_type": kind,
            "count": 60 - number,
            "jobs": 1,
            "type_names": [HOSTILE],
            "share": 0.5,
        },
        **{"first_seen": T0, "last_seen": at(600), "example_job_id": "j1", "example_message": HOSTILE},
        "example_traceback": None if number % 2 else f"Traceback\n  {HOSTILE}",
        "trend": [{"bucket_start": T0, "count": 1}, {"bucket_start": at(7200), "count": 3}],
    }
