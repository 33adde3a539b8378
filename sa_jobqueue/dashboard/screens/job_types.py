"""Job types, and one with figures, charts, errors, workers and settings; pause, resume, change, delete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.activity import activity, folded
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.dashboard.screens.dead_letters import group_error
from sa_jobqueue.observe.minutes import totals
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.registry.settings import Limits, TypeSettings, settings_of

HOUR: Final = timedelta(hours=1)
_WORKERS: Final = 1000
_FAILURES: Final = 20


def view(context: Context) -> dict[str, Any]:
    """Return the job types that have a row or a worker."""
    params = context.params
    names = params.texts("name", at_most=100)
    with context.read() as session:
        page = operations.list_job_types(
            session,
            names=names,
            after=params.text("after"),
            limit=200,
            heartbeat_timeout=context.source.heartbeat_timeout,
            model=context.model,
        )
        now = context.source.now()
        figures = totals(session, since=now - HOUR, by="type_name", model=context.model)
    listed: dict[str, Any] = {status.type_name: status for status in page}
    if not (names or "after" in params or page.next):
        # They have jobs, and neither a row nor a worker.
        listed |= {name: None for name in sorted(figures) if name not in listed}
    report = context.sample().value
    waiting = report.waiting if report else ()
    rows = [(status, name, figures.get(name)) for name, status in listed.items()]
    return {
        "busy": sorted((row for row in rows if not _is_idle(*row)), key=_worst),
        "idle": [row for row in rows if _is_idle(*row)],
        "unhandled": [
            group for group in waiting if group.cause == Cause.TYPE_UNKNOWN and (not names or group.type_name in names)
        ],
        "names": names,
        "next_url": None if page.next is None else context.url("job-types", after=page.next),
    }


def _is_idle(status: Any, name: str, figures: Any) -> bool:
    """Return whether workers know a type, and it had no jobs in the last hour."""
    is_open = status is not None and status.workers > 0 and status.paused_at is None
    return is_open and not (figures and (figures.due or figures.running or figures.completed or figures.failed))


def _worst(row: tuple[Any, str, Any]) -> tuple[Any, ...]:
    _, name, figures = row
    return (0, 0, name) if figures is None else (-figures.due, -(figures.failure_ratio or 0), name)


def view_one(context: Context) -> dict[str, Any]:
    """Return the record of a type; its queue, priority and attempts as its handler declares them."""
    name = context.params.text("name")
    if name is None:
        raise ParameterError("name", "is missing: the name of a job type")
    timeout, model = context.source.heartbeat_timeout, context.model
    with context.read() as session:
        types = operations.list_job_types(session, names=[name], heartbeat_timeout=timeout, model=model).items
        now = context.source.now()
        live = [
            worker
            for worker in operations.list_workers(session, limit=_WORKERS, model=model)
            if now - worker.heartbeat_at <= timeout
        ]
        serving = [worker for worker in live if name in worker.job_types]
        figures = activity(context, session, workers=serving, type_name=name)
    report = context.sample().value
    waiting = report.waiting if report else ()
    failures = [failure for failure in report.latest if failure.type_name == name] if report else []
    return figures | {
        "name": name,
        "heading": f"Job type {name}",
        "status": types[0] if types else None,
        "seen": forms.seen(types[0].updated_at if types else None),
        "unhandled": [group for group in waiting if group.cause == Cause.TYPE_UNKNOWN and group.type_name == name],
        "groups": [(group, group_error(context, group)) for group in report.failures.groups if group.type_name == name]
        if report
        else [],
        "now": now,
        "failures": folded(context, failures)[:_FAILURES],
        "serving": serving,
        "settings": settings_of(Limits),
    }


_ROWS: Final = forms.NamedRows(
    noun="job type", listed=operations.list_job_types, get=operations.get_job_type, name="type_name"
)


def _upsert(context: Context, session: Session) -> Changes:
    name = forms.name(context, "job type")
    settings = TypeSettings(type_name=name, **vars(forms.settings(context, Limits)))
    return _ROWS.upsert(context, session, operations.upsert_job_type, settings, TypeSettings(type_name=name))


SCREEN = Screen(
    name="job-types",
    title="Job types",
    view=view,
    group="Control",
    acts=(
        Act(
            Permission.PAUSE_JOB_TYPES,
            "Pause job types",
            _ROWS.change(operations.pause_job_types, "is already paused"),
            "paused",
            "No worker starts jobs of the type until it is resumed. Running jobs continue, and what is enqueued waits.",
        ),
        Act(
            Permission.RESUME_JOB_TYPES,
            "Resume job types",
            _ROWS.change(operations.resume_job_types, "is not paused"),
            "resumed",
            "Workers start jobs of the type again.",
        ),
        Act(
            Permission.UPSERT_JOB_TYPE,
            "Set the limits",
            _upsert,
            "set",
            "Workers apply the limits from their next claim on.",
        ),
        Act(
            Permission.DELETE_JOB_TYPES,
            "Delete the settings",
            _ROWS.change(operations.delete_job_types, "has no settings"),
            "deleted",
            "They have no limits then and are not paused. Their jobs stay and run.",
        ),
    ),
)
ONE = Screen(name="job-type", title="Job type", view=view_one, part_of="job-types")
