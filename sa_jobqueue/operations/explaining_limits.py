"""For `explain_job`: the running jobs that use up a limit or all slots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.spans import span
from sa_jobqueue.operations.workers import WorkerStatus
from sa_jobqueue.statements import explaining


def held_by(
    session: Session, model: type[JobMixin[Any]], now: datetime, *, queue: str | None = None, type_name: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Describe the longest running job of a queue, fairness key or type; the evidence has one job per worker.

    The description is empty if none is running.
    """
    rows = session.execute(explaining.holders(model), {"queue": queue, "type_name": type_name}).all()
    if not rows:
        return "", {"held_by": []}
    first = rows[0]
    words = f"; the longest running is job {first.job_id}, for {span(now - first.started_at)}, on {first.worker_id}"
    return words, {"held_by": [row.job_id for row in rows]}


def slots_of_type_taken(
    session: Session, job: Any, model: type[JobMixin[Any]], now: datetime, ready: Sequence[WorkerStatus]
) -> tuple[str, dict[str, Any]] | None:
    """Return the explanation if all slots of a job's type are in use in the workers that could run it, else None."""
    slots = {worker.id: worker.type_slots.get(job.type_name) for worker in ready}
    if None in slots.values():
        return None
    rows = session.execute(explaining.holders(model), {"queue": None, "type_name": job.type_name}).all()
    running = {row.worker_id: row.n for row in rows}
    if any(running.get(worker_id, 0) < (most or 0) for worker_id, most in slots.items()):
        return None
    words, evidence = held_by(session, model, now, type_name=job.type_name)
    total = sum(most or 0 for most in slots.values())
    evidence |= {"slots_of_type": total, "running_of_type": sum(running.values())}
    where = "1 worker" if len(ready) == 1 else f"{len(ready):,} workers"
    return f"all {total:,} slots of type {job.type_name!r} in {where} are in use{words}", evidence
