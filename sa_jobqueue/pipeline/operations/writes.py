"""The ledger of bulk writes: committed writes, their results, and rejected rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.pages import BulkResult, Page, check_limit, check_position, page_of
from sa_jobqueue.pipeline.statements import writes


def list_writes(
    session: Session,
    *,
    write_id: str | None = None,
    sequence: int | None = None,
    after: tuple[datetime, str, int] | None = None,
    limit: int = 50,
    model: JobClass = Job,
) -> Page[Row[Any]]:
    """Return one page of bulk writes, newest first, with the columns of `job_bulk_write` but its fingerprint.

    `write_id`: only this write, or the batches of this stream; `sequence`: only this batch.
    Index: `ix_job_bulk_write_written_at`, or the primary key with `write_id`.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    check_position(after, datetime, str, int)
    rows = session.execute(writes.page(model, write_id=write_id, sequence=sequence, after=after, limit=limit + 1))
    return page_of(rows.all(), limit=limit, position=lambda write: (write.written_at, write.write_id, write.sequence))


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """The chains of a bulk write, counted by status at one moment."""

    open: int
    """Not ended yet."""
    completed: int
    """Ended with that status."""
    dead: int
    """Ended with that status; one that is redriven is open again."""
    cancelled: int
    """Ended with that status."""
    deleted: int
    """Ended, and deleted or archived since."""

    @property
    def total(self) -> int:
        """Total number of chains."""
        return self.open + self.completed + self.dead + self.cancelled + self.deleted


def count_write_chains(session: Session, write_id: str, *, sequence: int = 0, model: JobClass = Job) -> WriteCounts | None:
    """Return the chains of a bulk write, counted by status; None if no such write has committed.

    `write_id`: its name. `sequence`: a batch of a stream. Call it once a minute, not more.
    Index: `ix_job_history`.
    """
    row = session.execute(writes.counts(model), {"write_id": write_id, "sequence": sequence}).one()
    return WriteCounts(*tuple(row)[1:]) if row.is_there else None


def list_rejected_rows(
    session: Session, write_id: str, *, after: tuple[int, int, int] | None = None, limit: int = 50, model: JobClass = Job
) -> Page[Row[Any]]:
    """Return one page of the rejected rows of a bulk write, ordered by batch, task and position, as in `job_bulk_reject`.

    Index: `pk_job_bulk_reject`.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    check_position(after, int, int, int)
    rows = session.execute(writes.rejects(model, write_id=write_id, after=after, limit=limit + 1))
    return page_of(
        rows.all(),
        limit=limit,
        position=lambda rejected_row: (rejected_row.sequence, rejected_row.task_id, rejected_row.row),
    )


def prune_writes(
    session: Session, *, older_than: timedelta, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[tuple[str, int]]:
    """Delete bulk writes that committed longer than `older_than` ago, with their rejected rows. Jobs are kept.

    A deleted write can be repeated under its id. The last batch of a stream is kept, because Spark repeats it when the query
    restarts. Returns the id and sequence of each, sorted.
    Changes: deletes rows of `job_bulk_write` and `job_bulk_reject`. Clock: the database's. Locks: those rows.
    Raises: InvalidOptionError unless `older_than` is greater than zero.
    """
    check_duration("older_than", older_than)
    chosen = sorted((row.write_id, row.sequence) for row in session.execute(writes.expired(model), {"age": older_than}))
    if chosen and not dry_run:
        parameters = {"write_ids": [write_id for write_id, _ in chosen], "sequences": [sequence for _, sequence in chosen]}
        for rejected_rows in (True, False):
            session.execute(writes.forget(model, rejected_rows=rejected_rows), parameters)
    return BulkResult(chosen, len(chosen))
