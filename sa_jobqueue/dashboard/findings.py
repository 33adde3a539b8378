"""For each finding of the health report the link to the screen that shows it, and the acts that end it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.observe.health import Code, Finding


def link(context: Context, finding: Finding) -> str:
    """Return the link to the screen where a finding is seen and resolved."""
    evidence = finding.evidence
    match finding.code:
        case Code.GROWING:
            return context.url("job-type", name=evidence["type_name"])
        case Code.LONG_CHAIN:
            return context.url("chain", id=evidence["chain_id"])
        case Code.WORKERS_RESTARTING if "job_id" in evidence:
            return context.url("job", id=evidence["job_id"])
        case Code.WORKERS_RESTARTING | Code.DECLARED_DIFFERENTLY:
            return context.url("workers")
        case Code.CLOCK:
            return context.url("overview") + "#findings"
        case Code.NO_WORKER | Code.WORKERS_SILENT | Code.WORKER_FAILING | Code.STUCK_THREADS | Code.FALLING_BEHIND:
            return context.url("workers")
        case Code.QUEUE_UNSERVED:
            return context.url("queues", name=list(evidence.get("queues", ())))
        case Code.PAUSED if "type" in evidence:
            return context.url("job-type", name=evidence["type"])
        case Code.PAUSED:
            return context.url("queue", name=evidence.get("queue"), fairness_key=evidence.get("fairness_key"))
        case Code.SCHEDULE_LATE | Code.SCHEDULE_BROKEN | Code.SCHEDULE_MISSED:
            return context.url("schedules", name=evidence.get("schedule"))
        case Code.CLAIM_AGE:
            return context.url("job", id=evidence.get("job_id"))
        case Code.RETRY_LATER:
            return context.url("jobs", status="pending", queue=evidence["queue"], type=evidence["type_name"])
        case Code.EXPIRED:
            return context.url("jobs", status="cancelled", queue=evidence["queues"][0])
        case Code.RETRIES:
            return context.url("overview") + "#failures"
        case Code.ORPHANED | Code.OVERDUE:
            return context.url("jobs", status="running", order="oldest")
        case Code.LONG_RUNNING:
            return context.url("job", id=evidence.get("job_id"))
        case Code.DEAD_LETTERS:
            return context.url("dead-letters", **_group(evidence))
        case Code.AWAITING_EVENT:
            return context.url("events", name=evidence.get("event"))
        case Code.BLOCKED_BY_DEAD:
            return context.url("chain", id=evidence.get("chain_id"))
        case Code.CHAINS_TO_UNBLOCK:
            return context.url("jobs", status="blocked", order="oldest")
        case Code.QUARANTINED | Code.BULK_UNFINISHED | Code.BULK_REJECTED | Code.NOT_MEASURED:
            return context.url("overview") + "#findings"
        case Code.HORIZON if evidence.get("job_id") is not None:
            return context.url("job", id=evidence["job_id"])
    return context.url("storage")


def acts(context: Context, finding: Finding) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the acts that end the cause of a finding and that the user may do: name, title, and its arguments."""
    for permission, title, arguments in _acts(finding):
        if context.may(permission):
            yield permission.value.replace("_", "-"), title, arguments


def _acts(finding: Finding) -> Iterator[tuple[Permission, str, dict[str, Any]]]:
    evidence = finding.evidence
    match finding.code:
        case Code.PAUSED if "type" in evidence:
            yield Permission.RESUME_JOB_TYPES, "Resume", {"name": evidence["type"]}
        case Code.PAUSED:
            yield (
                Permission.RESUME_QUEUES,
                "Resume",
                {"name": evidence["queue"], "fairness_key": evidence.get("fairness_key", "")},
            )
        case Code.GROWING:
            yield Permission.PAUSE_JOB_TYPES, "Pause", {"name": evidence["type_name"]}
        case Code.LONG_CHAIN:
            yield Permission.CANCEL_CHAINS, "Cancel", {"id": str(evidence["chain_id"])}
        case Code.CLAIM_AGE if evidence["fairness_key"]:
            key = evidence["fairness_key"]
            yield Permission.PAUSE_QUEUES, f"Pause {key}", {"name": evidence["queue"], "fairness_key": key}
        case Code.BLOCKED_BY_DEAD if evidence.get("cancel"):
            yield Permission.CANCEL_JOBS, "Cancel", {"id": [str(job_id) for job_id in evidence["cancel"]]}
        case Code.BLOCKED_BY_DEAD if evidence["job_ids"]:
            dead = {"job": [str(job_id) for job_id in evidence["job_ids"]], "resolved": "any"}
            yield Permission.REDRIVE_DEAD_LETTERS, "Redrive", dead
        case Code.RETRY_LATER:
            yield Permission.TRIGGER_JOBS, "Run now", {"id": [str(job_id) for job_id in evidence["job_ids"]]}
        case Code.LONG_RUNNING | Code.AWAITING_EVENT:
            yield Permission.CANCEL_JOBS, "Cancel", {"id": str(evidence["job_id"])}
        case Code.SCHEDULE_MISSED:
            period = {"since": evidence["missed_from"].isoformat(), "until": evidence["missed_until"].isoformat()}
            yield Permission.RUN_SCHEDULE, "Run them", {"name": evidence["schedule"], **period}
            yield Permission.RESUME_SCHEDULES, "Leave them out", {"name": evidence["schedule"]}
        case Code.DEAD_LETTERS if "type_name" in evidence:
            yield Permission.REDRIVE_DEAD_LETTERS, "Redrive", _group(evidence)
            yield Permission.DISMISS_DEAD_LETTERS, "Dismiss", _group(evidence)


def settings(context: Context, finding: Finding) -> str | None:
    """Return the link to the settings of the limit that jobs wait for, if the user may change them."""
    kind, name, key = finding.evidence.get("limit_of") or ("", "", "")
    if kind == "type" and context.may(Permission.UPSERT_JOB_TYPE):
        return context.url("job-type", name=name)
    if kind == "queue" and context.may(Permission.UPSERT_QUEUE):
        return context.url("queue", name=name, fairness_key=key or None)
    return None


def _group(evidence: Mapping[str, Any]) -> dict[str, Any]:
    names = {"type": evidence.get("type_name"), "reason": evidence.get("reason"), "fingerprint": evidence.get("fingerprint")}
    return {name: str(value) for name, value in names.items() if value}
