"""Triage: dead letters listed, grouped by error, redriven or dismissed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.models import DeadLetterMixin, Job, JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.given_ids import check_after, check_ids
from sa_jobqueue.operations.jobs import _change
from sa_jobqueue.operations.pages import Page, check_limit, check_lists, page_of
from sa_jobqueue.statements import dead_letters, jobs
from sa_jobqueue.types import DeadReason, JobId, JobStatus

CHUNK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters are meant; an empty part means any, `resolved` None means both. `queues`: each with its parts."""

    ids: Sequence[JobId] = ()
    job_ids: Sequence[JobId] = ()
    types: Sequence[str] = ()
    queues: Sequence[str] = ()
    reasons: Sequence[DeadReason] = ()
    fingerprints: Sequence[str] = ()
    died_before: datetime | None = None
    resolved: bool | None = False

    def __post_init__(self) -> None:
        lists = ("ids", "job_ids", "types", "queues", "reasons", "fingerprints")
        check_lists(**{name: getattr(self, name) for name in lists})


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one type, reason and error."""

    type_name: str
    reason: str
    fingerprint: str | None
    error_type: str | None
    count: int
    first_died_at: datetime
    last_died_at: datetime
    example_job_id: JobId


def list_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    model: type[JobMixin[Any]] = Job,
) -> Page[DeadLetterMixin[Any]]:
    """Return one page of dead letters, in the order of their ids; otherwise as `list_jobs`.

    Locks: none. Raises: InvalidOptionError; InvalidJobError for an id that is not of this queue's id type.
    """
    check_limit(limit)
    check_after(model, after)
    conditions = _conditions(model, where)
    statement = dead_letters.page(model, *conditions, after=after, limit=limit + 1, newest_first=newest_first)
    return page_of(session.scalars(statement).all(), limit=limit, position=lambda letter: letter.id)


def group_dead_letters(
    session: Session, *, where: DeadLetterFilter = DeadLetterFilter(), model: type[JobMixin[Any]] = Job
) -> list[DeadLetterGroup]:
    """Count dead letters by type, reason and error, most frequent first. Locks: none; reads every matching dead letter."""
    rows = session.execute(dead_letters.groups(model, *_conditions(model, where)))
    return [DeadLetterGroup(*row) for row in rows]


def redrive_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str = "",
    limit: int = CHUNK,
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Put dead jobs back to pending with as many fresh attempts as they once had; return their ids.

    It is the same job again: its chain and whatever waits for it go on. `by`: who does it; the database's user unless
    given. `limit`: at most so many a call, 1 to 1,000; commit and call again until fewer come back. `dry_run` only
    tells which.
    Changes: dead -> pending; the dead letter's `resolution`, `resolved_at`, `resolved_by`.
    Locks: the jobs, their chains' roots and those they still wait for, roots first, each kind in the order of their ids,
    until the transaction ends.
    Raises: InvalidOptionError; ConflictError when an open chain meanwhile holds a job's deduplication key. Nothing is
    written then.
    """
    check_limit(limit)
    conditions = _conditions(model, where)
    ids = list(session.scalars(dead_letters.jobs_of(model, *conditions, limit=limit)))
    if dry_run or not ids:
        return ids
    standing = {row.id: row.status for row in session.execute(jobs.lock(model, ids, blockers=True))}
    # One that another transaction has just redriven is skipped.
    dead = [job_id for job_id in ids if standing.get(job_id) is JobStatus.DEAD]
    if by:
        with translated():
            session.execute(select(func.set_config("sa_jobqueue.actor", by, True)))
    _change(session, dead, model, status=JobStatus.PENDING)
    if by:
        session.execute(select(func.set_config("sa_jobqueue.actor", "", True)))
    return dead


def dismiss_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str,
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> list[Any]:
    """Resolve dead letters as dismissed; return their ids. Their jobs stay dead.

    `by`: who dismissed them; it is recorded. Dead letters that are already resolved do not change.
    Changes: `resolution`, `resolved_at`, `resolved_by`. Locks: the dead letters, until the transaction ends.
    """
    conditions = _conditions(model, where)
    if dry_run:
        return list(session.scalars(select(model.DeadLetter.id).where(model.DeadLetter.resolution.is_(None), *conditions)))
    return list(session.scalars(dead_letters.dismiss(model, *conditions, by=by)))


def _conditions(model: type[JobMixin[Any]], where: DeadLetterFilter) -> list[ColumnElement[bool]]:
    check_ids(model, ids=where.ids, job_ids=where.job_ids)
    return dead_letters.matching(model, **asdict(where))
