"""Schedules: selecting those that are due, advancing them, and reading and writing their settings."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    TIMESTAMP,
    ColumnElement,
    Delete,
    Double,
    Insert,
    Integer,
    Interval,
    Select,
    Table,
    Text,
    Update,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    false,
    func,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, insert

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements._parts import array, clamped, excluded, once_a_model, table

SETTINGS: Final = (
    "type_name",
    "queue",
    "fairness_key",
    "priority",
    "max_attempts",
    "timeout",
    "rate_cost",
    "input",
    "input_version",
    "fire_time_field",
    "cron",
    "time_zone",
    "misfire_policy",
    "catch_up",
    "grace",
    "overlap",
)
"""The columns that define a schedule."""
STATE: Final = ("source", "paused_at", "paused_by", "next_fire_at", "last_fire_at", "last_job_id", "error")
"""The columns with a schedule's state."""


@once_a_model
def due(model: type[JobMixin[Any]]) -> Select[Any]:
    """Lock schedules that are due, or whose next time was not computed yet, for the caller to fire and advance them.

    Parameters: `limit`; `at`, an instant in the place of the database's clock, or null; `names`, to take none but those, or
    null; `excluded`, names to leave out, none unless given.
    Shape: per schedule its name, `SETTINGS`, `next_fire_at`, `last_fire_at`, then `is_open` (whether the chain of the job it
    made last is), and `now`; the one that is due first comes first.
    Clock: the database's `now()`, the start of the caller's transaction.
    Locks: the rows returned, until that transaction ends; rows that another transaction fires or changes are skipped.
    Obliges: advance each, or record why it cannot fire, in the same transaction.
    Index: `ix_schedule_due`, or all of a table that is small; the primary key of the job.
    """
    schedule, last = table(model.Schedule), table(model).alias("last_job")
    now = func.coalesce(bindparam("at", type_=TIMESTAMP(timezone=True)), func.now())
    names = bindparam("names", None, type_=ARRAY(Text))
    # Not EXISTS, which the planner may answer for all schedules at once, by reading every job.
    is_open = (
        select(last.c.chain_completed_at.is_(None))
        .where(last.c.id == schedule.c.last_job_id)
        .correlate(schedule)
        .scalar_subquery()
    )
    columns = _read(schedule, "name", *SETTINGS, "next_fire_at", "last_fire_at")
    return (
        select(*columns, func.coalesce(is_open, false()).label("is_open"), now.label("now"))
        .where(*_due(schedule, now), or_(names.is_(None), schedule.c.name == any_(names)))
        .order_by(schedule.c.next_fire_at, schedule.c.name)
        .limit(bindparam("limit", type_=Integer))
        # A second worker sees, in the row's next version, that it is no longer due.
        .with_for_update(of=schedule, skip_locked=True)
    )


