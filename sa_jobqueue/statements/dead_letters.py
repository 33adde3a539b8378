"""Dead letters: found, grouped, dismissed. Redriving changes the job: `jobs.change`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from sa_jobqueue.models.base import CURRENT_XID
from sa_jobqueue.statements._parts import Tables, alike, bound
from sa_jobqueue.types import JobId, JobStatus, Resolution


@bound
def matching(t: Tables, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a `DeadLetterFilter`."""
    row = t.dead_letter
    keys = ((row.c.id, where.ids), (row.c.job_id, where.job_ids))
    conditions = [column == sa.any_(t.given_ids(ids)) for column, ids in keys if ids]
    columns: dict[str, Any] = {"types": row.c.type_name, "queues": row.c.queue, "fairness_keys": row.c.fairness_key}
    # As text: a reason of another release is not a value of the type everywhere, and matches nothing there.
    columns |= {"reasons": sa.cast(row.c.reason, sa.Text)}
    columns |= {"fingerprints": row.c.error_fingerprint, "died_after": row.c.died_at, "died_before": row.c.died_at}
    conditions += alike(where, columns)
    if where.resolved is not None:
        conditions.append(row.c.resolution.is_not(None) if where.resolved else row.c.resolution.is_(None))
    return conditions


@bound
def groups(
    t: Tables, *conditions: sa.ColumnElement[bool], scan: int | None = None, limit: int | None = None
) -> sa.Select[Any]:
    """Count dead letters by type, reason and error, most frequent first.

    `scan`: how many dead letters are read; `limit`: how many groups are returned; None for all.
    Shape: `(type_name, reason, fingerprint, error_type, message, fairness_key, count, last_hour, first_died_at,
    last_died_at, example_job_id)`: the class and the first 300 characters of the message of one error; the fairness key,
    empty unless all have the same. Clock: the database's.
    """
    names = ("type_name", "reason", "error_fingerprint", "error", "died_at", "job_id", "fairness_key")
    dead_letters = sa.select(*(t.dead_letter.c[name] for name in names)).where(*conditions).limit(scan).subquery("found")
    key = (dead_letters.c.type_name, dead_letters.c.reason, dead_letters.c.error_fingerprint)
    count, lowest = sa.func.count(), sa.func.min(dead_letters.c.fairness_key)
    an_hour_ago = sa.func.now() - sa.literal_column("interval '1 hour'")
    return (
        sa.select(
            *key[:2],
            key[2].label("fingerprint"),
            sa.func.min(dead_letters.c.error["type"].as_string()).label("error_type"),
            sa.func.min(sa.func.left(dead_letters.c.error["message"].as_string(), 300)).label("message"),
            sa.case((lowest == sa.func.max(dead_letters.c.fairness_key), lowest), else_="").label("fairness_key"),
            count.label("count"),
            count.filter(dead_letters.c.died_at > an_hour_ago).label("last_hour"),
            sa.func.min(dead_letters.c.died_at).label("first_died_at"),
            sa.func.max(dead_letters.c.died_at).label("last_died_at"),
            sa.func.array_agg(dead_letters.c.job_id)[1].label("example_job_id"),
        )
        .group_by(*key)
        .order_by(count.desc(), *key)
        .limit(limit)
    )


@bound
def dismiss(t: Tables, ids: Sequence[JobId], *, by: str) -> sa.Update:
    """Resolve unresolved dead letters as dismissed; their jobs stay dead.

    Shape: `(id,)` per dead letter. Clock: the database's. Locks: the dead letters. Index: the primary key.
    """
    dead_letter = t.model.DeadLetter
    return (
        sa.update(dead_letter)
        .where(
            dead_letter.resolution.is_(None),
            dead_letter.id == sa.any_(t.given_ids(ids)),
        )
        .values(resolution=Resolution.DISMISSED, resolved_at=sa.func.now(), resolved_by=by, changed_xid=CURRENT_XID)
        .returning(dead_letter.id)
        .execution_options(synchronize_session=False)
    )


@bound
def jobs_of(t: Tables, *conditions: sa.ColumnElement[bool], after: JobId | None, limit: int) -> sa.Select[Any]:
    """Return the dead jobs of dead letters, by job id; no row for a job that is gone or alive again.

    Shape: up to `limit` `(job_id,)`, ascending, each once, those behind the id `after`.
    Index: `ix_dead_letter_job`, and the job's primary key.
    """
    key: Any = t.model.DeadLetter.job_id
    dead = sa.exists().where(t.model.id == key, t.model.status == JobStatus.DEAD)
    chosen = sa.select(key).distinct().where(*conditions, dead).order_by(key).limit(limit)
    return chosen if after is None else chosen.where(key > after)
