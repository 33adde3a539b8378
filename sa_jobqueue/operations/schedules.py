"""Schedules: declare, list, pause and fire them: the jobs that are due, and the schedule's next time, in one transaction.

There is no leader. Any number of workers do this concurrently: one of them fires a schedule, under its row lock, and the
others then find it advanced. In addition, a job's id is derived from its schedule and the time it is fired for, and the
schedule's row records the times that were fired, even after their jobs are deleted: each run is enqueued once, even if
`next_fire_at` was changed or a period is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, NotFoundError
from sa_jobqueue.ids import uuid8_of
from sa_jobqueue.models import Job, JobClass, JobMixin
from sa_jobqueue.models.options import OF_SCHEDULES
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.named_rows import UNWRITTEN_SCHEDULE, Change
from sa_jobqueue.operations.pages import MAX_PAGE, BulkResult, Page
from sa_jobqueue.operations.writer import write_many
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.registry.schedules import (
    MAX_CATCH_UP,
    SETTINGS,
    MisfirePolicy,
    Schedule,
    ScheduleColumns,
    ScheduleRun,
)
from sa_jobqueue.statements import controls, corrections, named_rows, schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus(ScheduleColumns):
    """Definition and state of a schedule. The fields from `name` to `overlap` are those of `Schedule`."""

    source: str
    """Where it is defined: `code`, or the `table`."""
    paused_at: datetime | None
    """When it was paused; None if it is not."""
    paused_by: str | None
    """Who paused it; None if it is not paused or no user was given."""
    next_fire_at: datetime | None
    """The next time; None if it has not been computed yet, or the schedule cannot fire."""
    last_fire_at: datetime | None
    """The last time that it fired for; None before the first."""
    last_job_id: Any
    """Id of its last job, which may have been deleted; None before the first."""
    missed_from: datetime | None
    """The first time that it left out, until it is run or acknowledged by `resume_schedules`; None for none."""
    missed_until: datetime | None
    """The last such time."""
    error: str | None
    """Why it cannot fire."""
    created_at: datetime
    """When its row was inserted."""
    updated_at: datetime
    """When an operation last changed its row."""
    overdue: timedelta | None
    """How long it has been due; None if it is not. More than a few seconds: no worker runs."""

    @property
    def in_words(self) -> str | None:
        """Return when it fires in words, such as "At 03:00 every day"; None if the expression is invalid."""
        try:
            return Cron(self.cron, self.time_zone).in_words
        except InvalidOptionError:
            return None

    def missed_times(self, limit: int) -> list[datetime]:
        """Return the last `limit` times from `missed_from` to `missed_until`; empty if the expression is invalid."""
        if self.missed_from is None or self.missed_until is None:
            return []
        try:
            times = Cron(self.cron, self.time_zone).latest(since=self.missed_from, until=self.missed_until, limit=limit)
        except InvalidOptionError:
            return []
        return times or [self.missed_from]

    def next_times(self, count: int, *, after: datetime) -> list[datetime]:
        """Return its next `count` times after an instant, whether or not it is paused.

        `after`: aware.
        Raises: InvalidOptionError if it has none.
        """
        return Cron(self.cron, self.time_zone).times(after, count)


HIDDEN: Final = "(hidden)"


@dataclass(frozen=True, slots=True)
class SyncedSchedules:
    """Changes made by `sync_schedules`."""

    created: tuple[str, ...] = ()
    """Schedules that had no row."""
    changed: tuple[str, ...] = ()
    """Schedules whose row had another definition."""
    unchanged: tuple[str, ...] = ()
    """Schedules whose row already had the declared definition."""
    undeclared: dict[str, str] = field(default_factory=dict)
    """Schedules, with their job types, that code once declared and this code does not. They stay and fire."""
    differences: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    """By changed schedule and column: the old and the new value of its row, `HIDDEN` for its payload."""


def sync_schedules(
    session: Session, new: Iterable[Schedule], *, by: str | None = None, model: JobClass = Job
) -> SyncedSchedules:
    """Synchronise the rows of schedules with the declarations in code, as a worker does when it starts; return the changes.

    `new`: `jobs.schedules` of a `JobQueue`. Nothing is deleted, and paused schedules stay paused.
    Changes: rows that differ: the worker that starts last decides. If the times of a schedule
    changed, it fires next at its first new time after now.
    Locks: the rows written, in the order of their names.
    Raises: InvalidOptionError for a name that is declared twice.
    """
    declared_here = sorted(new, key=lambda schedule: schedule.name)
    names = [schedule.name for schedule in declared_here]
    twice = next((name for name, following in pairwise(names) if name == following), None)
    if twice is not None:
        raise InvalidOptionError("new", f"declares {twice!r} twice; a name is one schedule")
    now = _now(session)
    stored = {row["name"]: row for row in _rows(session, names, model, for_update=False)} if names else {}
    is_new_by_name = {schedule.name: _put(session, schedule, "code", now, model) for schedule in declared_here}
    differences = _differences([schedule for schedule in declared_here if is_new_by_name[schedule.name] is False], stored)
    undeclared_rows = session.execute(schedules.declared_elsewhere(model), {"names": names})
    if any(is_new is not None for is_new in is_new_by_name.values()):
        session.execute(controls.notify_rules(model))
    written_names = [name for name, is_new in is_new_by_name.items() if is_new is not None]
    record(session, "sync_schedules", by=by, ids=written_names, matched=len(names), model=model, differences=differences)
    return SyncedSchedules(
        created=tuple(name for name, is_new in is_new_by_name.items() if is_new),
        changed=tuple(name for name, is_new in is_new_by_name.items() if is_new is False),
        unchanged=tuple(name for name, is_new in is_new_by_name.items() if is_new is None),
        undeclared={row.name: row.type_name for row in undeclared_rows},
        differences=differences,
    )


def schedule_differences(
    session: Session, declared: Iterable[Schedule], *, model: JobClass = Job
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return where the rows of schedules differ from their declarations, as `SyncedSchedules.differences`. Locks: none."""
    schedule_by_name = {schedule.name: schedule for schedule in declared}
    rows = _rows(session, list(schedule_by_name), model, for_update=False)
    return _differences(schedule_by_name.values(), {row["name"]: row for row in rows})


