"""Thresholds of the health report."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import array, once_a_model, table


@once_a_model
def every(model: JobClass) -> sa.Select[Any]:
    """Return the thresholds that were set. Shape: `(name, queue, value)`, those of all queues first. Locks: none."""
    threshold = table(model.Threshold)
    return sa.select(threshold.c.name, threshold.c.queue, threshold.c.value).order_by(threshold.c.queue, threshold.c.name)


@once_a_model
def put(model: JobClass) -> Any:
    """Write a threshold. Parameters: `name`, `queue`, `value`. Locks: its row, awaited. Index: the primary key."""
    statement = insert(table(model.Threshold))
    return statement.on_conflict_do_update(index_elements=["name", "queue"], set_={"value": statement.excluded.value})


@once_a_model
def drop(model: JobClass) -> sa.Delete:
    """Delete thresholds. Parameters: `names`, `queue`. Locks: their rows, awaited. Index: the primary key."""
    threshold = table(model.Threshold)
    of_queue = threshold.c.queue == sa.bindparam("queue", type_=sa.Text)
    return sa.delete(threshold).where(threshold.c.name == sa.any_(array("names", sa.Text())), of_queue)
