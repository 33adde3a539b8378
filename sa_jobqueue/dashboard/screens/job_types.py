"""Job types: settings, workers with a handler, pause and resume, change and delete the settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.screens.base import Act, Context, Outcome, Preview, Screen
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
from sa_jobqueue.registry.settings import Limits, TypeSettings

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
    sample = context.sample().value
    waiting = sample.health.waiting if sample else ()
    return {
        "types": [(one, name, figures.get(name)) for name, one in listed.items()],
        "unhandled": [one for one in waiting if one.cause == Cause.TYPE_UNKNOWN and (not names or one.type_name in names)],
        "names": names,
        "next_url": None if page.next is None else context.url("job-types", after=page.next),
    }


def _preview_pause(context: Context, session: Session) -> Preview:
    given = forms.names(context, "job type")
    result = pause_job_types(session, given, dry_run=True, model=context.model)
    found = list_job_types(session, names=given, model=context.model)
    what = "No worker starts jobs of the type until it is resumed. Running jobs continue, and what is enqueued waits."
    return forms.preview_pause(result, given, {one.type_name: one.paused_by for one in found}, what)


def _pause(context: Context, session: Session) -> Outcome:
    result = pause_job_types(session, forms.names(context, "job type"), by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="paused", ids=result.ids)


def _preview_resume(context: Context, session: Session) -> Preview:
    given = forms.names(context, "job type")
    result = resume_job_types(session, given, dry_run=True, model=context.model)
    return forms.preview_resume(result, given, "Workers start jobs of the type again.")


def _resume(context: Context, session: Session) -> Outcome:
    result = resume_job_types(session, forms.names(context, "job type"), by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="resumed", ids=result.ids)


def _settings(context: Context) -> TypeSettings:
    limits = forms.settings(context, Limits)
    return TypeSettings(type_name=forms.name(context, "job type"), **vars(limits))


def _preview_upsert(context: Context, session: Session) -> Preview:
    settings = _settings(context)
    found = list_job_types(session, names=[settings.type_name], model=context.model).items
    before = {column: getattr(one, column) for one in found for column in settings.row}
    lines = forms.differences(before or TypeSettings(type_name=settings.type_name).row, settings.row)
    is_written = upsert_job_type(session, settings, dry_run=True, model=context.model)
    return Preview(count=int(is_written), sentence="Workers apply the limits from their next claim on.", details=lines)


def _upsert(context: Context, session: Session) -> Outcome:
    settings = _settings(context)
    existing = list_job_types(session, names=[settings.type_name], model=context.model).items
    if any(one.created_at is not None for one in existing):
        existing = [get_job_type(session, settings.type_name, for_update=True, model=context.model)]
    forms.refuse_if_changed(context, existing[0].updated_at if existing else None)
    is_written = upsert_job_type(session, settings, by=context.access.user, model=context.model)
    return Outcome(changed=int(is_written), sentence="set", ids=[settings.type_name] if is_written else [])


def _preview_delete(context: Context, session: Session) -> Preview:
    result = delete_job_types(session, forms.names(context, "job type"), dry_run=True, model=context.model)
    what = "They have no limits then and are not paused. Their jobs stay and run."
    return Preview(count=result.changed, sentence=what, details=forms.cut(result.ids))


def _delete(context: Context, session: Session) -> Outcome:
    result = delete_job_types(session, forms.names(context, "job type"), by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="deleted", ids=result.ids)


SCREEN = Screen(
    name="job-types",
    title="Job types",
    view=view,
    group="Control",
    acts=(
        Act(Permission.PAUSE_JOB_TYPES, "Pause job types", _preview_pause, _pause),
        Act(Permission.RESUME_JOB_TYPES, "Resume job types", _preview_resume, _resume),
        Act(Permission.UPSERT_JOB_TYPE, "Set the limits", _preview_upsert, _upsert),
        Act(Permission.DELETE_JOB_TYPES, "Delete the settings", _preview_delete, _delete),
    ),
)
