"""Firing schedules: the jobs that are due, and the schedule's next time, in one transaction.

There is no leader. Any number of workers do this concurrently: one of them fires a schedule, under its row lock, and the
others then find it advanced. In addition, a job's id is derived from its schedule and the time it is fired for, and the
schedule's row records the times that were fired, even after their jobs are deleted: each run is enqueued once, even if
`next_fire_at` was changed or a period is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping
from sqlalchemy.orm import Session

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.ids import uuid8_of
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.enqueueing import enqueue_many
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.registry.schedules import MisfirePolicy, Schedule, ScheduleRun
from sa_jobqueue.statements import corrections, schedules

BATCH = 50
"""Most schedules fired in one transaction."""


def fire_schedules(
    session: Session,
    *,
    limit: int = BATCH,
    at: datetime | None = None,
    names: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
    model: type[JobMixin[Any]] = Job,
) -> list[ScheduleRun]:
    """Enqueue the jobs of due schedules and set their next times, as workers do; return one result for each schedule.

    `at` replaces the database's clock. `names`: fire only these. `excluded`: skip these. A schedule without a next time is
    set to its first time, and is not returned.
    Changes: inserts a job for each time; `next_fire_at`, `last_fire_at` and `last_job_id` of the schedules, or their
    `error`.
    Clock: the database's `now()`, the start of this transaction.
    Locks: the schedules, until the transaction ends; those that another transaction fires or changes are skipped.
    Obliges: commit soon, and call again while as many as `limit` are returned.
    """
    given = {"limit": limit, "at": at, "names": None if names is None else list(names), "excluded": list(excluded)}
    due = session.execute(schedules.due(model), given).mappings().all()
    if not due:
        return []
    plans = [_plan(row, model) for row in due]
    planned = [(job.id, plan.name, time) for plan in plans for job, time in zip(plan.jobs, plan.fire_times, strict=True)]
    made = fired_already(session, planned, model)
    enqueue_many(session, [job for plan in plans for job in plan.jobs if job.id not in made], model=model)
    session.execute(schedules.move(model), [plan.moved for plan in plans])
    if new := [plan.fired for plan in plans if plan.fire_times]:
        session.execute(schedules.record_fired(model), new)
    runs = [plan.runs(made) for plan in plans]
    return [fired for fired in runs if fired is not None]


def correct_schedules(session: Session, *, model: type[JobMixin[Any]] = Job) -> list[str]:
    """Have schedules that are to fire later than their expression says fire when it says; return their names.

    A server clock that was ahead leaves such times, and so does `next_fire_at` set by hand beyond the next time: to leave
    times out, pause the schedule. Clock: the database's `now()`. Changes: `next_fire_at`. Locks: those schedules.
    """
    moved = []
    for row in session.execute(corrections.schedules_ahead(model)):
        try:
            following = Cron(row.cron, row.time_zone).after(row.now)
        except InvalidOptionError:
            continue  # the transaction that fires it updates its row
        if following < row.next_fire_at:
            moved.append({"schedule": row.name, "was": row.next_fire_at, "next": following})
    if moved:
        session.execute(corrections.correct_schedule(model), moved)
    return [one["schedule"] for one in moved]


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    fire_times: tuple[datetime, ...] = ()
    jobs: tuple[JobMixin[Any], ...] = ()
    next_fire_at: datetime | None = None
    missed_since: datetime | None = None
    missed: tuple[datetime, datetime] | None = None
    """The first and last time that it left out because no worker fired it in time."""
    error: str | None = None
    follows: datetime | None = None
    """The time that it last fired for, if the first of these times is the next one."""

    @property
    def fired(self) -> dict[str, Any]:
        """The parameters of `statements.schedules.record_fired`: one range as long as no time is left out."""
        return {"schedule": self.name, "first": self.follows or self.fire_times[0], "last": self.fire_times[-1]}

    @property
    def moved(self) -> dict[str, Any]:
        """The parameters of `statements.schedules.move`."""
        return {
            "schedule": self.name,
            "to_next_fire_at": self.next_fire_at,
            "to_last_fire_at": self.fire_times[-1] if self.fire_times else None,
            "to_last_job_id": self.jobs[-1].id if self.jobs else None,
            "to_missed_from": self.missed[0] if self.missed else None,
            "to_missed_until": self.missed[1] if self.missed else None,
            "to_error": self.error,
        }

    def runs(self, made: set[Any]) -> ScheduleRun | None:
        """The result to return; None if only its next time was computed."""
        new = [(time, job.id) for time, job in zip(self.fire_times, self.jobs, strict=True) if job.id not in made]
        times, ids = tuple(time for time, _ in new), tuple(job_id for _, job_id in new)
        fired = ScheduleRun(self.name, times, ids, self.missed_since, self.error)
        return fired if fired != ScheduleRun(self.name) else None


def _plan(row: RowMapping, model: type[JobMixin[Any]]) -> _Plan:
    name, since, now = row["name"], row["next_fire_at"], row["now"]
    try:
        schedule = declared(row)
        following = schedule.times.after(now)
        if since is None:
            job_of(schedule, now, model)  # report what cannot be enqueued now, not when it fires
            return _Plan(name, next_fire_at=following)
        times = schedule.due(since=since, now=now)
        jobs = tuple(job_of(schedule, time, model, id=id_of(name, time, model)) for time in times)
    except (InvalidOptionError, InvalidJobError, ValueError, OverflowError) as error:
        return _Plan(name, error=str(error))
    except Exception as error:  # code of the application: a validator, a constructor
        reason = f"its job cannot be made, {summary(error)}; correct the schedule, or the code that refuses it"
        raise InvalidJobError(f"schedule {name!r}", reason) from error
    if row["is_open"] and not schedule.overlap:
        return _Plan(name, next_fire_at=following, missed_since=since)
    left_out = since if not times or times[0] > since else None
    missed = None
    if left_out is not None and schedule.misfire_policy is not MisfirePolicy.ONE:  # which fires once for all of them
        until = times[0] - timedelta(microseconds=1) if times else now
        missed = (left_out, *(schedule.times.latest(since=left_out, until=until, limit=1) or [left_out]))
    last = row["last_fire_at"]
    follows = last if last is not None and times and schedule.times.after(last) == times[0] else None
    return _Plan(name, tuple(times), jobs, following, left_out, missed, follows=follows)


def declared(row: Mapping[Any, Any]) -> Schedule:
    """Return the schedule defined by a row. Raises: InvalidOptionError if it is invalid."""
    return Schedule(name=row["name"], **{column: row[column] for column in schedules.SETTINGS})


def job_of(schedule: Schedule, fire_time: datetime, model: type[JobMixin[Any]], **more: Any) -> JobMixin[Any]:
    """Describe the job that is fired for a time. Raises: InvalidJobError."""
    return model(
        type_name=schedule.type_name,
        input=schedule.input_at(fire_time),
        input_version=schedule.input_version,
        queue=schedule.queue,
        fairness_key=schedule.fairness_key,
        priority=schedule.priority,
        max_attempts=schedule.max_attempts,
        timeout=schedule.timeout,
        rate_cost=schedule.rate_cost,
        _handler=None,  # the row has all that its declaration said, as the one who stored it meant it
        **more,
    )


def id_of(name: str, fire_time: datetime, model: type[JobMixin[Any]]) -> Any:
    """Return the id of the one job that a schedule makes for a time."""
    job_id = uuid8_of(fire_time, model.__jobqueue__.qualified("job"), name)
    return str(job_id) if model.__jobqueue__.id_type == "text" else job_id


def schedule_of(session: Session, job: JobMixin[Any], model: type[JobMixin[Any]]) -> tuple[str, datetime | None] | None:
    """Return which schedule made a job, and for which time: none for one that was run out of its turn, and made last."""
    found = session.execute(schedules.page(model), {"names": None, "limit": 1_000}).mappings().all()
    runs = time_in(job.id)
    for row in found:
        for time in {row["last_fire_at"], runs} - {None}:
            if id_of(row["name"], time, model) == job.id:
                return row["name"], time
    return next(((row["name"], None) for row in found if row["last_job_id"] == job.id), None)


def time_in(job_id: Any) -> datetime | None:
    """Return the time that an id of `id_of` contains; for other ids an arbitrary time, or None."""
    try:
        number = (job_id if isinstance(job_id, UUID) else UUID(job_id)).int
        return datetime.fromtimestamp((number >> 80) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def fire_times(session: Session, schedule: Schedule, times: Sequence[datetime], model: type[JobMixin[Any]]) -> list[Any]:
    """Enqueue a schedule's jobs for all of its times in a period, each once; return the ids of the new jobs."""
    ids = enqueue_many(session, unfired(session, schedule, times, model), model=model)
    if times:
        session.execute(schedules.record_fired(model), {"schedule": schedule.name, "first": times[0], "last": times[-1]})
    return ids


def fired_already(session: Session, planned: Sequence[tuple[Any, str, datetime]], model: type[JobMixin[Any]]) -> set[Any]:
    """Return those ids that are not to be enqueued again. `planned`: for each its schedule's name and its time."""
    if not planned:
        return set()
    ids, names, times = map(list, zip(*planned, strict=True))
    return set(session.scalars(schedules.fired_already(model), {"ids": ids, "names": names, "times": times}))


def unfired(
    session: Session, schedule: Schedule, times: Sequence[datetime], model: type[JobMixin[Any]]
) -> list[JobMixin[Any]]:
    """Return a schedule's jobs for those of some times that have not fired. Raises: InvalidJobError."""
    jobs = [job_of(schedule, time, model, id=id_of(schedule.name, time, model)) for time in times]
    planned = [(job.id, schedule.name, time) for job, time in zip(jobs, times, strict=True)]
    made = fired_already(session, planned, model)
    return [job for job in jobs if job.id not in made]
