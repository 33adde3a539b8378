"""Claims with a selector of the application: one statement reads due jobs as candidates, another starts the selected ones.

The selector runs between the two statements, so nothing is locked meanwhile. The second statement starts only jobs that are
still due.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._lanes import is_due, picked
from sa_jobqueue.statements._parts import array, once_a_model, table
from sa_jobqueue.statements.claims import as_of, bounded, started

OFFERED: Final = (
    "id",
    "type_name",
    "queue",
    "fairness_key",
    "priority",
    "chain_id",
    "chain_index",
    "created_at",
    "scheduled_at",
    "attempt",
    "deduplication_key",
    "ordering_key",
    "input",
)
"""Columns of each candidate, in this order, after the statement's own four columns."""


@once_a_model
def candidates(model: type[JobMixin[Any]], *, inputs: bool) -> Select[Any]:
    """Read due jobs of a queue: those that were read before, `held`, and up to `limit` others, as a claim would find them.

    Parameters: as `claims.claim` with `changed` and `shared`, without its worker; `of_queue`; `held`, ids. With `inputs`
    their payloads are read as well.
    Shape: `now, xmax, xip, is_new` and `OFFERED` a job, some perhaps twice, unordered; a single row with a null id for none.
    Clock: the database's. Locks: none; what another claim is just starting is among them.
    Index: `ix_job_claim`, one probe a lane, `ix_job_changed` and `ix_job_ordering_freed`; of what is held the primary key;
    for jobs with an ordering key also `ix_job_ordering` and `uq_job_ordering`.
    """
    job = table(model)
    read = picked(model, changed=True, shared=True, takes=False).cte("read")
    held = _ids(model, "held")
    wanted = union_all(
        select(read.c.id, literal_column("true", Boolean).label("is_new")),
        select(held.c.id, literal_column("false", Boolean)),
    ).subquery("wanted")
    columns: dict[str, ColumnElement[Any]] = {name: job.c[name] for name in OFFERED}
    columns["created_at"] = bounded(job.c.created_at)
    if not inputs:
        columns["input"] = cast(null(), job.c.input.type)
    offered = (
        select(*(columns[name].label(name) for name in OFFERED))
        .where(job.c.id == wanted.c.id, *_is_startable(job))
        .correlate(wanted)
        .lateral("offered")
    )
    found = select(wanted.c.is_new, *offered.c).select_from(wanted.join(offered, true())).subquery("found")
    here = select(literal_column("1").label("one")).subquery("here")
    return select(*as_of(), *found.c).select_from(here.outerjoin(found, true()))


@once_a_model
def claim(model: type[JobMixin[Any]]) -> Select[Any]:
    """Start an attempt on up to `limit` of the jobs named, those that come first in `ids` and are still due.

    Parameters: `ids`, no id twice; `of_queue`; `types`; `limit`; `worker_id`; `grace`.
    Shape, Changes, Clock, Locks, Obliges: as `claims.claim`.
    Index: the primary key; for a job with an ordering key also `ix_job_ordering` and `uq_job_ordering`.
    """
    job = table(model)
    wanted = _ids(model, "ids")
    taken = (
        select(job.c.id)
        .where(job.c.id == wanted.c.id, *_is_startable(job))
        .with_for_update(key_share=True, skip_locked=True)
        .correlate(wanted)
        .lateral("taken")
    )
    # The LIMIT stops the probes as soon as enough rows are locked.
    chosen = select(taken.c.id).select_from(wanted.join(taken, true())).limit(bindparam("limit", type_=Integer))
    return started(model, chosen.cte("picked"))


def _is_startable(job: Table) -> list[ColumnElement[bool]]:
    # By the text of its status, which no partial index can serve: the primary key stays the only way to the row.
    return [
        cast(job.c.status, Text) == literal_column("'pending'"),
        job.c.queue == bindparam("of_queue", type_=Text),
        *is_due(job),
    ]


def _ids(model: type[JobMixin[Any]], name: str) -> TableValuedAlias:
    key = id_parameter(model.__jobqueue__)
    return func.unnest(array(name, key)).table_valued(column("id", key)).render_derived(name)
