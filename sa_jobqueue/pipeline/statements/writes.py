"""The ledger of bulk writes, as it is listed and pruned. Writes use `statements/bulk.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, array, block, bound, number, statement, status
from sa_jobqueue.types import JobStatus


@bound
def page(
    t: Tables, *, write_id: str | None, sequence: int | None = None, after: tuple[Any, ...] | None, limit: int
) -> sa.Select[Any]:
    """Return writes, the newest first.

    Shape: `(write_id, sequence, staged, enqueued, duplicates, rejected, written_by, written_at)`, up to `limit`, those
    behind `(written_at, write_id, sequence)`. Index: `ix_job_bulk_write_written_at`,
    or the primary key with `write_id`.
    """
    names = ("write_id", "sequence", "staged", "enqueued", "duplicates", "rejected", "written_by", "written_at")
    key = (t.write.c.written_at, t.write.c.write_id, t.write.c.sequence)
    chosen = sa.select(*(t.write.c[name] for name in names)).order_by(*(column.desc() for column in key)).limit(limit)
    if write_id is not None:
        chosen = chosen.where(t.write.c.write_id == write_id)
    if sequence is not None:
        chosen = chosen.where(t.write.c.sequence == sequence)
    return chosen if after is None else chosen.where(sa.tuple_(*key) < _values(after, key))


@statement
def counts(t: Tables) -> sa.Select[Any]:
    """Count the chains that a write enqueued, by how they stand; those that were deleted or archived have ended.

    Parameters: `write_id`, `sequence`. Shape: one row `(is_there, open, completed, dead, cancelled, deleted)`; first,
    whether there is such a write. A write's jobs are those created at the start of its transaction, by a transaction no
    older.
    Locks: none. Index: the ledger's primary key; `ix_job_history`, the pages that changed since the write.
    """
    write_id, sequence = sa.bindparam("write_id", type_=sa.Text), sa.bindparam("sequence", type_=sa.BigInteger)

    def of_ledger(outcome_status: sa.ColumnElement[Any]) -> Any:
        return (
            sa.select(outcome_status).where(t.write.c.write_id == write_id, t.write.c.sequence == sequence).scalar_subquery()
        )

    enqueued = of_ledger(t.write.c.enqueued)
    ended = t.job.c.chain_completed_at.is_not(None)
    outcome = sa.func.coalesce(t.job.c.chain_status, t.job.c.status)
    ends = (JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED)
    columns = [sa.func.count().filter(~ended).label("open")]
    columns += [
        sa.func.count().filter(ended, outcome == status(outcome_status)).label(outcome_status.value)
        for outcome_status in ends
    ]
    deleted = sa.func.coalesce(enqueued, sa.literal_column("0")) - sa.func.count()
    is_there = enqueued.is_not(None).label("is_there")
    return (
        sa.select(is_there, *columns, deleted.label("deleted"))
        .select_from(t.job)
        .where(
            block(number(t.job)) >= block(of_ledger(number(t.write))),
            t.job.c.created_at == of_ledger(t.write.c.written_at),
            t.job.c.chain_index == sa.literal_column("0"),
        )
    )


@bound
def rejects(t: Tables, *, write_id: str, after: tuple[Any, ...] | None, limit: int) -> sa.Select[Any]:
    """Return the rejected rows of a write, by batch, task and place.

    Shape: `(write_id, sequence, task_id, row, field, reason, record, rejected_at)`, up to `limit`, those behind
    `(sequence, task_id, row)`. Index: `pk_job_bulk_reject`.
    """
    reject = t.reject
    names = ("write_id", "sequence", "task_id", "row", "field", "reason", "record", "rejected_at")
    key = (reject.c.sequence, reject.c.task_id, reject.c.row)
    chosen = sa.select(*(reject.c[name] for name in names)).where(reject.c.write_id == write_id).order_by(*key).limit(limit)
    return chosen if after is None else chosen.where(sa.tuple_(*key) > _values(after, key))


def _values(after: Sequence[Any], key: Sequence[Any]) -> Any:
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(after, key, strict=True)))


@statement
def expired(t: Tables) -> sa.Select[Any]:
    """Return writes older than an age, except the last batch of each stream.

    Parameters: `age`, an interval. Shape: `(write_id, sequence)`. Clock: the database's `now()`. Index:
    `ix_job_bulk_write_written_at`.
    """
    later = t.write.alias("later")
    is_followed = sa.select(later.c.write_id).where(
        later.c.write_id == t.write.c.write_id, later.c.sequence > t.write.c.sequence
    )
    # A query's first batch is 0, as a batch write is: where no other follows, it counts as one.
    is_last_of_stream = (t.write.c.sequence > 0) & ~is_followed.exists()
    return sa.select(t.write.c.write_id, t.write.c.sequence).where(
        t.write.c.written_at < sa.func.now() - sa.bindparam("age", type_=sa.Interval), ~is_last_of_stream
    )


@statement
def forget(t: Tables, *, rejected_rows: bool) -> sa.Delete:
    """Delete writes, or their rejected rows. Parameters: `write_ids`, `sequences`, in parallel. Index: the primary key."""
    target = t.reject if rejected_rows else t.write
    write_keys = (
        sa.func.unnest(array("write_ids", sa.Text()), array("sequences", sa.BigInteger()))
        .table_valued(sa.column("write_id", sa.Text), sa.column("sequence", sa.BigInteger))
        .render_derived("given")
    )
    return sa.delete(target).where(target.c.write_id == write_keys.c.write_id, target.c.sequence == write_keys.c.sequence)
