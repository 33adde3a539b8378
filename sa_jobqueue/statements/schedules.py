"""Schedules: selecting those that are due, advancing them, and reading and writing their settings."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from sa_jobqueue.registry.schedules import SETTINGS
from sa_jobqueue.statements._parts import Tables, array, excluded, relation, statement

STATE: Final = (
    *("source", "paused_at", "paused_by", "next_fire_at", "last_fire_at", "last_job_id", "missed_from", "missed_until"),
    "error",
)
"""The columns with a schedule's state."""


@statement
def due(t: Tables) -> sa.Select[Any]:
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
    schedule, last = t.schedule, t.job.alias("last_job")
    now = sa.func.coalesce(sa.bindparam("at", type_=sa.TIMESTAMP(timezone=True)), sa.func.now())
    names = sa.bindparam("names", None, type_=ARRAY(sa.Text))
    # Not EXISTS, which the planner may answer for all schedules at once, by reading every job.
    is_open = (
        sa.select(last.c.chain_completed_at.is_(None))
        .where(last.c.id == schedule.c.last_job_id)
        .correlate(schedule)
        .scalar_subquery()
    )
    columns = [schedule.c[name] for name in ("name", *SETTINGS, "next_fire_at", "last_fire_at")]
    return (
        sa.select(*columns, sa.func.coalesce(is_open, sa.false()).label("is_open"), now.label("now"))
        .where(*_due(schedule, now), sa.or_(names.is_(None), schedule.c.name == sa.any_(names)))
        .order_by(schedule.c.next_fire_at, schedule.c.name)
        .limit(sa.bindparam("limit", type_=sa.Integer))
        # A second worker sees, in the row's next version, that it is no longer due.
        .with_for_update(of=schedule, skip_locked=True)
    )