@once_a_model
def due_names(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the names of schedules that `due` would lock. Parameters: `limit`, `excluded`, as there. Locks: none."""
    schedule = table(model.Schedule)
    return (
        select(schedule.c.name)
        .where(*_due(schedule, func.now()))
        .order_by(schedule.c.next_fire_at, schedule.c.name)
        .limit(bindparam("limit", type_=Integer))
    )


@once_a_model
def next_due(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the seconds until the next schedule is due, negative if it is overdue, null without schedules.

    Parameters: `excluded`, see `due`. Shape: one row, one column. Clock: the database's current time. Locks: none. Index:
    see `due`.
    """
    schedule = table(model.Schedule)
    first = func.min(func.coalesce(clamped(schedule.c.next_fire_at), func.now()))
    return select(cast(func.extract("epoch", first - func.clock_timestamp()), Double)).where(*_firing(schedule))


def _read(schedule: Table, *names: str) -> list[ColumnElement[Any]]:
    of = (schedule.c[name] for name in names)
    return [clamped(each).label(each.name) if isinstance(each.type, TIMESTAMP | INTERVAL) else each for each in of]


def _firing(schedule: Table) -> list[ColumnElement[bool]]:
    return [schedule.c.paused_at.is_(None), schedule.c.error.is_(None), excluded(schedule.c.name, Text())]


def _due(schedule: Table, now: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    return [*_firing(schedule), or_(schedule.c.next_fire_at.is_(None), schedule.c.next_fire_at <= now)]


@once_a_model
def made_already(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return those of some ids that jobs have, with their status. Parameters: `ids`. Locks: none. Index: the primary key."""
    job = table(model)
    return select(job.c.id, job.c.status).where(job.c.id == any_(array("ids", job.c.id.type)))


@once_a_model
def fired_already(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return those of some ids whose job exists, or whose time the row of its schedule records as fired.

    The record outlives the job, which retention deletes. Parameters: `ids`, with the `times` that they are for and the
    `names` of their schedules. Locks: none. Index: the primary keys.
    """
    job, schedule = table(model), table(model.Schedule)
    columns = {"id": job.c.id.type, "name": Text(), "time": TIMESTAMP(timezone=True)}
    given = (
        func.unnest(*(array(f"{name}s", like) for name, like in columns.items()))
        .table_valued(*(column(name, like) for name, like in columns.items()))
        .render_derived("given")
    )
    records = schedule.c.fired.op("@>", is_comparison=True)(given.c.time)
    # Not EXISTS, which the planner may answer for all ids at once, by reading every job.
    is_made = select(job.c.id.is_not(None)).where(job.c.id == given.c.id).correlate(given).scalar_subquery()
    is_recorded = select(records).where(schedule.c.name == given.c.name).correlate(given).scalar_subquery()
    return select(given.c.id).where(or_(is_made, is_recorded))


@once_a_model
def record_fired(model: type[JobMixin[Any]]) -> Update:
    """Record times as fired. Parameters: `schedule`; `first` and `last`, between which it fired at all of its times.

    Takes many. Changes: `fired`. Locks: its row, which `due` or `lock` has locked. Index: the primary key.
    """
    schedule = table(model.Schedule)
    first, last = (bindparam(name, type_=TIMESTAMP(timezone=True)) for name in ("first", "last"))
    span = func.tstzmultirange(func.tstzrange(first, last, "[]"))
    return (
        update(schedule)
        .where(schedule.c.name == bindparam("schedule", type_=Text))
        .values(fired=schedule.c.fired.op("+")(span))
    )


@once_a_model
def move(model: type[JobMixin[Any]]) -> Update:
    """Set when a schedule fires next, and for which time it fired; or the error that stops it until it is corrected.

    Parameters: `schedule`, `next_fire_at`, `last_fire_at`, `last_job_id` (null keeps what is there), `error`. Takes many.
    Changes: those columns; not `updated_at`, because the definition is unchanged.
    Locks: its row, which `due` or `lock` has locked. Index: the primary key.
    """
    schedule = table(model.Schedule)
    given = {name: bindparam(f"to_{name}", type_=schedule.c[name].type) for name in STATE if name not in _KEPT}
    return (
        update(schedule)
        .where(schedule.c.name == bindparam("schedule", type_=Text))
        .values(
            next_fire_at=given["next_fire_at"],
            last_fire_at=func.coalesce(given["last_fire_at"], schedule.c.last_fire_at),
            last_job_id=func.coalesce(given["last_job_id"], schedule.c.last_job_id),
            error=given["error"],
        )
    )


_KEPT: Final = {"source", "paused_at", "paused_by"}


@once_a_model
def put(model: type[JobMixin[Any]]) -> Insert:
    """Write the definition of a schedule, unless its row already has it.

    Parameters: `name`, `SETTINGS`, `source`, `next_fire_at`.
    Shape: `(name, is_new)` of a row that was written; no row if nothing changed.
    Changes: `SETTINGS`, `source`, `updated_at`; `error` to null; `next_fire_at` where the times change, or it was null.
    It stays paused.
    Clock: the database's. Locks: its row. Index: the primary key.
    """
    schedule = table(model.Schedule)
    names = ("name", *SETTINGS, "source", "next_fire_at")
    statement = insert(schedule).values({name: bindparam(name, type_=schedule.c[name].type) for name in names})
    new = statement.excluded
    written = ("source", *SETTINGS)
    same_times = tuple_(schedule.c.cron, schedule.c.time_zone) == tuple_(new.cron, new.time_zone)
    return statement.on_conflict_do_update(
        index_elements=["name"],
        set_={name: new[name] for name in written}
        | {
            "updated_at": func.now(),
            "error": null(),
            "next_fire_at": case(
                (same_times, func.coalesce(schedule.c.next_fire_at, new.next_fire_at)), else_=new.next_fire_at
            ),
        },
        where=or_(
            schedule.c.error.is_not(None),
            *(schedule.c[name].is_distinct_from(new[name]) for name in written),
        ),
    ).returning(schedule.c.name, (schedule.c.created_at == schedule.c.updated_at).label("is_new"))


@once_a_model
def page(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return schedules by name.

    Parameters: `names`, or null for all; `after`, the name that the page follows, or null; `limit`.
    Shape: per schedule its name, `SETTINGS`, `STATE`, `created_at`, `updated_at` and `overdue`: for how long it is due, null
    while it is not, is paused or cannot fire.
    Clock: the database's. Locks: none. Index: the primary key.
    """
    schedule = table(model.Schedule)
    names, after = bindparam("names", type_=ARRAY(Text)), bindparam("after", None, type_=Text)
    late = cast(func.clock_timestamp() - clamped(schedule.c.next_fire_at), Interval)
    is_late = schedule.c.next_fire_at < func.clock_timestamp()
    overdue = case((is_late & schedule.c.paused_at.is_(None) & schedule.c.error.is_(None), late))
    columns = _read(schedule, "name", *SETTINGS, *STATE, "created_at", "updated_at")
    return (
        select(*columns, overdue.label("overdue"))
        .where(or_(names.is_(None), schedule.c.name == any_(names)), or_(after.is_(None), schedule.c.name > after))
        .order_by(schedule.c.name)
        .limit(bindparam("limit", type_=Integer))
    )


@once_a_model
def named(model: type[JobMixin[Any]]) -> Select[Any]:
    """Read schedules by name. Parameters: `names`.

    Shape: per schedule its name, `SETTINGS`, `STATE` and `now`, by name. Clock: the database's `now()`. Locks: none.
    Index: the primary key.
    """
    schedule = table(model.Schedule)
    columns = _read(schedule, "name", *SETTINGS, *STATE)
    return (
        select(*columns, func.now().label("now"))
        .where(schedule.c.name == any_(bindparam("names", type_=ARRAY(Text))))
        .order_by(schedule.c.name)
    )


@once_a_model
def lock(model: type[JobMixin[Any]]) -> Select[Any]:
    """Lock schedules by name.

    Parameters, Shape, Clock, Index: as `named`. Locks: those rows, in the order of their names, until the transaction ends;
    waits for a transaction that is firing one of them.
    """
    return named(model).with_for_update()


@once_a_model
def pause(model: type[JobMixin[Any]]) -> Update:
    """Pause schedules that are locked; those that are paused stay so since when they were. Parameters: `names`, `by`.

    Changes: `paused_at` to the database's `now()`, `paused_by`. Locks: those rows. Index: the primary key.
    """
    schedule = table(model.Schedule)
    return (
        update(schedule)
        .where(schedule.c.name == any_(bindparam("names", type_=ARRAY(Text))), schedule.c.paused_at.is_(None))
        .values(paused_at=func.now(), paused_by=bindparam("by", type_=Text))
    )


@once_a_model
def resume(model: type[JobMixin[Any]]) -> Update:
    """Let a schedule that is locked fire again. Parameters: `schedule`, `next`, when it does first. Takes many.

    Changes: `paused_at` and `paused_by` to null, `next_fire_at`. Locks: its row. Index: the primary key.
    """
    schedule = table(model.Schedule)
    return (
        update(schedule)
        .where(schedule.c.name == bindparam("schedule", type_=Text))
        .values(paused_at=null(), paused_by=null(), next_fire_at=bindparam("next", type_=schedule.c.next_fire_at.type))
    )


@once_a_model
def drop(model: type[JobMixin[Any]]) -> Delete:
    """Delete schedules that are locked; their jobs stay. Parameters: `names`. Locks: those rows. Index: the primary key."""
    schedule = table(model.Schedule)
    return delete(schedule).where(schedule.c.name == any_(bindparam("names", type_=ARRAY(Text))))


@once_a_model
def declared_elsewhere(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the schedules that code has declared, but for some. Parameters: `names`, of those.

    Shape: `(name, type_name)`, by name. Locks: none. Index: none; the table is small.
    """
    schedule = table(model.Schedule)
    known = schedule.c.name == any_(bindparam("names", type_=ARRAY(Text)))
    return select(schedule.c.name, schedule.c.type_name).where(schedule.c.source == "code", ~known).order_by(schedule.c.name)
