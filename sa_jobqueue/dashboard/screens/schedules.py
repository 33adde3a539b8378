"""Schedules: their next times in their own zone, whether they are late, broken or paused; their acts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations.explaining_schedules import last_runs
from sa_jobqueue.operations.schedules import time_in
from sa_jobqueue.registry.schedules import SETTINGS as COLUMNS
from sa_jobqueue.registry.schedules import MisfirePolicy, Schedule

_LISTED: Final = 100
_TIMES: Final = 5
_RUNS: Final = 5
MAX_INPUT: Final = 100_000
"""Maximum number of characters of an input in a form."""


def view(context: Context) -> dict[str, Any]:
    """Return a page of schedules, or one with its next times and its explanation."""
    name = context.params.text("name")
    with context.read() as session:
        now: datetime = session.execute(select(func.now())).scalar_one()
        names = [] if name is None else [name]
        page = operations.list_schedules(
            session, names=names, after=context.params.text("after"), limit=_LISTED, model=context.model
        )
        runs = last_runs(session, page.items, until=now, count=_RUNS if name is None else 20, model=context.model)
        status = operations.get_schedule(session, name, model=context.model) if name is not None else None
        heartbeat_timeout = context.source.heartbeat_timeout
        explanation = (
            None
            if name is None
            else operations.explain_schedule(session, name, heartbeat_timeout=heartbeat_timeout, model=context.model)
        )
    default = Schedule(name="new", cron="* * * * *", type_name="new")
    return ({} if status is None else {"heading": f"Schedule {status.name}"}) | {
        "form": {column: getattr(status or default, column) for column in COLUMNS}
        | ({} if status else {"cron": "", "type_name": ""}),
        "input": _entered(context, status),
        "seen": forms.seen(status.updated_at if status else None),
        "policies": list(MisfirePolicy),
        "zones": sorted(available_timezones()),
        "schedules": [
            (schedule, _local(schedule, schedule.next_fire_at), runs.get(schedule.name, [])[:_RUNS]) for schedule in page
        ],
        "runs": runs.get(name, []) if name is not None else [],
        "status": status,
        "explanation": explanation,
        "times": [] if status is None else _times(status, now),
        "now": now,
        "next_url": None if page.next is None else context.url("schedules", after=page.next),
    }


def _entered(context: Context, schedule: operations.ScheduleStatus | None) -> Any:
    """Return the input of a schedule for a form field; empty if it is too long or redacted."""
    if (
        schedule is None
        or schedule.input is None
        or _is_hidden(context, schedule)
        or len(json.dumps(schedule.input)) > MAX_INPUT
    ):
        return None
    return schedule.input


def _times(schedule: operations.ScheduleStatus, now: datetime) -> list[tuple[datetime, str]]:
    """Return the next times, each with the local time in the schedule's zone; empty for a schedule that cannot fire."""
    try:
        return [(time, _local(schedule, time)) for time in schedule.next_times(_TIMES, after=now)]
    except InvalidOptionError:
        return []


def _local(schedule: operations.ScheduleStatus, time: datetime | None) -> str:
    if time is None:
        return ""
    try:
        return time.astimezone(ZoneInfo(schedule.time_zone)).strftime("%a %Y-%m-%d %H:%M %Z")
    except (KeyError, ValueError, OSError):  # whatever a row written by hand names
        return ""


_ROWS: Final = forms.NamedRows(noun="schedule", listed=operations.list_schedules, get=operations.get_schedule)


