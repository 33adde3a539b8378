"""Job types: settings, workers with a handler, pause and resume."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Context, Outcome, Preview, Screen
from sa_jobqueue.operations import list_job_types, pause_job_types, resume_job_types


def view(context: Context) -> dict[str, Any]:
    """Return the job types that have a row or a worker."""
    params = context.params
    names = params.texts("name", at_most=100)
    with context.read() as session:
        page = list_job_types(session, names=names, after=params.text("after"), limit=200, model=context.model)
    return {
        "types": page.items,
        "names": names,
        "next_url": None if page.next is None else context.url("job-types", after=page.next),
    }


def _asked(context: Context) -> str:
    name = context.params.text("name")
    if name is None:
        raise ParameterError("name", "is missing: the name of a job type")
    return name


def _preview_pause(context: Context, session: Session) -> Preview:
    name = _asked(context)
    found = list_job_types(session, names=[name], model=context.model).items
    by = [one.paused_by for one in found if one.paused_at is not None]
    if by:
        return Preview(count=0, sentence=f"It is already paused, by {by[0] or 'an unknown user'}.")
    what = "No worker starts jobs of the type until it is resumed. Running jobs continue, and what is enqueued waits."
    return Preview(count=1, sentence=what, details=[name])


def _pause(context: Context, session: Session) -> Outcome:
    result = pause_job_types(session, [_asked(context)], by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="paused", ids=result.ids)


def _preview_resume(context: Context, session: Session) -> Preview:
    name = _asked(context)
    found = list_job_types(session, names=[name], model=context.model).items
    if not any(one.paused_at is not None for one in found):
        return Preview(count=0, sentence="It is not paused.")
    return Preview(count=1, sentence="Workers start jobs of the type again.", details=[name])


def _resume(context: Context, session: Session) -> Outcome:
    result = resume_job_types(session, [_asked(context)], by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="resumed", ids=result.ids)


SCREEN = Screen(
    name="job-types",
    title="Job types",
    view=view,
    acts=(
        Act(
            name="pause-job-types",
            title="Pause the job type",
            permission=Permission.PAUSE_JOB_TYPES,
            preview=_preview_pause,
            run=_pause,
        ),
        Act(
            name="resume-job-types",
            title="Resume the job type",
            permission=Permission.RESUME_JOB_TYPES,
            preview=_preview_resume,
            run=_resume,
        ),
    ),
)
