"""The first page: findings of the health report, then its figures, queues, workers and single jobs."""

from __future__ import annotations

from typing import Any

from sa_jobqueue.dashboard.findings import link
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health.findings import described
from sa_jobqueue.policies.fairness import label_of, queue_key_of


def view(context: Context) -> dict[str, Any]:
    """Return the cached report, and the series of its figures."""
    sample = context.sample()
    points = list(context.source.sampler.points)[-120:]
    variables = {"sample": sample, "points": points, "queues": [], "failures": [], "report": None}
    if sample.value is None:
        return variables
    report = sample.value.health
    depths = {label_of(queue_key_of(one.queue, one.fairness_key)): one for one in report.queues}
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
        "findings": [(finding, link(context, finding)) for finding in report.findings],
        "queues": [(name, depths.get(name), rates.get(name)) for name in sorted({*depths, *rates})],
        "failures": failures,
        "longest": sample.value.longest,
    }


SCREEN = Screen(name="overview", title="Overview", view=view, refresh=2)
