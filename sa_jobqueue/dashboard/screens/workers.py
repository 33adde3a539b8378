"""Workers as of their last heartbeat: the jobs that they run, memory, versions; drain one, or change its concurrency."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.operations import WorkerFilter, WorkerStatus, drain_workers, list_workers, resize_workers
from sa_jobqueue.statements import jobs, workers
from sa_jobqueue.types import MOST_CONCURRENT

_LISTED: Final = 100


def view(context: Context) -> dict[str, Any]:
    """Return a page of workers, and the queues with due jobs that no live worker serves."""
    params = context.params
    where = WorkerFilter(ids=params.texts("id"), names=params.texts("name"), queues=params.texts("queue"))
    after = (params.text("after") or "", params.text("after_id") or "") if "after" in params else None
    with context.read() as session:
        page = list_workers(session, where=where, after=after, limit=_LISTED, model=context.model)
        parameters = {"ids": [worker.id for worker in page]}
        rows = session.execute(workers.running(context.model), parameters).all() if page.items else []
        unserved = session.scalars(jobs.unserved_queues(context.model), {"ttl": context.source.heartbeat_timeout}).all()
    filters = {"id": list(where.ids), "name": list(where.names), "queue": list(where.queues)}
    following = {} if page.next is None else {"after": page.next[0], "after_id": page.next[1]}
    report = context.source.sampler.last
    return {
        "workers": _with_earlier(page.items, context.source.heartbeat_timeout),
        "running": {worker_id: list(group) for worker_id, group in itertools.groupby(rows, lambda row: row.worker_id)},
        "starts": {name.name: name.starts for name in report.starts} if report else {},
        "code": {worker.id: _code(worker) for worker in page},
        "heartbeat_timeout": context.source.heartbeat_timeout,
        "versions": sorted({worker.version for worker in page}),
        "unserved": unserved,
        "is_filtered": any(filters.values()),
        "most": MOST_CONCURRENT,
        "next_url": context.url("workers", **filters, **following) if following else None,
    }


def _with_earlier(
    page: Sequence[WorkerStatus], heartbeat_timeout: timedelta
) -> list[tuple[WorkerStatus, list[WorkerStatus]]]:
    """Return workers, each with those of its name that were silent before it started: it has replaced them."""
    earlier: dict[str, list[WorkerStatus]] = {}
    for worker in page:
        if worker.silent_for > heartbeat_timeout:
            later = [
                successor
                for successor in page
                if successor.name == worker.name and successor.started_at > max(worker.started_at, worker.heartbeat_at)
            ]
            if later:
                earlier.setdefault(max(later, key=lambda successor: successor.started_at).id, []).append(worker)
    replaced = {worker.id for group in earlier.values() for worker in group}
    return [(worker, earlier.get(worker.id, [])) for worker in page if worker.id not in replaced]


def _code(worker: WorkerStatus) -> str:
    """Return a digest of all that a worker's code declares, which differs between versions that declare otherwise."""
    if not worker.declared:
        return ""
    return hashlib.sha256(json.dumps(worker.declared, sort_keys=True).encode()).hexdigest()[:7]


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