@statement
def due_names(t: Tables) -> sa.Select[Any]:
    """Return the names of schedules that `due` would lock. Parameters: `limit`, `excluded`, as there. Locks: none."""
    return (
        sa.select(t.schedule.c.name)
        .where(*_due(t.schedule, sa.func.now()))
        .order_by(t.schedule.c.next_fire_at, t.schedule.c.name)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def next_due(t: Tables) -> sa.Select[Any]:
    """Return the seconds until the next schedule is due, negative if it is overdue, null without schedules.

    Parameters: `excluded`, see `due`. Shape: one row, one column. Clock: the database's current time. Locks: none. Index:
    see `due`.
    """
    first = sa.func.min(sa.func.coalesce(t.schedule.c.next_fire_at, sa.func.now()))
    return sa.select(sa.cast(sa.func.extract("epoch", first - sa.func.clock_timestamp()), sa.Double)).where(
        *_firing(t.schedule)
    )


def _firing(schedule: sa.Table) -> list[sa.ColumnElement[bool]]:
    return [schedule.c.paused_at.is_(None), schedule.c.error.is_(None), excluded(schedule.c.name, sa.Text())]


def _due(schedule: sa.Table, now: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
    return [*_firing(schedule), sa.or_(schedule.c.next_fire_at.is_(None), schedule.c.next_fire_at <= now)]


@statement
def fired_already(t: Tables) -> sa.Select[Any]:
    """Return those of some ids whose job exists, or whose time the row of its schedule records as fired.

    The record outlives the job, which retention deletes. Parameters: `ids`, with the `times` that they are for and the
    `names` of their schedules. Locks: none. Index: the primary keys.
    """
    columns = {"id": t.job.c.id.type, "name": sa.Text(), "time": sa.TIMESTAMP(timezone=True)}
    fire_times = relation("given", **{name: array(f"{name}s", like) for name, like in columns.items()})
    records = t.schedule.c.fired.op("@>", is_comparison=True)(fire_times.c.time)
    # Not EXISTS, which the planner may answer for all ids at once, by reading every job.
    is_made = sa.select(t.job.c.id.is_not(None)).where(t.job.c.id == fire_times.c.id).correlate(fire_times).scalar_subquery()
    is_recorded = sa.select(records).where(t.schedule.c.name == fire_times.c.name).correlate(fire_times).scalar_subquery()
    return sa.select(fire_times.c.id).where(sa.or_(is_made, is_recorded))


@statement
def record_fired(t: Tables) -> sa.Update:
    """Record times as fired. Parameters: `schedule`; `first` and `last`, between which it fired at all of its times.

    Takes many. Changes: `fired`; `missed_from` and `missed_until` to null where all of those times are among them.
    Locks: its row, which `due` or `named_rows.rows` has locked. Index: the primary key.
    """
    first, last = (sa.bindparam(name, type_=sa.TIMESTAMP(timezone=True)) for name in ("first", "last"))
    span = sa.func.tstzmultirange(sa.func.tstzrange(first, last, "[]"))
    are_all = sa.and_(first <= t.schedule.c.missed_from, last >= t.schedule.c.missed_until)
    return (
        sa.update(t.schedule)
        .where(t.schedule.c.name == sa.bindparam("schedule", type_=sa.Text))
        .values(
            fired=t.schedule.c.fired.op("+")(span),
            missed_from=sa.case((are_all, sa.null()), else_=t.schedule.c.missed_from),
            missed_until=sa.case((are_all, sa.null()), else_=t.schedule.c.missed_until),
        )
    )


@statement
def move(t: Tables) -> sa.Update:
    """Set when a schedule fires next, for which time it fired and which times it missed; or the error that stops it.

    Parameters: `schedule`, `next_fire_at`, `last_fire_at`, `last_job_id`, `missed_from`, `missed_until` (null keeps the
    old value, and the first of earlier missed times stays), `error`. Takes many.
    Changes: those columns; not `updated_at`, because the definition is unchanged.
    Locks: its row, which `due` or `named_rows.rows` has locked. Index: the primary key.
    """
    parameters = {name: sa.bindparam(f"to_{name}", type_=t.schedule.c[name].type) for name in STATE if name not in _KEPT}
    return (
        sa.update(t.schedule)
        .where(t.schedule.c.name == sa.bindparam("schedule", type_=sa.Text))
        .values(
            next_fire_at=parameters["next_fire_at"],
            last_fire_at=sa.func.coalesce(parameters["last_fire_at"], t.schedule.c.last_fire_at),
            last_job_id=sa.func.coalesce(parameters["last_job_id"], t.schedule.c.last_job_id),
            missed_from=sa.func.coalesce(t.schedule.c.missed_from, parameters["missed_from"]),
            missed_until=sa.func.coalesce(parameters["missed_until"], t.schedule.c.missed_until),
            error=parameters["error"],
        )
    )


_KEPT: Final = {"source", "paused_at", "paused_by"}


@statement
def put(t: Tables) -> sa.Insert:
    """Write the definition of a schedule, unless its row already has it.

    Parameters: `name`, `SETTINGS`, `source`, `next_fire_at`.
    Shape: `(name, is_new)` of a row that was written; no row if nothing changed.
    Changes: `SETTINGS`, `source`, `updated_at`; `error` to null; `next_fire_at` where the times change, or it was null.
    It stays paused.
    Clock: the database's. Locks: its row. Index: the primary key.
    """
    names = ("name", *SETTINGS, "source", "next_fire_at")
    statement = insert(t.schedule).values({name: sa.bindparam(name, type_=t.schedule.c[name].type) for name in names})
    new = statement.excluded
    definition = ("source", *SETTINGS)
    same_times = sa.tuple_(t.schedule.c.cron, t.schedule.c.time_zone) == sa.tuple_(new.cron, new.time_zone)
    return statement.on_conflict_do_update(
        index_elements=["name"],
        set_={name: new[name] for name in definition}
        | {
            "updated_at": sa.func.now(),
            "error": sa.null(),
            "next_fire_at": sa.case(
                (same_times, sa.func.coalesce(t.schedule.c.next_fire_at, new.next_fire_at)), else_=new.next_fire_at
            ),
        },
        where=sa.or_(
            t.schedule.c.error.is_not(None),
            *(t.schedule.c[name].is_distinct_from(new[name]) for name in definition),
        ),
    ).returning(t.schedule.c.name, (t.schedule.c.created_at == t.schedule.c.updated_at).label("is_new"))


@statement
def page(t: Tables) -> sa.Select[Any]:
    """Return schedules by name.

    Parameters: `names`, or null for all; `after`, the name that the page follows, or null; `limit`.
    Shape: per schedule its name, `SETTINGS`, `STATE`, `created_at`, `updated_at` and `overdue`: for how long it is due, null
    while it is not, is paused or cannot fire.
    Clock: the database's. Locks: none. Index: the primary key.
    """
    schedule = t.schedule
    names, after = sa.bindparam("names", type_=ARRAY(sa.Text)), sa.bindparam("after", None, type_=sa.Text)
    late = sa.cast(sa.func.clock_timestamp() - schedule.c.next_fire_at, sa.Interval)
    is_late = schedule.c.next_fire_at < sa.func.clock_timestamp()
    overdue = sa.case((is_late & schedule.c.paused_at.is_(None) & schedule.c.error.is_(None), late))
    columns = [schedule.c[name] for name in ("name", *SETTINGS, *STATE, "created_at", "updated_at")]
    return (
        sa.select(*columns, overdue.label("overdue"))
        .where(sa.or_(names.is_(None), schedule.c.name == sa.any_(names)), sa.or_(after.is_(None), schedule.c.name > after))
        .order_by(schedule.c.name)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def resume(t: Tables) -> sa.Update:
    """Let a schedule that is locked fire again, and forget the times that it missed.

    Parameters: `schedule`; `next`, when it fires first if it was paused. Takes many.
    Changes: `paused_at`, `paused_by`, `missed_from` and `missed_until` to null; `next_fire_at`,
    `updated_at`. Locks: its row. Index: the primary key.
    """
    return (
        sa.update(t.schedule)
        .where(t.schedule.c.name == sa.bindparam("schedule", type_=sa.Text))
        .values(
            **dict.fromkeys(("paused_at", "paused_by", "missed_from", "missed_until"), sa.null()),
            updated_at=sa.func.now(),
            next_fire_at=sa.case(
                (t.schedule.c.paused_at.is_not(None), sa.bindparam("next", type_=t.schedule.c.next_fire_at.type)),
                else_=t.schedule.c.next_fire_at,
            ),
        )
    )


@statement
def declared_elsewhere(t: Tables) -> sa.Select[Any]:
    """Return the schedules that code has declared, but for some. Parameters: `names`, of those.

    Shape: `(name, type_name)`, by name. Locks: none. Index: none; the table is small.
    """
    schedule = t.schedule
    is_named = schedule.c.name == sa.any_(sa.bindparam("names", type_=ARRAY(sa.Text)))
    return (
        sa.select(schedule.c.name, schedule.c.type_name)
        .where(schedule.c.source == "code", ~is_named)
        .order_by(schedule.c.name)
    )
