"""Figures, charts and marks of the last hours, for the pages of a queue, a job type and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.charts import Line, Mark, chart, seconds
from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.observe.minutes import Figures, combined, series
from sa_jobqueue.operations import AuditFilter, WorkerStatus, list_audit

RANGES: Final = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=6)),
    "24h": (timedelta(hours=24), timedelta(minutes=20)),
}
"""Length of the charts, and of one of their points."""
_MARKS: Final = {
    "pause_queues": "paused",
    "resume_queues": "resumed",
    "pause_job_types": "paused",
    "resume_job_types": "resumed",
    "upsert_queue": "settings changed",
    "upsert_job_type": "settings changed",
}
_MOST_MARKS: Final = 30


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
    marks = [*_starts(workers), *_acts(context, session, since, queue or type_name, is_type=type_name is not None)]
    return {
        "range": chosen,
        "ranges": list(RANGES),
        "total": combined(points),
        "last": points[-1] if points else None,
        "charts": charts(points, since=since, step=step, marks=marks) if points else [],
    }


def charts(points: list[Figures], *, since: datetime, step: timedelta, marks: list[Mark]) -> list[Any]:
    """Return the charts of a series: rates, jobs, waits and durations."""
    common: dict[str, Any] = {"since": since, "step": step, "marks": marks}
    common["count"] = round((points[-1].key - since) / step) + 1

    def rate(name: str) -> Line:
        return Line(name, lambda point: point.per_second(name))

    def share(of: str, part: float) -> Line:
        def value(point: Figures) -> float | None:
            found = getattr(point, of)(part)
            return None if found is None else found.total_seconds()

        return Line(f"p{part * 100:.0f}", value)

    jobs = [Line("due", lambda point: point.due), Line("running", lambda point: point.running)]
    return [
        chart("rates", "Per second", points, [rate("enqueued"), rate("completed"), rate("failed")], **common),
        chart("backlog", "Jobs", points, jobs, **common),
        chart("wait", "Wait", points, [share("wait", part) for part in (0.5, 0.95, 0.99)], unit=seconds, **common),
        chart("run", "Duration", points, [share("run", part) for part in (0.5, 0.95, 0.99)], unit=seconds, **common),
    ]


def _starts(workers: list[WorkerStatus]) -> Iterator[Mark]:
    """Yield the minutes in which workers started: a deployment, or a restart."""
    starts = Counter(one.started_at.replace(second=0, microsecond=0) for one in workers)
    for at, count in starts.items():
        yield Mark(at, f"{at:%H:%M} {count} {'worker' if count == 1 else 'workers'} started")


def _acts(context: Context, session: Session, since: datetime, name: str | None, *, is_type: bool) -> Iterator[Mark]:
    operations = [one for one in _MARKS if name is None or ("type" in one) == is_type]
    where = AuditFilter(operations=operations, done_after=since)
    for one in list_audit(session, where=where, limit=_MOST_MARKS, model=context.model):
        if name is None or name in one.ids:
            what = ", ".join(map(str, one.ids[:3])) if name is None else ""
            yield Mark(
                one.done_at, f"{one.done_at:%H:%M} {what} {_MARKS[one.operation]} by {one.done_by}".replace("  ", " ")
            )
