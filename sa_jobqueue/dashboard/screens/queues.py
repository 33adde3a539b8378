"""Queues and fairness keys, and one with charts, limits in use and settings; pause, resume, change, delete the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.activity import activity
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.dashboard.screens.fairness_keys import keys
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.registry.settings import QueueColumns, QueueSettings, settings_of
from sa_jobqueue.statements import limits

_WORKERS: Final = 1000
_KEYS: Final = 20
_LIMITS: Final = 1000


def view(context: Context) -> dict[str, Any]:
    """Return the queues that have a row or a worker, with the figures of the cached report."""
    params = context.params
    names = params.texts("name", at_most=100)
    after = (params.text("after") or "", params.text("after_key") or "") if "after" in params else None
    with context.read() as session:
        page = operations.list_queues(
            session,
            names=names,
            after=after,
            limit=200,
            heartbeat_timeout=context.source.heartbeat_timeout,
            model=context.model,
        )
    sample = context.sample()
    report = sample.value
    depths = {(depth.queue, depth.fairness_key): depth for depth in report.queues} if report else {}
    rates = {rate.queue: rate for rate in report.rates.queues} if report else {}
    listed: dict[tuple[str, str], Any] = {(status.name, status.fairness_key): status for status in page}
    if not (names or after or page.next):
        # Jobs wait in them, and they have neither a row nor a worker.
        listed |= {key: None for key in depths if key not in listed}
    rows = [(status, *key, depths.get(key), None if key[1] else rates.get(key[0])) for key, status in listed.items()]
    return {
        "busy": sorted((row for row in rows if not _is_idle(*row)), key=_worst),
        "idle": [row for row in rows if _is_idle(*row)],
        "report": report,
        # Without a count, a queue that has none is not known to be empty.
        "is_counted": report is not None and "queues" not in report.missing,
        "sample": sample,
        "names": names,
        "next_url": None if page.next is None else context.url("queues", after=page.next[0], after_key=page.next[1]),
    }


def _is_idle(status: Any, name: str, fairness_key: str, depth: Any, rate: Any) -> bool:
    """Return whether workers serve a queue, and it has no jobs."""
    is_open = status is not None and status.workers > 0 and status.paused_at is None
    return is_open and not (depth and (depth.due or depth.later)) and not (rate and (rate.arrived or rate.completed))


def _worst(row: tuple[Any, str, str, Any, Any]) -> tuple[Any, ...]:
    _, name, fairness_key, depth, _ = row
    return -(depth.claim_age.total_seconds() if depth and depth.due else 0), -(depth.due if depth else 0), name, fairness_key


def view_one(context: Context) -> dict[str, Any]:
    """Return the record of a queue, and its keys with the most due jobs; of a key its own counts."""
    name, key = context.params.text("name"), context.params.text("fairness_key") or ""
    if name is None:
        raise ParameterError("name", "is missing: the name of a queue")
    timeout, model = context.source.heartbeat_timeout, context.model
    with context.read() as session:
        statuses = operations.list_queues(
            session, names=[name], fairness_key=key, heartbeat_timeout=timeout, model=model
        ).items
        now = context.source.now()
        where = operations.WorkerFilter(queues=[name])
        workers = operations.list_workers(session, where=where, limit=_WORKERS, model=model)
        live = [worker for worker in workers if now - worker.heartbeat_at <= timeout]
        figures = {} if key else activity(context, session, workers=live, queue=name)
        rows = keys(context, session, queue=name, prefix=key, order="key" if key else "due", limit=1 if key else _KEYS)
        running = session.execute(limits.running_by_fairness_key(model), {"queue": name}).all()
        state = session.execute(limits.current(model), {"limit": _LIMITS}).all()
    rate = next((Rate.of(row) for row in state if (row.is_type, row.name, row.fairness_key) == (False, name, key)), None)
    return figures | {
        "name": name,
        "key": key,
        "heading": f"Fairness key {key}" if key else f"Queue {name}",
        "status": statuses[0] if statuses else None,
        "running": sum(row.n for row in running if not key or row.fairness_key == key),
        "rate": rate,
        "keys": [pair for pair in rows if not key or pair[0].fairness_key == key],
        "now": now,
        "workers": live,
        "seen": forms.seen(statuses[0].updated_at if statuses else None),
        "settings": {column: setting for column, setting in settings_of(QueueColumns).items() if setting.of_keys or not key},
    }


def _titles(context: Context, key: str) -> Callable[[str], str]:
    """Return a function that returns a queue with the number of its due jobs, by the cached report."""
    report = context.sample().value
    depths = {depth.queue: depth for depth in report.queues if depth.fairness_key == key} if report else {}

    def title(name: str) -> str:
        due = depths.get(name)
        jobs = f", {due.due:,}{' or more' if due.is_capped else ''} jobs due" if due else ""
        return f"{QueueKey(name, key).named}{jobs}"

    return title


_ROWS: Final = forms.NamedRows(
    noun="queue", listed=operations.list_queues, get=operations.get_queue, has_keys=True, titles=_titles
)


def _upsert(context: Context, session: Session) -> Changes:
    columns = forms.settings(context, QueueColumns)
    if columns.retry_base is None and (columns.retry_factor, columns.retry_cap) != (None, None):
        raise ParameterError("retry_base", "is missing: a backoff has an initial wait")
    name, key = forms.name(context, "queue"), _ROWS.key(context)["fairness_key"]
    default = QueueSettings(name=name, fairness_key=key)
    return _ROWS.upsert(context, session, operations.upsert_queue, columns.of_queue(name, key), default)


SCREEN = Screen(
    name="queues",
    title="Queues",
    view=view,
    group="Control",
    acts=(
        Act(
            Permission.PAUSE_QUEUES,
            "Pause queues",
            _ROWS.change(operations.pause_queues, "is already paused"),
            "paused",
            "No worker starts its jobs until it is resumed. Running jobs continue, and what is enqueued waits.",
        ),
        Act(
            Permission.RESUME_QUEUES,
            "Resume queues",
            _ROWS.change(operations.resume_queues, "is not paused"),
            "resumed",
            "Workers start its jobs again.",
        ),
        Act(
            Permission.UPSERT_QUEUE,
            "Set the queue",
            _upsert,
            "set",
            "Workers apply the settings from their next claim on. What code declares comes back with `queues sync`.",
        ),
        Act(
            Permission.DELETE_QUEUES,
            "Delete the settings",
            _ROWS.change(operations.delete_queues, "has no settings"),
            "deleted",
            "The defaults hold for them then, and they are not paused. Their jobs stay and run. What code declares comes "
            "back with `queues sync`, and with the next worker that starts.",
        ),
    ),
)
ONE = Screen(name="queue", title="Queue", view=view_one, part_of="queues")