def _run(context: Context, session: Session) -> Changes:
    since, until = context.params.instant("since"), context.params.instant("until")
    ids: list[Any] = []
    lines = []
    for name in forms.names(context, "schedule"):
        schedule = operations.get_schedule(session, name, model=context.model)
        job_ids = operations.run_schedule(session, name, since=since, until=until, **context.change)
        where = f"queue {schedule.queue}" if schedule.queue else "the queue of the type"
        jobs = f"{len(job_ids):,} {'job' if len(job_ids) == 1 else 'jobs'} of type {schedule.type_name} in {where}"
        times = [time for time in map(time_in, job_ids) if time is not None] if since else []
        lines.append(f"{name}: {jobs}" + (f", for times from {_utc(times[0])} to {_utc(times[-1])}" if times else ""))
        ids += job_ids
    effect = "Jobs are enqueued now. The next regular times do not change."
    if since:
        effect = "A job is enqueued for each time of the period that did not fire. The next regular times do not change."
    if not context.is_preview:
        lines = [f"job {job_id}" for job_id in ids]
    return Changes(count=len(ids), effect=effect, details=forms.cut(lines), ids=ids)


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _settings(context: Context, before: operations.ScheduleStatus | None) -> Schedule:
    """Return the schedule in a form; an empty field has the default, an empty input stays as it is."""
    params = context.params
    fields: dict[str, Any] = {
        **{name: params.text(name) for name in ("type_name", "queue", "fairness_key", "time_zone", "fire_time_field")},
        **{name: params.whole(name) for name in ("priority", "max_attempts", "rate_cost", "input_version", "catch_up")},
        **{name: params.duration(name) for name in ("timeout", "grace")},
        "misfire_policy": params.text("misfire_policy"),
    }
    if fields["type_name"] is None:
        raise ParameterError("type_name", "is missing: the job type that it enqueues")
    if "input" in params:
        fields["input"] = params.document("input", longest=MAX_INPUT)
    elif before is not None:
        if fields["type_name"] != before.type_name and _is_hidden(context, before):
            raise ParameterError("type_name", "cannot change while the input, which you may not see, stays as it is")
        fields["input"] = before.input
    set_ = {name: value for name, value in fields.items() if value is not None}
    cron = params.text("cron") or ""
    return Schedule(name=forms.name(context, "schedule"), cron=cron, overlap=params.flag("overlap"), **set_)


def _is_hidden(context: Context, schedule: operations.ScheduleStatus) -> bool:
    return bool(context.payload(schedule.type_name, schedule.input) != schedule.input)


def _upsert(context: Context, session: Session) -> Changes:
    before = _ROWS.locked(context, session)
    schedule = _settings(context, before)
    is_written = operations.upsert_schedule(session, schedule, **context.change)
    now: datetime = session.execute(select(func.now())).scalar_one()
    old, new = ({column: getattr(version, column, None) for column in COLUMNS} for version in (before, schedule))
    lines = forms.differences(old, new, hidden=("input",)) if before else []
    times = [
        f"{time.astimezone(ZoneInfo(schedule.time_zone)):%a %Y-%m-%d %H:%M %Z}" for time in schedule.times.times(now, _TIMES)
    ]
    effect = f"{schedule.times.in_words or 'It fires'}, next at {', '.join(times)}."
    if before is not None and before.paused_at is not None:
        effect += " It is paused and stays so."
    # The page does not reveal whether an entered input equals one that the user may not see.
    is_guess = before is not None and "input" in context.params and _is_hidden(context, before)
    return Changes(count=int(is_written or is_guess), effect=effect, details=lines, ids=[schedule.name])


def _delete(context: Context, session: Session) -> Changes:
    schedule_names = forms.names(context, "schedule")
    declared = [
        schedule.name
        for schedule in operations.list_schedules(session, names=schedule_names, model=context.model)
        if schedule.source == "code"
    ]
    changes = _ROWS.change(operations.delete_schedules, "does not exist")(context, session)
    effect = "Its row is deleted and it no longer fires. Jobs that it made stay and still run."
    if declared:
        effect += (
            f" Code declares {', '.join(declared[: forms.LISTED])}: a worker that starts with this declaration creates it "
            "again, not paused."
        )
    return replace(changes, effect=effect)


SCREEN = Screen(
    name="schedules",
    title="Schedules",
    view=view,
    group="Control",
    acts=(
        Act(
            Permission.PAUSE_SCHEDULES,
            "Pause schedules",
            _ROWS.change(operations.pause_schedules, "is already paused"),
            "paused",
            "It does not fire until it is resumed. Jobs that it made still run.",
        ),
        Act(
            Permission.RESUME_SCHEDULES,
            "Resume schedules",
            _ROWS.change(operations.resume_schedules, "is not paused"),
            "resumed",
            "A paused one fires next at its first time from now. What was missed is not run, and no longer a finding.",
        ),
        Act(Permission.RUN_SCHEDULE, "Run schedules", _run, "enqueued"),
        Act(Permission.UPSERT_SCHEDULE, "Set the schedule", _upsert, "set"),
        Act(Permission.DELETE_SCHEDULES, "Delete schedules", _delete, "deleted", deletes_from="schedules"),
    ),
)
