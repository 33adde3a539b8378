"""Workers as of their last heartbeat: versions, slots, what they serve; drain one, or change its concurrency."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.operations import WorkerFilter, drain_workers, list_workers, resize_workers
from sa_jobqueue.statements import jobs
from sa_jobqueue.types import MOST_CONCURRENT

_LISTED: Final = 100


def view(context: Context) -> dict[str, Any]:
    """Return a page of workers, and the queues with due jobs that no live worker serves."""
    params = context.params
    where = WorkerFilter(ids=params.texts("id"), names=params.texts("name"), queues=params.texts("queue"))
    after = (params.text("after") or "", params.text("after_id") or "") if "after" in params else None
    with context.read() as session:
        page = list_workers(session, where=where, after=after, limit=_LISTED, model=context.model)
        unserved = session.scalars(jobs.unserved_queues(context.model), {"ttl": context.source.heartbeat_timeout}).all()
    filters = {"id": list(where.ids), "name": list(where.names), "queue": list(where.queues)}
    following = {} if page.next is None else {"after": page.next[0], "after_id": page.next[1]}
    return {
        "workers": list(page),
        "heartbeat_timeout": context.source.heartbeat_timeout,
        "versions": sorted({worker.version for worker in page}),
        "unserved": unserved,
        "is_filtered": any(filters.values()),
        "most": MOST_CONCURRENT,
        "next_url": context.url("workers", **filters, **following) if following else None,
    }


def _asked(context: Context) -> WorkerFilter:
    ids = context.params.texts("id", at_most=100)
    if not ids:
        raise ParameterError("id", "must name a worker")
    return WorkerFilter(ids=ids)


def _drain(context: Context, session: Session) -> Changes:
    result = drain_workers(session, where=_asked(context), **context.change)
    return Changes(count=result.changed, details=result.ids, ids=result.ids)


def _resize(context: Context, session: Session) -> Changes:
    number = context.params.number("concurrency", low=1, high=MOST_CONCURRENT, default=0) or None
    result = resize_workers(session, number, where=_asked(context), **context.change)
    count = "as many jobs at once as it was started with" if number is None else f"at most {number:,} jobs at once"
    effect = f"It runs {count}, until it is restarted."
    return Changes(count=result.changed, effect=effect, details=result.ids, ids=result.ids)


SCREEN = Screen(
    name="workers",
    title="Workers",
    view=view,
    group="System",
    acts=(
        Act(
            Permission.DRAIN_WORKERS,
            "Drain the worker",
            _drain,
            "asked to drain",
            "It starts no more jobs, finishes those that it runs, and stops. Its supervisor may start it again.",
        ),
        Act(Permission.RESIZE_WORKERS, "Change the concurrency", _resize, "asked to change its concurrency"),
    ),
)
