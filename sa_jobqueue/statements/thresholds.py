"""Thresholds of the health report."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from sa_jobqueue.statements._parts import Tables, array, statement


@statement
def every(t: Tables) -> sa.Select[Any]:
    """Return the thresholds that were set. Shape: `(name, queue, value)`, those of all queues first. Locks: none."""
    threshold = t.threshold
    return sa.select(threshold.c.name, threshold.c.queue, threshold.c.value).order_by(threshold.c.queue, threshold.c.name)


@statement
def put(t: Tables) -> Any:
    """Write a threshold. Parameters: `name`, `queue`, `value`. Locks: its row, awaited. Index: the primary key."""
    statement = insert(t.threshold)
    return statement.on_conflict_do_update(index_elements=["name", "queue"], set_={"value": statement.excluded.value})


@statement
def drop(t: Tables) -> sa.Delete:
    """Delete thresholds. Parameters: `names`, `queue`. Locks: their rows, awaited. Index: the primary key."""
    of_queue = t.threshold.c.queue == sa.bindparam("queue", type_=sa.Text)
    return sa.delete(t.threshold).where(t.threshold.c.name == sa.any_(array("names", sa.Text())), of_queue)