def _differences(declared: Iterable[Schedule], stored: Mapping[str, RowMapping]) -> dict[str, dict[str, tuple[Any, Any]]]:
    differences = {
        schedule.name: {
            column: (HIDDEN, HIDDEN) if column == "input" else (stored[schedule.name][column], getattr(schedule, column))
            for column in SETTINGS
            if stored[schedule.name][column] != getattr(schedule, column)
        }
        for schedule in declared
        if schedule.name in stored
    }
    return {name: columns for name, columns in differences.items() if columns}


def upsert_schedule(
    session: Session, schedule: Schedule, *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> bool:
    """Insert or replace a schedule that the application creates at run time; return whether anything changed.

    `schedule`: its complete definition. Changes, Locks: as `sync_schedules`, of one schedule.
    Raises: InvalidOptionError if code declares a schedule with this name; InvalidJobError if its jobs could not be
    enqueued.
    """
    now = _now(session)
    job_of(schedule, now, model)
    stored = next(iter(_rows(session, [schedule.name], model, for_update=not dry_run)), None)
    if stored is not None and stored["source"] == "code":
        raise InvalidOptionError("name", f"{schedule.name!r} is declared in code: change it there, or delete it first")
    if dry_run:
        return stored is None or any(stored[column] != getattr(schedule, column) for column in SETTINGS)
    is_written = _put(session, schedule, "table", now, model) is not None
    if is_written:
        session.execute(controls.notify_rules(model))
    settings = {column: getattr(schedule, column) for column in SETTINGS}
    written_names = [schedule.name] if is_written else []
    record(
        session, "upsert_schedule", by=by, ids=written_names, matched=1, model=model, name=schedule.name, settings=settings
    )
    return is_written


def get_schedule(session: Session, name: str, *, for_update: bool = False, model: JobClass = Job) -> ScheduleStatus:
    """Return the definition and state of a schedule.

    `name`: name of the schedule. `for_update`: lock the row, so that the schedule cannot be changed, fired or deleted.
    Locks: with `for_update`, the row; waits if the schedule is being fired.
    Raises: NotFoundError.
    """
    if for_update:
        _existing_rows(session, [name], model, for_update=True)
    statuses = list_schedules(session, names=[name], model=model).items
    if not statuses:
        raise NotFoundError("schedule", [name], reason=UNWRITTEN_SCHEDULE)
    return statuses[0]


def list_schedules(
    session: Session, *, names: Sequence[str] = (), after: str | None = None, limit: int = MAX_PAGE, model: JobClass = Job
) -> Page[ScheduleStatus]:
    """Return one page of schedules, ordered by name.

    `names`: only these. `after`: a name.
    """
    pages.check_limit(limit)
    pages.check_lists(names=names)
    pages.check_position(after, str)
    parameters = {"names": list(names) or None, "after": after, "limit": limit + 1}
    statuses = [ScheduleStatus(**row) for row in session.execute(schedules.page(model), parameters).mappings()]
    return pages.page_of(statuses, limit=limit, position=lambda status: status.name)


def pause_schedules(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Pause schedules until they are resumed. Return those that were not paused before.

    `names`: names of schedules.
    Changes: sets `paused_at` and `paused_by` if the schedule is not paused.
    Locks: the rows, in the order of their names; waits for schedules that are being fired.
    Raises: NotFoundError naming all that are missing.
    """
    return Change(session, model.Schedule, names, model, "schedule", by, dry_run).pause()


def resume_schedules(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Resume paused schedules, which fire at their next time from now on, and acknowledge what schedules have missed.

    `names`: names of schedules. Return those that were paused or had missed times.
    Changes: clears `paused_at`, `paused_by`, `missed_from` and `missed_until`, and sets `next_fire_at` of those that were
    paused, by the database's clock. Locks, Raises: as
    `pause_schedules`; InvalidOptionError for a schedule that cannot fire.
    """
    rows = _existing_rows(session, names, model, for_update=not dry_run)
    paused = [row for row in rows if row["paused_at"] is not None or row["missed_from"] is not None]
    times = [{"schedule": row["name"], "next": declared(row).times.after(row["now"])} for row in paused]
    ids = [row["name"] for row in paused]
    if not dry_run:
        if paused:
            session.execute(schedules.resume(model), times)
            session.execute(controls.notify_rules(model))
        record(session, "resume_schedules", by=by, ids=ids, matched=len(rows), model=model, names=names)
    return BulkResult(ids, len(rows))


def run_schedule(
    session: Session,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> list[Any]:
    """Enqueue jobs of a schedule now, outside its times, even if it is paused; return the ids of the jobs.

    `name`: name of the schedule. Without times, each call enqueues one job for the current time. With `since` and
    `until`, which are aware and inclusive, it enqueues a job for each scheduled time between them that has not fired
    yet, at most 10,000. A time whose job was deleted since has fired.
    Changes: inserts the jobs; sets `last_job_id` for a job of the current time, and `fired` for those of a period; not the
    next time.
    Locks: the schedule's row.
    Raises: NotFoundError; InvalidOptionError for a schedule that cannot fire, or times out of bounds;
    InvalidJobError.
    """
    if (since is None) != (until is None):
        raise InvalidOptionError("since", "give both since and until, or neither")
    pages.check_instants(since=since, until=until)
    (row,) = _existing_rows(session, [name], model, for_update=not dry_run)
    schedule = declared(row)
    if since is None or until is None:
        job = job_of(schedule, row["now"], model)
        if dry_run:
            return [None]
        ids = write_many(session, [job])
        moved = {"to_next_fire_at": row["next_fire_at"], "to_error": row["error"]}
        moved |= dict.fromkeys(("to_last_fire_at", "to_missed_from", "to_missed_until"))
        session.execute(schedules.move(model), [{"schedule": name, "to_last_job_id": ids[0], **moved}])
        record(session, "run_schedule", by=by, ids=ids, model=model, name=name)
        return ids
    times = schedule.times.latest(since=since, until=until, limit=MAX_CATCH_UP + 1)
    if len(times) > MAX_CATCH_UP:
        raise InvalidOptionError("since", f"the period has more than {MAX_CATCH_UP:,} times; run shorter periods")
    unfired_times = unfired(session, {name: times}, model)[name]
    jobs = [job_of(schedule, time, model, id=id_of(name, time, model)) for time in unfired_times]
    if dry_run or not times:
        return [job.id for job in jobs]
    ids = write_many(session, jobs)
    session.execute(schedules.record_fired(model), {"schedule": name, "first": times[0], "last": times[-1]})
    record(session, "run_schedule", by=by, ids=ids, matched=len(times), model=model, name=name, since=since, until=until)
    return ids


def delete_schedules(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Delete schedules, but not their jobs; return their names. A worker that declares one creates it again when it starts.

    `names`: names of schedules. Locks, Raises: as `pause_schedules`.
    """
    return Change(session, model.Schedule, names, model, "schedule", by, dry_run).delete()


def _now(session: Session) -> datetime:
    now: datetime = session.scalar(select(func.now()))  # type: ignore[assignment]
    return now


def _put(session: Session, schedule: Schedule, source: str, now: datetime, model: JobClass) -> bool | None:
    parameters = {column: getattr(schedule, column) for column in SETTINGS}
    parameters |= {"name": schedule.name, "source": source, "misfire_policy": str(schedule.misfire_policy)}
    parameters["next_fire_at"] = schedule.times.after(now)
    row = session.execute(schedules.put(model), parameters).first()
    return None if row is None else bool(row.is_new)


def _existing_rows(session: Session, names: Sequence[str], model: JobClass, *, for_update: bool) -> Sequence[RowMapping]:
    """Return the rows of schedules. Raises: NotFoundError naming all that are missing."""
    pages.check_lists(names=names)
    rows = _rows(session, names, model, for_update=for_update)
    missing = set(names) - {row["name"] for row in rows}
    if missing:
        raise NotFoundError("schedule", sorted(missing), reason=f"nothing was changed; {UNWRITTEN_SCHEDULE}")
    return rows


def _rows(session: Session, names: Sequence[str], model: JobClass, *, for_update: bool) -> Sequence[RowMapping]:
    return session.execute(named_rows.rows(model.Schedule, lock=for_update), {"names": list(names)}).mappings().all()


FIRE_BATCH = 50
"""Most schedules fired in one transaction."""


def fire_schedules(
    session: Session,
    *,
    limit: int = FIRE_BATCH,
    at: datetime | None = None,
    names: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
    model: JobClass = Job,
) -> list[ScheduleRun]:
    """Enqueue the jobs of due schedules and set their next times, as workers do; return one result for each schedule.

    `at` replaces the database's clock. `names`: fire only these. `excluded`: skip these. A schedule without a next time is
    set to its first time, and is not returned.
    Changes: inserts a job for each time; `next_fire_at`, `last_fire_at` and `last_job_id` of the schedules, or their
    `error`.
    Clock: the database's `now()`, the start of this transaction.
    Locks: the schedules; those that another transaction fires or changes are skipped.
    Obliges: commit soon, and call again while as many as `limit` are returned.
    """
    parameters = {"limit": limit, "at": at, "names": None if names is None else list(names), "excluded": list(excluded)}
    due = session.execute(schedules.due(model), parameters).mappings().all()
    if not due:
        return []
    plans = [_plan(row, model) for row in due]
    unfired_times = unfired(session, {plan.name: list(plan.jobs) for plan in plans}, model)
    write_many(session, [plan.jobs[time] for plan in plans for time in unfired_times[plan.name]])
    session.execute(schedules.move(model), [plan.moved for plan in plans])
    if new := [plan.fired for plan in plans if plan.jobs]:
        session.execute(schedules.record_fired(model), new)
    runs = [plan.run(unfired_times[plan.name]) for plan in plans]
    return [run for run in runs if run is not None]


def correct_schedules(session: Session, *, model: JobClass = Job) -> list[str]:
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
    return [correction["schedule"] for correction in moved]


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    jobs: Mapping[datetime, JobMixin[Any]] = field(default_factory=dict)
    """By the times that it fires for, in their order."""
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
        times = list(self.jobs)
        return {"schedule": self.name, "first": self.follows or times[0], "last": times[-1]}

    @property
    def moved(self) -> dict[str, Any]:
        """The parameters of `statements.schedules.move`."""
        time, job = list(self.jobs.items())[-1] if self.jobs else (None, None)
        first, last = self.missed or (None, None)
        return {
            "schedule": self.name,
            "to_next_fire_at": self.next_fire_at,
            "to_last_fire_at": time,
            "to_last_job_id": job and job.id,
            "to_missed_from": first,
            "to_missed_until": last,
            "to_error": self.error,
        }

    def run(self, times: Sequence[datetime]) -> ScheduleRun | None:
        """Return the result for the `times` that had not fired before; None if only its next time was computed."""
        ids = tuple(self.jobs[time].id for time in times)
        run = ScheduleRun(self.name, tuple(times), ids, self.missed_since, self.error)
        return run if run != ScheduleRun(self.name) else None


def _plan(row: RowMapping, model: JobClass) -> _Plan:
    name, since, now = row["name"], row["next_fire_at"], row["now"]
    try:
        schedule = declared(row)
        following = schedule.times.after(now)
        if since is None:
            job_of(schedule, now, model)  # report what cannot be enqueued now, not when it fires
            return _Plan(name, next_fire_at=following)
        times = schedule.due(since=since, now=now)
        jobs = {time: job_of(schedule, time, model, id=id_of(name, time, model)) for time in times}
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
    return _Plan(name, jobs, following, left_out, missed, follows=follows)


def declared(row: Mapping[Any, Any]) -> Schedule:
    """Return the schedule defined by a row. Raises: InvalidOptionError if it is invalid."""
    return Schedule(name=row["name"], **{column: row[column] for column in SETTINGS})


def job_of(schedule: Schedule, fire_time: datetime, model: JobClass, **more: Any) -> JobMixin[Any]:
    """Describe the job that is fired for a time. Raises: InvalidJobError."""
    return model(
        type_name=schedule.type_name,
        input=schedule.input_at(fire_time),
        input_version=schedule.input_version,
        **{name: getattr(schedule, name) for name in OF_SCHEDULES},
        _handler=None,  # the row has all that its declaration said, as the one who stored it meant it
        **more,
    )


def id_of(name: str, fire_time: datetime, model: JobClass) -> Any:
    """Return the id of the one job that a schedule makes for a time."""
    job_id = uuid8_of(fire_time, model.__jobqueue__.qualified("job"), name)
    return str(job_id) if model.__jobqueue__.id_type == "text" else job_id


def schedule_of(session: Session, job: JobMixin[Any], model: JobClass) -> tuple[str, datetime | None] | None:
    """Return which schedule made a job, and for which time: none for one that was run out of its turn, and made last."""
    rows = session.execute(schedules.page(model), {"names": None, "limit": 1_000}).mappings().all()
    runs = time_in(job.id)
    for row in rows:
        for time in {row["last_fire_at"], runs} - {None}:
            if id_of(row["name"], time, model) == job.id:
                return row["name"], time
    return next(((row["name"], None) for row in rows if row["last_job_id"] == job.id), None)


def time_in(job_id: Any) -> datetime | None:
    """Return the time that an id of `id_of` contains; for other ids an arbitrary time, or None."""
    try:
        number = (job_id if isinstance(job_id, UUID) else UUID(job_id)).int
        return datetime.fromtimestamp((number >> 80) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def unfired(session: Session, times: Mapping[str, Sequence[datetime]], model: JobClass) -> dict[str, list[datetime]]:
    """Return the times that have not fired. `times`: of schedules, by their names, as the result."""
    planned = [(id_of(name, time, model), name, time) for name, due in times.items() for time in due]
    ids, names, stamps = map(list, zip(*planned, strict=True)) if planned else ([], [], [])
    parameters = {"ids": ids, "names": names, "times": stamps}
    fired_ids = set(session.scalars(schedules.fired_already(model), parameters)) if planned else set()
    unfired_times: dict[str, list[datetime]] = {name: [] for name in times}
    for job_id, name, time in planned:
        if job_id not in fired_ids:
            unfired_times[name].append(time)
    return unfired_times
