"""Dead letters: found, grouped, dismissed. Redriving changes the job: `jobs.change`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from sa_jobqueue.models import JobClass
from sa_jobqueue.models.base import CURRENT_XID
from sa_jobqueue.statements._parts import alike, given_ids, table
from sa_jobqueue.types import JobId, JobStatus, Resolution


def page(
    model: JobClass, *conditions: sa.ColumnElement[bool], after: JobId | None, limit: int, newest_first: bool
) -> sa.Select[Any]:
    """Return one page of dead letters as ORM objects, by id.

    Shape: up to `limit` `(DeadLetter,)`, those after the id `after`. Index: the primary key.
    """
    dead_letter = model.DeadLetter
    key: Any = dead_letter.id
    chosen = sa.select(dead_letter).where(*conditions).order_by(key.desc() if newest_first else key.asc()).limit(limit)
    return chosen if after is None else chosen.where(key < after if newest_first else key > after)


def matching(model: JobClass, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a `DeadLetterFilter`."""
    row = table(model.DeadLetter)
    keys = ((row.c.id, where.ids), (row.c.job_id, where.job_ids))
    found = [column == sa.any_(given_ids(model, ids)) for column, ids in keys if ids]
    columns = {"types": row.c.type_name, "queues": row.c.queue, "fairness_keys": row.c.fairness_key, "reasons": row.c.reason}
    columns |= {"fingerprints": row.c.error_fingerprint, "died_after": row.c.died_at, "died_before": row.c.died_at}
    found += alike(where, columns)
    if where.resolved is not None:
        found.append(row.c.resolution.is_not(None) if where.resolved else row.c.resolution.is_(None))
    return found


def groups(model: JobClass, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Count dead letters by type, reason and error.

    Shape: `(type_name, reason, fingerprint, error_type, count, first_died_at, last_died_at, example_job_id)`, most
    frequent first.
    """
    dead_letter = model.DeadLetter
    count = sa.func.count()
    return (
        sa.select(
            dead_letter.type_name,
            dead_letter.reason,
            dead_letter.error_fingerprint.label("fingerprint"),
            sa.func.min(dead_letter.error["type"].as_string()).label("error_type"),
            count.label("count"),
            sa.func.min(dead_letter.died_at).label("first_died_at"),
            sa.func.max(dead_letter.died_at).label("last_died_at"),
            sa.func.array_agg(dead_letter.job_id)[1].label("example_job_id"),
        )
        .where(*conditions)
        .group_by(dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint)
        .order_by(count.desc(), dead_letter.type_name, dead_letter.reason, dead_letter.error_fingerprint)
    )


def dismiss(model: JobClass, ids: Sequence[JobId], *, by: str) -> sa.Update:
    """Resolve unresolved dead letters as dismissed; their jobs stay dead.

    Shape: `(id,)` per dead letter. Clock: the database's. Locks: the dead letters. Index: the primary key.
    """
    dead_letter = model.DeadLetter
    return (
        sa.update(dead_letter)
        .where(
            dead_letter.resolution.is_(None),
            dead_letter.id == sa.any_(given_ids(model, ids)),
        )
        .values(resolution=Resolution.DISMISSED, resolved_at=sa.func.now(), resolved_by=by, changed_xid=CURRENT_XID)
        .returning(dead_letter.id)
        .execution_options(synchronize_session=False)
    )


def jobs_of(model: JobClass, *conditions: sa.ColumnElement[bool], after: JobId | None, limit: int) -> sa.Select[Any]:
    """Return the dead jobs of dead letters, by job id; no row for a job that is gone or alive again.

    Shape: up to `limit` `(job_id,)`, ascending, each once, those behind the id `after`.
    Index: `ix_dead_letter_job`, and the job's primary key.
    """
    key: Any = model.DeadLetter.job_id
    dead = sa.exists().where(model.id == key, model.status == JobStatus.DEAD)
    chosen = sa.select(key).distinct().where(*conditions, dead).order_by(key).limit(limit)
    return chosen if after is None else chosen.where(key > after)
