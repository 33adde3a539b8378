"""Job types: settings, workers with a handler, pause and resume, change and delete the settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.observe.minutes import totals
from sa_jobqueue.operations import (
    delete_job_types,
    get_job_type,
    list_job_types,
    pause_job_types,
    resume_job_types,
    upsert_job_type,
)
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.registry.limits import Limits, TypeSettings

HOUR: Final = timedelta(hours=1)


def view(context: Context) -> dict[str, Any]:
    """Return the job types that have a row or a worker."""
    params = context.params
    names = params.texts("name", at_most=100)
    with context.read() as session:
        page = list_job_types(
            session,
            names=names,
            after=params.text("after"),
            limit=200,
            heartbeat_timeout=context.source.heartbeat_timeout,
            model=context.model,
        )
        now = context.source.now()
        figures = totals(session, since=now - HOUR, by="type_name", model=context.model)
    listed: dict[str, Any] = {one.type_name: one for one in page}
    if not (names or "after" in params or page.next):
        # They have jobs, and neither a row nor a worker.
        listed |= {name: None for name in sorted(figures) if name not in listed}
    report = context.sample().value
    waiting = report.waiting if report else ()
    return {
        "types": [(one, name, figures.get(name)) for name, one in listed.items()],
        "unhandled": [one for one in waiting if one.cause == Cause.TYPE_UNKNOWN and (not names or one.type_name in names)],
        "names": names,
        "next_url": None if page.next is None else context.url("job-types", after=page.next),
    }


def _pause(context: Context, session: Session) -> Changes:
    given = forms.names(context, "job type")
    by = {one.type_name: one.paused_by for one in list_job_types(session, names=given, model=context.model)}
    result = pause_job_types(session, given, **context.change)
    return forms.changes(result, given, lambda name: f"is already paused, by {by[name] or 'an unknown user'}")


def _resume(context: Context, session: Session) -> Changes:
    given = forms.names(context, "job type")
    return forms.changes(resume_job_types(session, given, **context.change), given, lambda name: "is not paused")


def _upsert(context: Context, session: Session) -> Changes:
    settings = TypeSettings(type_name=forms.name(context, "job type"), **vars(forms.settings(context, Limits)))
    one = next(iter(list_job_types(session, names=[settings.type_name], model=context.model)), None)
    if not context.is_preview:
        if one is not None and one.created_at is not None:
            one = get_job_type(session, settings.type_name, for_update=True, model=context.model)
        forms.refuse_if_changed(context, one.updated_at if one else None)
    default = TypeSettings(type_name=settings.type_name).row
    before = default if one is None else {column: getattr(one, column) for column in default}
    is_written = upsert_job_type(session, settings, **context.change)
    return Changes(count=int(is_written), details=forms.differences(before, settings.row), ids=[settings.type_name])


def _delete(context: Context, session: Session) -> Changes:
    given = forms.names(context, "job type")
    return forms.changes(delete_job_types(session, given, **context.change), given, lambda name: "has no settings")


SCREEN = Screen(
    name="job-types",
    title="Job types",
    view=view,
    group="Control",
    acts=(
        Act(
            Permission.PAUSE_JOB_TYPES,
            "Pause job types",
            _pause,
            "paused",
            "No worker starts jobs of the type until it is resumed. Running jobs continue, and what is enqueued waits.",
        ),
        Act(Permission.RESUME_JOB_TYPES, "Resume job types", _resume, "resumed", "Workers start jobs of the type again."),
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
            _delete,
            "deleted",
            "They have no limits then and are not paused. Their jobs stay and run.",
        ),
    ),
)
