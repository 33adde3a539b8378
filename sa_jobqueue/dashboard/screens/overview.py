"""The first page: findings of the health report, then its figures, queues, workers and single jobs."""

from __future__ import annotations

from typing import Any

from sa_jobqueue.dashboard.findings import acts, link, settings
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health import Finding
from sa_jobqueue.observe.health.findings import described
from sa_jobqueue.policies.fairness import QueueKey


def view(context: Context) -> dict[str, Any]:
    """Return the cached report, and the series of its figures."""
    sample = context.sample()
    points = list(context.source.sampler.points)[-120:]
    variables = {"sample": sample, "points": points, "queues": [], "failures": [], "report": None}
    if sample.value is None:
        return variables
    report = sample.value.health
    depths = {QueueKey(one.queue, one.fairness_key).label: one for one in report.queues}
    rates = {one.queue: one for one in report.rates.queues}
    failures = [
        (one, context.error_line(one.type_name, {"type": one.error_type, "message": one.error_message}))
        for one in sample.value.failures
    ]
    holder = next(iter(report.horizon.holders), None)
    return variables | {
        "report": report,
        "holder": holder,
        "holder_text": "" if holder is None else described(holder),
        "findings": [_shown(context, finding) for finding in report.findings],
        "queues": [(name, depths.get(name), rates.get(name)) for name in sorted({*depths, *rates})],
        "failures": failures,
        "longest": sample.value.longest,
    }


def _shown(context: Context, finding: Finding) -> dict[str, Any]:
    """Return a finding for the page; with the error of its dead letters, if the user may see it."""
    summary, error = finding.summary, finding.evidence.get("error")
    if isinstance(error, dict) and error.get("message") and error.get("type"):
        kind = str(error["type"])
        summary = summary.replace(f": {kind} (", f": {context.error_line(finding.evidence['type_name'], error)} (", 1)
    return {
        "severity": finding.severity,
        "summary": summary,
        "advice": finding.advice,
        "link": link(context, finding),
        "acts": list(acts(context, finding)),
        "settings": settings(context, finding),
    }


SCREEN = Screen(name="overview", title="Overview", view=view, refresh=2)
