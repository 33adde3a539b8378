"""After a restore into another cluster: give rows whose transactions this cluster has not reached new numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.statements import restored
from sa_jobqueue.types import JobId

BATCH: Final = 1000
"""Rows that one transaction looks at."""


@dataclass(frozen=True, slots=True)
class Restamped:
    """Rows that were given new numbers."""

    jobs: int
    attempts: int
    dead_letters: int


def restored_tables(session: Session, *, model: JobClass = Job) -> list[str]:
    """Return the tables that have rows of transactions which this cluster has not reached: jobs, attempts, dead letters.

    Such rows were restored from a dump of a cluster with a larger transaction counter, or were replicated from one.
    Locks: none.
    """
    next_xid = session.scalar(restored.next_number())
    parameters = {"next_xid": next_xid}
    return [f"{table}s" for table in restored.TABLES if session.scalar(restored.present(model, table=table), parameters)]


def restamp(
    session: Session, *, model: JobClass = Job, on_progress: Callable[[int], object] | None = None, batch_size: int = BATCH
) -> Restamped:
    """Give rows of transactions that this cluster has not reached the number of the transaction which does so.

    They are then rows of the past, as they should be: streams deliver each once, and `upTo=watermark` reads them. Rows whose
    numbers the cluster has reached are left alone. It can be interrupted, and called again at any time.
    `on_progress`: called after each transaction with the number of rows that it changed.
    Changes: `changed_xid`. Locks: the rows of a transaction; locked ones are skipped.
    Obliges: the session has no transaction; this commits many.
    """
    report = on_progress or (lambda _rows: None)
    jobs = 0
    after: JobId | None = None
    while True:
        parameters = {"limit": batch_size} | ({} if after is None else {"after": after})
        with session.begin():
            page = session.execute(restored.job_page(model, first=after is None), parameters).all()
        ids = [row.id for row in page if row.is_ahead]
        if ids:
            with session.begin():
                stamped = len(session.execute(restored.stamp_jobs(model), {"ids": ids}).all())
            jobs += stamped
            report(stamped)
        if len(page) < batch_size:
            break
        after = page[-1].id
    counts = []
    for statement in (restored.stamp_attempts(model), restored.stamp_dead_letters(model)):
        rows = 0
        while True:
            with session.begin():
                stamped = len(session.execute(statement, {"limit": batch_size}).all())
            rows += stamped
            report(stamped)
            if not stamped:
                break
        counts.append(rows)
    return Restamped(jobs, *counts)
