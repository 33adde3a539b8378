"""Rows that operators change by name: queues, job types and schedules.

`entity` is `Job.Queue`, `Job.JobType` or `Job.Schedule`. A statement about queues has a parameter `of_key`, a fairness key:
empty for the rows of the queues themselves.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import ColumnElement

from sa_jobqueue.models import JobTypeMixin, QueueMixin, ScheduleMixin
from sa_jobqueue.statements._parts import array, once_a_model, table

NamedRow: TypeAlias = type[QueueMixin] | type[JobTypeMixin] | type[ScheduleMixin[Any]]


@once_a_model
def rows(entity: NamedRow, *, lock: bool) -> sa.Select[Any]:
    """Return the existing rows of some names.

    Parameters: `names`. Shape: all columns of each, and `now`, the database's; by name.
    Locks: with `lock` those rows, awaited, in that order, until the transaction ends. Index: the primary key.
    """
    chosen = sa.select(table(entity), sa.func.now().label("now")).where(*_named(entity)).order_by(key_of(entity))
    return chosen.with_for_update() if lock else chosen


@once_a_model
def make(entity: NamedRow) -> sa.Insert:
    """Insert a row without settings for each of some names that has none.

    Parameters: `names`. Shape: none. Changes: new rows. Index: the primary key.
    Locks: the new rows, until the transaction ends; waits for a transaction that inserts one of them.
    """
    row = table(entity)
    name = sa.func.unnest(array("names", sa.Text())).column_valued("name")
    names = sa.select(name, *_fairness_key(entity)).order_by(name)
    return insert(row).from_select(row.primary_key.columns.keys(), names).on_conflict_do_nothing()


@once_a_model
def pause(entity: NamedRow) -> sa.Update:
    """Pause those of some rows that are not paused. Parameters: `names`, `by`.

    Changes: `paused_at` to the database's `now()`, `paused_by`, `updated_at`. Obliges: the rows are locked.
    Index: the primary key.
    """
    row, now = table(entity), sa.func.now()
    changed = {"paused_at": now, "paused_by": sa.bindparam("by", type_=sa.Text), "updated_at": now}
    return sa.update(row).where(*_named(entity), row.c.paused_at.is_(None)).values(changed)


@once_a_model
def resume(entity: NamedRow) -> sa.Update:
    """Let rows that are paused go on. Parameters: `names`. Changes: `paused_at` and `paused_by` to null, `updated_at`.

    Obliges: the rows are locked. Index: the primary key.
    """
    changed = {"paused_at": sa.null(), "paused_by": sa.null(), "updated_at": sa.func.now()}
    return sa.update(table(entity)).where(*_named(entity)).values(changed)


@once_a_model
def drop(entity: NamedRow) -> sa.Delete:
    """Delete rows; the jobs stay. Parameters: `names`. Obliges: the rows are locked. Index: the primary key."""
    return sa.delete(table(entity)).where(*_named(entity))


def key_of(entity: NamedRow) -> sa.Column[Any]:
    """Return the column with the name."""
    return next(iter(table(entity).primary_key.columns))


def _fairness_key(entity: NamedRow) -> list[ColumnElement[Any]]:
    return [sa.bindparam("of_key", type_=sa.Text)] if issubclass(entity, QueueMixin) else []


def _named(entity: NamedRow) -> list[ColumnElement[bool]]:
    key_conditions = [table(entity).c.fairness_key == parameter for parameter in _fairness_key(entity)]
    return [key_of(entity) == sa.any_(array("names", sa.Text())), *key_conditions]
