"""Figures, charts and marks of the last hours, for the pages of a queue, a job type and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.charts import Chart, Line, Mark, chart
from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.dashboard.sources import MARKED, MOST_MARKS
from sa_jobqueue.models import AuditMixin
from sa_jobqueue.observe.health.figures import FailedAttempt
from sa_jobqueue.observe.minutes import Figures, combined, series
from sa_jobqueue.operations import AuditFilter, WorkerStatus, list_audit

RANGES: Final = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=6)),
    "24h": (timedelta(hours=24), timedelta(minutes=20)),
}
"""Length of the charts, and of one of their points."""


def activity(
    context: Context,
    session: Session,
    *,
    workers: list[WorkerStatus],
    queue: str | None = None,
    type_name: str | None = None,
) -> dict[str, Any]:
    """Return the figures of the chosen range and its charts, with starts of `workers` and acts of operators as marks."""
    chosen = context.params.choice("range", tuple(RANGES))
    length, step = RANGES[chosen]
    now = context.source.now().replace(second=0, microsecond=0)
    since = now - length
    points = series(session, since=since, step=step, queue=queue, type_name=type_name, model=context.model)
    page, name = ("queue", queue) if queue else ("job-type", type_name)
    operations = [operation for operation in MARKED if ("type" in operation) == (type_name is not None)]
    where = AuditFilter(operations=operations, done_after=since)
    acts = list_audit(session, where=where, limit=MOST_MARKS, model=context.model)
    marks = marked(workers, [act for act in acts if name in act.ids])
    jobs = context.url("jobs", queue=queue, type=type_name)
    return {
        "range": chosen,
        "ranges": [(label, context.url(page, range=label, name=name), label == chosen, None) for label in RANGES],
        "total": combined(points),
        "last": points[-1] if points else None,
        "charts": charts(points, since=since, step=step, marks=marks, jobs=jobs) if points else [],
        "jobs_url": f"{jobs}&created_after={quote(since.isoformat())}",
    }


def folded(context: Context, failures: Iterable[FailedAttempt]) -> list[tuple[FailedAttempt, str, int]]:
    """Return the newest failure of each type and error, with the error as the user may see it, and how many there are."""
    groups: dict[tuple[str, str], list[FailedAttempt]] = {}
    for failure in failures:
        error = context.error_line(failure.type_name, failure.error) if failure.error.get("type") else ""
        groups.setdefault((failure.type_name, error or failure.outcome.replace("_", " ")), []).append(failure)
    return [(group[0], text, len(group)) for (_, text), group in groups.items()]


def charts(points: list[Figures], *, since: datetime, step: timedelta, marks: list[Mark], jobs: str) -> list[Chart]:
    """Return the charts of a series: rates, jobs, waits and durations. `jobs`: URL of its list of jobs, with a filter."""
    common: dict[str, Any] = {"since": since, "step": step, "marks": marks, "jobs": jobs}
    common["count"] = round((points[-1].key - since) / step) + 1

    def rate(name: str) -> Line:
        return Line(name, lambda point: point.per_second(name))

    def share(measure: str, part: float) -> Line:
        def value(point: Figures) -> float | None:
            quantile = getattr(point, measure)(part)
            return None if quantile is None else quantile.total_seconds()

        return Line(f"p{part * 100:.0f}", value)

    counts = [Line("due", lambda point: point.due), Line("running", lambda point: point.running)]
    return [
        chart("rates", "Per second", points, [rate("enqueued"), rate("completed"), rate("failed")], **common),
        chart("backlog", "Jobs", points, counts, **common),
        chart("wait", "Wait", points, [share("wait", part) for part in (0.5, 0.95, 0.99)], is_time=True, **common),
        chart("run", "Duration", points, [share("run", part) for part in (0.5, 0.95, 0.99)], is_time=True, **common),
    ]


def marked(workers: Iterable[WorkerStatus], acts: Iterable[AuditMixin]) -> list[Mark]:
    """Return the minutes in which workers started, which is a deployment or a restart, and the acts of operators."""
    starts = Counter(worker.started_at.replace(second=0, microsecond=0) for worker in workers)
    marks = [
        Mark(at, f"{at.astimezone(UTC):%H:%M} {count} {'worker' if count == 1 else 'workers'} started")
        for at, count in starts.items()
    ]
    for act in acts:
        names = ", ".join(map(str, act.ids[:3]))
        marks.append(
            Mark(act.done_at, f"{act.done_at.astimezone(UTC):%H:%M} {names} {MARKED[act.operation]} by {act.done_by}")
        )
    return marks
