"""Statements about mapped objects that are arguments of jobs: their rows, and the inputs that refer to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapper

from sa_jobqueue.payloads.references import LoadOptions
from sa_jobqueue.statements._parts import Tables, array, relation, statement


def objects(mapped: type[Any], keys: Collection[tuple[Any, ...]], options: LoadOptions) -> sa.Select[Any]:
    """Return the objects of a mapped class with these primary keys.

    Locks: with `for_update` the rows of the class, in the order of the keys; a held one is awaited.
    Index: the primary key.
    """
    mapper: Mapper[Any] = sa.inspect(mapped)
    columns = [mapper.get_property_by_column(column).class_attribute for column in mapper.primary_key]
    chosen = sa.select(mapped).order_by(*columns).options(*options.options)
    if len(columns) == 1:
        chosen = chosen.where(columns[0].in_([part for (part,) in keys]))
    else:
        chosen = chosen.where(sa.tuple_(*columns).in_(list(keys)))
    if options.for_update:
        # By tables: of the class also means subclasses that `with_polymorphic` outer-joins, which cannot be locked. Read
        # again, because what the session has loaded before was not locked then.
        return chosen.with_for_update(of=list(mapper.tables)).execution_options(populate_existing=True)
    return chosen


@statement
def set_inputs(t: Tables) -> sa.Update:
    """Set the inputs of jobs that this transaction has inserted.

    Parameters: `ids`, `inputs` (JSON texts). Index: `pk_job`. Locks: none but the new rows'.
    """
    rows = relation("completed", id=t.ids("ids"), input=array("inputs", sa.Text()))
    return sa.update(t.job).where(t.job.c.id == rows.c.id).values(input=sa.cast(rows.c.input, JSONB))


def session_place() -> sa.Select[Any]:
    """Return the database and the role of a session, for messages."""
    return sa.select(sa.func.current_database(), sa.func.current_user())
