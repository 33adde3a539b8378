"""The first page: findings of the health report, then its figures, queues, workers and single jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.dashboard.findings import acts, link, settings
from sa_jobqueue.dashboard.screens.activity import charts, folded, marked
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health import Finding
from sa_jobqueue.observe.health.findings import described, with_message
from sa_jobqueue.policies.fairness import QueueKey

_LISTED: Final = 10
"""Number of queues and of workers; their pages have all."""


def view(context: Context) -> dict[str, Any]:
    """Return the cached report, and the series of its figures."""
    sample = context.sample()
    recorded = context.source.recorded.sample().value
    points = recorded.points if recorded else []
    variables = {"sample": sample, "charts": [], "queues": [], "failures": [], "report": None}
    if sample.value is None:
        return variables
    report = sample.value
    depths = {QueueKey(depth.queue, depth.fairness_key).label: depth for depth in report.queues}
    rates = {rate.queue: rate for rate in report.rates.queues}

    def worst(name: str) -> tuple[timedelta, str]:
        return (-depths[name].claim_age if name in depths and depths[name].due else timedelta(0)), name

    marks = marked(report.workers.workers, recorded.acts) if recorded else []
    holder = next(iter(report.horizon.holders), None)
    return variables | {
        "report": report,
        "holder": holder,
        "holder_text": "" if holder is None else described(holder),
        "findings": [_shown(context, finding) for finding in report.findings],
        "queues": [(name, depths.get(name), rates.get(name)) for name in sorted({*depths, *rates}, key=worst)],
        "workers": sorted(report.workers.workers, key=lambda worker: worker.silent_for, reverse=True),
        "listed": _LISTED,
        "failures": folded(context, report.latest)[: 2 * _LISTED],
        "charts": charts(
            points, since=recorded.since, step=timedelta(minutes=1), marks=marks, jobs=context.url("jobs", order="newest")
        )
        if recorded and points
        else [],
    }


def _shown(context: Context, finding: Finding) -> dict[str, Any]:
    """Return a finding for the page; with the error of its dead letters, if the user may see it."""
    full = with_message(finding, context.error_line)
    return {
        "severity": finding.severity,
        "headline": full.headline,
        "rest": full.details,
        "advice": finding.advice,
        "link": link(context, finding),
        "acts": list(acts(context, finding)),
        "settings": settings(context, finding),
    }


SCREEN = Screen(name="overview", title="Overview", view=view, refresh=2)
