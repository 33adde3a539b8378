"""Return why the schedule `name` does not fire, or when it fires next: a cause, a sentence, and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.display.printable import span
from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.bounded import BoundedReads
from sa_jobqueue.operations.jobs import get_job
from sa_jobqueue.operations.lock_holders import LockHolder
from sa_jobqueue.operations.schedules import ScheduleStatus, declared, get_schedule, id_of, unfired
from sa_jobqueue.operations.workers import list_workers
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.registry.schedules import SETTINGS, MisfirePolicy
from sa_jobqueue.statements import explaining, jobs, quarantine
from sa_jobqueue.types import ENDED, JobStatus, RefusedWrite

COUNTED: Final = 100
"""Limit of the count of skipped times."""
_FIRED_WITHIN: Final = timedelta(seconds=30)
"""How soon a worker fires a schedule that is due."""


class ScheduleCause(StrEnum):
    """Why a schedule does not fire now; the first cause that applies."""

    BROKEN = "broken"
    """Its row is invalid; it does not fire until the row is corrected."""
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    """It is due, and no worker is alive to fire it."""
    QUARANTINED = "quarantined"
    """It is due, and the database rejects a write for it; the write is retried."""
    LOCKED = "locked"
    """It is due, and another session has locked its row, so that no worker can fire it."""
    NOT_MEASURED = "not_measured"
    """Its cause could not be read: a statement was cancelled, or a replica does not show it."""
    ABOUT_TO_FIRE = "about_to_fire"
    """It is due, or its first time is not computed yet."""
    OVERLAPPING = "overlapping"
    """The chain of its last job has not ended and `overlap` is off: its times are skipped until then."""
    WAITING = "waiting"
    """Its time has not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleExplanation:
    """The explanation of one schedule."""

    name: str
    cause: ScheduleCause
    sentence: str
    """The explanation as text, with what to do, if anything."""
    reason: str = ""
    """Of a schedule that is due, the part of the sentence that says why it does not fire, as a clause; empty for others."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Facts by name. `left_out`: number of its times since it last fired or was changed that created no job."""


def explain_schedule(
    session: Session,
    name: str,
    *,
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    timeout: timedelta | None = None,
    model: JobClass = Job,
) -> ScheduleExplanation:
    """Return why the schedule `name` does not fire, or when it fires next: a cause, a sentence, and evidence.

    `heartbeat_timeout`: that of the workers. `timeout`: of each statement, in a savepoint; if one takes longer, the
    explanation says whose lock it may wait for. At most 100 skipped times are counted.
    Raises: NotFoundError.
    """
    reads = BoundedReads(session, timeout)
    with reads.limited():
        explanation: Any = None
        with reads.part(f"schedule {name!r}"):
            explanation = _explained(session, name, heartbeat_timeout, model)
        if explanation is not None:
            return cast("ScheduleExplanation", explanation)
        sentence = f"It is not known when it fires.{reads.reason(model)}"
        evidence = {"missing": reads.missing}
        return ScheduleExplanation(name=name, cause=ScheduleCause.NOT_MEASURED, sentence=sentence, evidence=evidence)


def _explained(session: Session, name: str, heartbeat_timeout: timedelta, model: JobClass) -> ScheduleExplanation:
    schedule = get_schedule(session, name, model=model)
    now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    evidence: dict[str, Any] = {
        "next_fire_at": schedule.next_fire_at,
        "last_fire_at": schedule.last_fire_at,
        "misfire_policy": schedule.misfire_policy,
    }
    is_open = _last_job(session, schedule, evidence, model)
    error = schedule.error
    try:
        declared({column: getattr(schedule, column) for column in ("name", *SETTINGS)})
    except InvalidOptionError as invalid:  # no worker has tried to fire it yet
        error = error or str(invalid)
    if error is not None:
        sentence = f"It cannot fire: {error}. Set it again with a valid definition (sa-jobqueue schedules set)."
        return ScheduleExplanation(name=name, cause=ScheduleCause.BROKEN, sentence=sentence, evidence=evidence)
    left_out = _left_out(session, schedule, now, evidence, model)
    reason = ""
    if schedule.paused_at is not None:
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        evidence |= {"paused_at": schedule.paused_at, "paused_by": schedule.paused_by}
        cause = ScheduleCause.PAUSED
        sentence = f"It was paused {span(now - schedule.paused_at)} ago{by}: sa-jobqueue schedules resume {name}."
    elif schedule.next_fire_at is None or schedule.next_fire_at <= now:
        left_out = ""  # not counted yet
        cause, reason = _due(session, schedule, heartbeat_timeout, evidence, model)
        due_for = (
            "Its first time is not computed yet"
            if schedule.overdue is None
            else f"It has been due for {span(schedule.overdue)}"
        )
        sentence = f"{due_for}; {reason}."
    else:
        due = f"in {span(schedule.next_fire_at - now)}, at {schedule.next_fire_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        cause, sentence = ScheduleCause.WAITING, f"It fires next {due}."
        if is_open and not schedule.overlap:
            cause = ScheduleCause.OVERLAPPING
            sentence = (
                f"Its last job {schedule.last_job_id} has not ended, and without overlap its times are skipped until then;"
            )
            sentence += f" the next one is {due}."
    return ScheduleExplanation(name=name, cause=cause, sentence=sentence + left_out, reason=reason, evidence=evidence)


