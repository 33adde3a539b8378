"""Schedules: their next times in their own zone, whether they are late, broken or paused; pause, resume, run now, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Context, Outcome, Preview, Screen
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import (
    ScheduleStatus,
    delete_schedules,
    explain_schedule,
    get_schedule,
    list_schedules,
    pause_schedules,
    resume_schedules,
    run_schedule,
)
from sa_jobqueue.operations.explaining_schedules import last_runs

_LISTED: Final = 100
_TIMES: Final = 5
_RUNS: Final = 5


def view(context: Context) -> dict[str, Any]:
    """Return a page of schedules, or one with its next times and its explanation."""
    name = context.params.text("name")
    with context.read() as session:
        now: datetime = session.execute(select(func.now())).scalar_one()
        names = [] if name is None else [name]
        page = list_schedules(session, names=names, after=context.params.text("after"), limit=_LISTED, model=context.model)
        runs = last_runs(session, page.items, until=now, count=_RUNS if name is None else 20, model=context.model)
        one = get_schedule(session, name, model=context.model) if name is not None else None
        heartbeat_timeout = context.source.heartbeat_timeout
        explanation = (
            None
            if name is None
            else explain_schedule(session, name, heartbeat_timeout=heartbeat_timeout, model=context.model)
        )
    return {
        "schedules": [(one, _local(one, one.next_fire_at), runs.get(one.name, [])[:_RUNS]) for one in page],
        "runs": runs.get(name, []) if name is not None else [],
        "one": one,
        "explanation": explanation,
        "times": [] if one is None else _times(one, now),
        "now": now,
        "next_url": None if page.next is None else context.url("schedules", after=page.next),
    }


def _times(one: ScheduleStatus, now: datetime) -> list[tuple[datetime, str]]:
    """Return the next times, each with what clocks in the schedule's zone show then; none of one that cannot fire."""
    try:
        return [(time, _local(one, time)) for time in one.next_times(_TIMES, after=now)]
    except InvalidOptionError:
        return []


def _local(one: ScheduleStatus, time: datetime | None) -> str:
    if time is None:
        return ""
    try:
        return time.astimezone(ZoneInfo(one.time_zone)).strftime("%a %Y-%m-%d %H:%M %Z")
    except (KeyError, ValueError, OSError):  # whatever a row written by hand names
        return ""


def _asked(context: Context) -> str:
    name = context.params.text("name")
    if name is None:
        raise ParameterError("name", "is missing: the name of a schedule")
    return name


def _preview_pause(context: Context, session: Session) -> Preview:
    one = get_schedule(session, _asked(context), model=context.model)
    if one.paused_at is not None:
        return Preview(count=0, sentence=f"It is already paused, by {one.paused_by or 'an unknown user'}.")
    return Preview(
        count=1, sentence="It does not fire until it is resumed. Jobs that it made still run.", details=[one.name]
    )


def _pause(context: Context, session: Session) -> Outcome:
    result = pause_schedules(session, [_asked(context)], by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="paused", ids=result.ids)


def _preview_resume(context: Context, session: Session) -> Preview:
    one = get_schedule(session, _asked(context), model=context.model)
    if one.paused_at is None:
        return Preview(count=0, sentence="It is not paused.")
    return Preview(count=1, sentence="It fires next at its first time from now. What was missed is not caught up.")


def _resume(context: Context, session: Session) -> Outcome:
    result = resume_schedules(session, [_asked(context)], by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="resumed", ids=result.ids)


def _preview_run(context: Context, session: Session) -> Preview:
    one = get_schedule(session, _asked(context), model=context.model)
    what = f"One job of type {one.type_name} is enqueued in queue {one.queue} now. Its next regular time does not change."
    return Preview(count=1, sentence=what)


def _run(context: Context, session: Session) -> Outcome:
    ids = run_schedule(session, _asked(context), by=context.access.user, model=context.model)
    return Outcome(changed=len(ids), sentence="enqueued", details=[f"job {job_id}" for job_id in ids], ids=ids)


def _preview_delete(context: Context, session: Session) -> Preview:
    one = get_schedule(session, _asked(context), model=context.model)
    sentence = "Its row is deleted and it no longer fires. Jobs that it made stay and still run."
    if one.source == "code":
        sentence += " Code declares it: a worker that starts with this declaration creates it again, not paused."
    return Preview(count=1, sentence=sentence, details=[one.name])


def _delete(context: Context, session: Session) -> Outcome:
    result = delete_schedules(session, [_asked(context)], by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="deleted", ids=result.ids)


SCREEN = Screen(
    name="schedules",
    title="Schedules",
    view=view,
    acts=(
        Act(
            name="pause-schedules",
            title="Pause the schedule",
            permission=Permission.PAUSE_SCHEDULES,
            preview=_preview_pause,
            run=_pause,
        ),
        Act(
            name="resume-schedules",
            title="Resume the schedule",
            permission=Permission.RESUME_SCHEDULES,
            preview=_preview_resume,
            run=_resume,
        ),
        Act(
            name="run-schedule",
            title="Run the schedule now",
            permission=Permission.RUN_SCHEDULE,
            preview=_preview_run,
            run=_run,
        ),
        Act(
            name="delete-schedules",
            title="Delete the schedule",
            permission=Permission.DELETE_SCHEDULES,
            preview=_preview_delete,
            run=_delete,
        ),
    ),
)
