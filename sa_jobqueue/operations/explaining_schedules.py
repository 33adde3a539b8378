"""Why a schedule does not fire, or when it does: one cause, one sentence, and what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.errors import JobNotFoundError, ScheduleNotFoundError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.firing import declared, id_of
from sa_jobqueue.operations.jobs import get_job
from sa_jobqueue.operations.schedules import ScheduleStatus, list_schedules
from sa_jobqueue.operations.spans import span
from sa_jobqueue.operations.workers import list_workers
from sa_jobqueue.registry.schedules import MisfirePolicy
from sa_jobqueue.statements import schedules
from sa_jobqueue.types import ENDED

COUNTED: Final = 100
"""Times that were left out are counted so far and no further."""


class ScheduleCause(StrEnum):
    """Why a schedule does not fire now; the first that holds."""

    BROKEN = "broken"
    """Its row says what is no schedule; it rests until somebody mends it."""
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    """It is due, and no worker is alive to fire it."""
    ABOUT_TO_FIRE = "about_to_fire"
    """It is due, or nobody has worked out its first time yet."""
    OVERLAPPING = "overlapping"
    """The chain of its last job is open, and it lets no two overlap: until that ends its times are left out."""
    WAITING = "waiting"
    """Its time has not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleExplanation:
    """The answer for one schedule."""

    name: str
    cause: ScheduleCause
    sentence: str
    """The answer in words, with what can be done about it where something can."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What was seen, by name. `left_out`: how many of its times since it last fired, or was changed, made no job."""


def explain_schedule(
    session: Session,
    name: str,
    *,
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    model: type[JobMixin[Any]] = Job,
) -> ScheduleExplanation:
    """Say why a schedule does not fire, or when it does: one cause, in words, with the evidence.

    `heartbeat_timeout`: that of the workers; one that has been silent for longer counts as gone. At most 100 times that were
    left out are counted.
    Locks: none. Raises: ScheduleNotFoundError.
    """
    found = list_schedules(session, names=[name], model=model)
    if not found:
        raise ScheduleNotFoundError([name], reason="")
    (one,) = found
    now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    evidence: dict[str, Any] = {
        "next_fire_at": one.next_fire_at,
        "last_fire_at": one.last_fire_at,
        "misfire_policy": one.misfire_policy,
    }
    is_open = _last_job(session, one, evidence, model)
    if one.error is not None:
        told = f"It cannot fire: {one.error}. Mend its row and set its error to null."
        return ScheduleExplanation(name=name, cause=ScheduleCause.BROKEN, sentence=told, evidence=evidence)
    left_out = _left_out(session, one, now, evidence, model)
    if one.paused_at is not None:
        by = f" by {one.paused_by}" if one.paused_by else ""
        told = f"It was paused {span(now - one.paused_at)} ago{by}: sa-jobqueue schedules resume {name}."
        evidence |= {"paused_at": one.paused_at, "paused_by": one.paused_by}
        return ScheduleExplanation(name=name, cause=ScheduleCause.PAUSED, sentence=told + left_out, evidence=evidence)
    if one.next_fire_at is None or one.next_fire_at <= now:
        alive = sum(worker.silent_for <= heartbeat_timeout for worker in list_workers(session, model=model))
        evidence |= {"live_workers": alive, "overdue": one.overdue}
        since = f"It has been due for {span(one.overdue)}" if one.overdue is not None else "Its first time is not worked out"
        if not alive:
            told = f"{since}, and no worker is alive to fire it: start one (sa-jobqueue worker)."
            return ScheduleExplanation(name=name, cause=ScheduleCause.NO_WORKER, sentence=told, evidence=evidence)
        told = f"{since}: a worker is about to see to it."
        return ScheduleExplanation(name=name, cause=ScheduleCause.ABOUT_TO_FIRE, sentence=told, evidence=evidence)
    due = f"in {span(one.next_fire_at - now)}, at {one.next_fire_at}"
    if is_open and not one.overlap:
        told = (
            f"Its last job {one.last_job_id} is still open, and without overlap its times are left out until that ends; the"
        )
        told += f" next one is {due}."
        return ScheduleExplanation(name=name, cause=ScheduleCause.OVERLAPPING, sentence=told + left_out, evidence=evidence)
    told = f"It fires next {due}."
    return ScheduleExplanation(name=name, cause=ScheduleCause.WAITING, sentence=told + left_out, evidence=evidence)


def _last_job(session: Session, one: ScheduleStatus, evidence: dict[str, Any], model: type[JobMixin[Any]]) -> bool:
    """Tell of the job it made last; return whether that job's chain is open."""
    if one.last_job_id is None:
        return False
    try:
        job = get_job(session, one.last_job_id, model=model)
    except JobNotFoundError:  # deleted meanwhile
        return False
    evidence |= {"last_job": job.id, "last_job_status": job.status}
    return job.chain_completed_at is None if job.status in ENDED else True


def _left_out(
    session: Session, one: ScheduleStatus, now: datetime, evidence: dict[str, Any], model: type[JobMixin[Any]]
) -> str:
    """Count its times, since it last fired or was changed, that made no job; return a sentence where there were any."""
    schedule = declared({name: getattr(one, name) for name in ("name", *schedules.TOLD)})
    since = max(one.last_fire_at or one.updated_at, one.updated_at) + timedelta(microseconds=1)
    until = min(now, one.next_fire_at - timedelta(microseconds=1)) if one.next_fire_at is not None else now
    times = schedule.times.latest(since=since, until=until, limit=COUNTED)
    ids = {id_of(one.name, time, model): time for time in times}
    made = set(session.scalars(schedules.made_already(model), {"ids": list(ids)})) if ids else set()
    missed = [time for job_id, time in ids.items() if job_id not in made]
    evidence |= {"left_out": len(missed), "left_out_last": missed[-1] if missed else None}
    if not missed:
        return ""
    why = {
        MisfirePolicy.SKIP: f"no worker fired it within {span(one.grace)}; misfire_policy='skip' leaves out what is later",
        MisfirePolicy.ONE: "it was paused, or overlapped",
        MisfirePolicy.ALL: "it was paused, overlapped, or more were missed than it catches up with",
    }[MisfirePolicy(one.misfire_policy)]
    count = f"{COUNTED} times or more" if len(missed) >= COUNTED else f"{len(missed)} time{'s' * (len(missed) > 1)}"
    return f" Since then {count} made no job, the last at {missed[-1]}: {why}."