def _due(
    session: Session, schedule: ScheduleStatus, heartbeat_timeout: timedelta, evidence: dict[str, Any], model: JobClass
) -> tuple[ScheduleCause, str]:
    """Return why a due schedule does not fire, as a clause."""
    late = schedule.overdue or timedelta(0)
    evidence |= {"overdue": schedule.overdue}
    if session.execute(select(func.pg_is_in_recovery())).scalar_one():
        why = "a replica does not show the workers, sessions and locks of its primary: explain it there"
        return ScheduleCause.NOT_MEASURED, why
    workers = list_workers(session, model=model).items
    alive = sum(worker.silent_for <= heartbeat_timeout for worker in workers)
    evidence |= {"live_workers": alive}
    if not alive:
        who = "no worker has a recent heartbeat" if workers else "no worker is registered"
        return ScheduleCause.NO_WORKER, f"{who}: start one (sa-jobqueue worker)"
    parameters = {"subjects": [schedule.name], "limit": len(RefusedWrite)}
    for refused in session.execute(quarantine.page(model), parameters).mappings():
        if refused["statement"] in {RefusedWrite.FIRE, RefusedWrite.DECLARE}:
            evidence |= {"error": refused["error"], "failures": refused["failures"]}
            why = f"the database rejects the write: {refused['error']}"
            return ScheduleCause.QUARANTINED, f"{why}. Correct the row, or the constraint or trigger"
    row = session.execute(explaining.schedule_locked_by(model), {"name": schedule.name}).mappings().first()
    if row is not None and late > _FIRED_WITHIN and (holder := LockHolder.of_row(row)).is_old:
        evidence |= {"locked_by": holder.pid, "locked_for": holder.locked_for}
        return ScheduleCause.LOCKED, f"{holder.description} has locked its row; {holder.remedy()}"
    if late > _FIRED_WITHIN:
        todo = "a live worker should have fired it by now: see the logs of the workers"
        return ScheduleCause.ABOUT_TO_FIRE, todo
    return ScheduleCause.ABOUT_TO_FIRE, "a worker is about to fire it"


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A time of a schedule, and the job that was created for it."""

    fire_time: datetime
    job_id: Any
    """None if no job was created, or it was deleted."""
    status: JobStatus | None


def last_runs(
    session: Session, schedules: Sequence[ScheduleStatus], *, until: datetime, count: int = 5, model: JobClass = Job
) -> dict[str, list[ScheduleRun]]:
    """Return the last times of schedules before `until` with their jobs, by name, newest first; none of an invalid one.

    One statement: the id of a job that a schedule creates follows from its name and time. Times before the schedule was
    created are left out.
    """
    times: dict[str, dict[Any, datetime]] = {}
    for schedule in schedules:
        try:
            cron = Cron(schedule.cron, schedule.time_zone)
        except InvalidOptionError:
            continue
        fire_times = cron.latest(since=schedule.created_at, until=until, limit=count)
        times[schedule.name] = {id_of(schedule.name, time, model): time for time in fire_times}
    ids = [job_id for time_by_id in times.values() for job_id in time_by_id]
    rows = session.execute(jobs.named(model, ("id", "status")), {"ids": ids}).all() if ids else []
    statuses = {row.id: row.status for row in rows}
    return {
        name: [
            ScheduleRun(time, job_id if job_id in statuses else None, statuses.get(job_id))
            for job_id, time in sorted(time_by_id.items(), key=lambda pair: pair[1], reverse=True)
        ]
        for name, time_by_id in times.items()
    }


def _last_job(session: Session, schedule: ScheduleStatus, evidence: dict[str, Any], model: JobClass) -> bool:
    """Add its last job to the evidence; return whether that job's chain is open."""
    if schedule.last_job_id is None:
        return False
    try:
        job = get_job(session, schedule.last_job_id, model=model)
    except NotFoundError:  # deleted meanwhile
        return False
    evidence |= {"last_job": job.id, "last_job_status": job.status}
    return job.chain_completed_at is None if job.status in ENDED else True


def _left_out(session: Session, schedule: ScheduleStatus, now: datetime, evidence: dict[str, Any], model: JobClass) -> str:
    """Count its times since it last fired or was changed that created no job; return a sentence if there are any."""
    since = max(schedule.last_fire_at or schedule.updated_at, schedule.updated_at) + timedelta(microseconds=1)
    since = min(since, schedule.missed_from or since)
    until = min(now, schedule.next_fire_at - timedelta(microseconds=1)) if schedule.next_fire_at is not None else now
    times = Cron(schedule.cron, schedule.time_zone).latest(since=since, until=until, limit=COUNTED)
    missed = unfired(session, {schedule.name: times}, model)[schedule.name]
    evidence |= {"left_out": len(missed), "left_out_last": missed[-1] if missed else None}
    if not missed:
        return ""
    why = {
        MisfirePolicy.SKIP: f"no worker fired it within {span(schedule.grace)}; misfire_policy='skip' skips later times",
        MisfirePolicy.ONE: "it was paused, or overlapped",
        MisfirePolicy.ALL: "it was paused, overlapped, or more were missed than it fires late",
    }[MisfirePolicy(schedule.misfire_policy)]
    count = f"{COUNTED} times or more" if len(missed) >= COUNTED else f"{len(missed)} time{'s' * (len(missed) > 1)}"
    return f" Lately {count} created no job, the last at {missed[-1]}: {why}."
