"""Links from each finding of the health report to the screen that its advice refers to."""

from __future__ import annotations

from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.observe.health import Code, Finding


def link(context: Context, finding: Finding) -> str:
    """Return the link to the screen where a finding is seen and resolved."""
    seen = finding.evidence
    match finding.code:
        case Code.NO_WORKER | Code.WORKERS_SILENT | Code.STUCK_THREADS | Code.FALLING_BEHIND:
            return _screen(context, "workers", anchor="workers")
        case Code.QUEUE_UNSERVED:
            return context.url("queues", name=list(seen.get("queues", ())))
        case Code.PAUSED if "type" in seen:
            return context.url("job-types", name=seen["type"])
        case Code.PAUSED:
            return context.url("queues", name=seen.get("queue"))
        case Code.SCHEDULE_LATE | Code.SCHEDULE_BROKEN:
            return _screen(context, "schedules", anchor="findings")
        case Code.CLAIM_AGE:
            return context.url("job", id=seen.get("job_id"))
        case Code.RETRIES:
            return context.url("overview") + "#failures"
        case Code.ORPHANED | Code.OVERDUE:
            return context.url("jobs", status="running", order="oldest")
        case Code.LONG_RUNNING:
            return context.url("job", id=seen.get("job_id"))
        case Code.DEAD_LETTERS:
            return context.url("dead-letters")
        case Code.BLOCKED_BY_DEAD:
            return context.url("chain", id=seen.get("chain_id"))
        case Code.CHAINS_TO_UNBLOCK:
            return context.url("jobs", status="blocked", order="oldest")
        case Code.QUARANTINED:
            return _screen(context, "quarantine", anchor="findings")
        case Code.BULK_UNFINISHED | Code.BULK_REJECTED | Code.NOT_MEASURED:
            return context.url("overview") + "#findings"
        case Code.HORIZON if seen.get("job_id") is not None:
            return context.url("job", id=seen["job_id"])
    return _screen(context, "storage", anchor="findings")


def _screen(context: Context, name: str, *, anchor: str) -> str:
    """Return the link to a screen, or to a part of the overview if there is no such screen."""
    return context.url(name) if name in context.screens else f"{context.url('overview')}#{anchor}"
