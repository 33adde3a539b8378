"""Read jobs, and cancel, reschedule or trigger them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Row, func
from sqlalchemy.orm import Session

from sa_jobqueue.errors import IllegalTransitionError, InvalidOptionError, NotFoundError
from sa_jobqueue.models import AttemptMixin, Job, JobClass
from sa_jobqueue.models.checks import check_id, due_at
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.blockers import unblock_all
from sa_jobqueue.operations.pages import MAX_PAGE, SCAN_LIMIT, BulkResult, Filter, Page
from sa_jobqueue.operations.transactions import queue_connection, translated
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, JobT
from sa_jobqueue.statements import jobs, listings, notifications, priorities, progress
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import ENDED, INITIAL, MAX_PRIORITY, MIN_PRIORITY, AttemptOutcome, JobId, JobStatus, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter(Filter):
    """Filter of a listing of jobs; an empty field matches all.

    `statuses`, `types`, `queues`: of the job. `ids`: these jobs. `fairness_keys`: in all queues, unless `queues` restricts
    them; "" matches jobs without a key. `chain_ids`: jobs of these chains. `chain_types`: jobs of chains whose root has one
    of these types. `created_after` (inclusive), `created_before` (exclusive): aware, when the job was enqueued.
    """

    statuses: Sequence[JobStatus] = ()
    types: Sequence[str] = ()
    queues: Sequence[str] = ()
    fairness_keys: Sequence[str] = ()
    ids: Sequence[JobId] = ()
    chain_ids: Sequence[JobId] = ()
    chain_types: Sequence[str] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None


def get_job(session: Session, job_id: JobId, *, model: type[JobT] = DEFAULT_MODEL) -> JobT:  # type: ignore[assignment]
    """Return a job, read from the database.

    Raises: NotFoundError.
    """
    check_id(model, "job_id", job_id)
    with translated():
        job = session.get(model, job_id, populate_existing=True)
    if job is None:
        raise NotFoundError("job", [job_id], reason="")
    return job


def list_jobs(
    session: Session,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> Page[JobT]:
    """Return one page of jobs, ordered by id.

    `matching`: a condition on columns of the job: `Job.input["tenant"].as_integer() == 7`.
    `columns`: names of the columns to load, as by `load_only`; by default all. `newest_first`: largest ids first. UUIDv7
    ids are ordered by time; other ids are not. `scan_limit`: maximum number of jobs read per call, 1 to 1,000,000. A filter
    with few matches leads to short pages.
    Shape: at most `limit` jobs; the last page is the one whose `next` is None.
    """
    pages.check_limit(limit, scan_limit)
    pages.check_columns(model, columns)
    pages.check_ids(model, ids=where.ids, chain_ids=where.chain_ids)
    pages.check_after(model, after)
    conditions = [] if matching is None else [_checked(matching, model)]
    # Few jobs of chains are found by their index; many are walked past by id, like any others.
    few = bool(where.chain_ids) and len(where.chain_ids) + _continuations(session, where.chain_ids, model) <= scan_limit
    parts: dict[str, Any] = {"queues": where.queues, "fairness_keys": where.fairness_keys}
    with translated():
        unfinished = pages.few_unfinished(session, model, where.statuses, **parts, most=scan_limit)
    walk = {"columns": columns, "after": after, "limit": limit, "scan_limit": scan_limit, "newest_first": newest_first}
    statement = listings.jobs(
        model,
        *listings.jobs_like(model, where),
        *conditions,
        narrowed=listings.jobs_among(model, ids=where.ids, chain_ids=where.chain_ids if few else (), unfinished=unfinished),
        **walk,
    )
    with translated():
        return pages.scanned_page(session, statement, limit=limit, scan_limit=scan_limit)


def _checked(matching: ColumnElement[bool], model: JobClass) -> ColumnElement[bool]:
    """Return a condition that reads the jobs' table alone: another one would be joined without a condition."""
    if not isinstance(matching, ColumnElement):
        raise InvalidOptionError(
            "matching", f"must be a condition such as Job.input['tenant'].as_integer() == 7, got {matching!r}"
        )
    if listings.foreign(model, matching):
        raise InvalidOptionError("matching", f"must be about columns of {model.__name__} alone")
    return matching


def _continuations(session: Session, chain_ids: Sequence[JobId], model: JobClass) -> int:
    with translated():
        return int(session.scalars(listings.count_continuations(model, chain_ids)).one())


def list_attempts(
    session: Session,
    job_id: JobId,
    *,
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: JobClass = Job,
) -> Page[AttemptMixin[Any]]:
    """Return one page of the unsuccessful attempts of a job, ordered by number.

    `after`: the number of an attempt. `newest_first`: last attempt first.
    """
    pages.check_limit(limit)
    pages.check_position(after, int)
    check_id(model, "job_id", job_id)
    attempt = model.Attempt
    of_job: ColumnElement[bool] = attempt.job_id == job_id
    statement = listings.objects(attempt.attempt, of_job, after=after, limit=limit + 1, newest_first=newest_first)
    return pages.page_of(session.scalars(statement).all(), limit=limit, position=lambda attempt: attempt.attempt)


def cancel_jobs(
    session: Session, ids: Sequence[JobId], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[Any]:
    """Cancel jobs that have not ended; return those that were cancelled, in the given order.

    The worker of a running job stops it; later writes of the handler's session are rolled back.
    `ids`: ids of the jobs.
    Changes: blocked, pending, running -> cancelled; inserts an attempt for each job that was running; unblocks or fails
    jobs that wait for one of the chains.
    Locks: the roots of their chains, then the jobs, each in the order of their ids.
    Raises: NotFoundError naming every unknown id.
    """
    locked = _lock(session, ids, model, dry_run=dry_run)
    unique_ids = list(dict.fromkeys(ids))
    open_ids = [job_id for job_id in unique_ids if locked[job_id].status not in ENDED]
    if dry_run:
        return BulkResult(open_ids, len(unique_ids))
    _cancel(session, open_ids, model, locked)
    record(session, "cancel_jobs", by=by, ids=open_ids, matched=len(unique_ids), model=model, jobs=unique_ids)
    return BulkResult(open_ids, len(unique_ids))


def reschedule_jobs(
    session: Session,
    ids: Sequence[JobId],
    *,
    delay: timedelta | None = None,
    at: datetime | None = None,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Change when pending or blocked jobs are due, all of them or none; return them in the given order.

    `ids`: ids of the jobs. `delay`, `at`: as for a new job; without them, the jobs are due now.
    Changes: `scheduled_at`. Locks: as `cancel_jobs`.
    Raises: InvalidJobError for the time; NotFoundError; IllegalTransitionError naming every job that is neither
    pending nor blocked.
    """
    arguments = {"delay": delay, "at": at}
    return _reschedule(session, "reschedule_jobs", ids, arguments, by=by, dry_run=dry_run, model=model)


def trigger_jobs(
    session: Session, ids: Sequence[JobId], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[Any]:
    """Make pending jobs due now, all of them or none: scheduled jobs early, and retries before the end of their backoff.

    Otherwise like `reschedule_jobs`.
    """
    return _reschedule(session, "trigger_jobs", ids, {}, by=by, dry_run=dry_run, model=model)


def _reschedule(
    session: Session,
    operation: str,
    ids: Sequence[JobId],
    arguments: dict[str, Any],
    *,
    by: str | None,
    dry_run: bool,
    model: JobClass,
) -> BulkResult[Any]:
    due = due_at(**({"delay": None, "at": None} | arguments))
    locked = _lock(session, ids, model, dry_run=dry_run)
    offenders = {job_id: locked[job_id].status for job_id in ids if locked[job_id].status not in INITIAL}
    if offenders:
        offender_list = ", ".join(f"{job_id} is {status}" for job_id, status in islice(offenders.items(), 10))
        more = f" and {len(offenders) - 10} more" if len(offenders) > 10 else ""
        raise IllegalTransitionError(
            f"only pending and blocked jobs can be rescheduled: {offender_list}{more}; nothing was changed"
        )
    unique_ids = list(dict.fromkeys(ids))
    if not dry_run:
        _change(session, unique_ids, model, scheduled_at=func.now() if due is None else due)
        record(session, operation, by=by, ids=unique_ids, model=model, jobs=unique_ids, **arguments)
    return BulkResult(unique_ids, len(unique_ids))


def _lock(session: Session, ids: Sequence[JobId], model: JobClass, *, dry_run: bool = False) -> dict[Any, Row[Any]]:
    """Lock jobs and their chains' roots, or with `dry_run` only read them; return the rows of both, by id."""
    pages.check_ids(model, ids=ids)
    session.flush()
    statement = jobs.lock(model, ids, for_update=not dry_run)
    locked: dict[Any, Row[Any]] = {row.id: row for row in session.execute(statement)}
    missing = [job_id for job_id in ids if job_id not in locked]
    if missing:
        raise NotFoundError("job", missing)
    return locked


def _cancel(session: Session, ids: Sequence[JobId], model: JobClass, locked: Mapping[Any, Row[Any]]) -> None:
    """Cancel jobs, and unblock those that wait for their chains. `locked`: the rows of both, by id, from `jobs.lock`."""
    running = [job_id for job_id in ids if locked[job_id].status is JobStatus.RUNNING]
    with translated():
        for some in _batches(running):
            session.execute(jobs.interrupt(model, AttemptOutcome.CANCELLED), {"ids": some})
            session.execute(notifications.notify_each(model, "lost"), {"ids": list(map(str, some))})
        for some in _batches(ids):
            session.execute(jobs.cancel(model), {"ids": some})
    _expire(session, ids, model)
    ended = sorted({locked[job_id].chain_id for job_id in ids})
    unblock_all(queue_connection(session, model), model, [chain_id for chain_id in ended if locked[chain_id].has_waiters])


def _change(session: Session, ids: Sequence[JobId], model: JobClass, **values: Any) -> None:
    if not ids:
        return
    with translated():
        # In parts: with all of many ids in one array, the server looks through the array for each row.
        for some in _batches(ids):
            session.execute(jobs.change(model, some, **values))
            if (touch := jobs.touch(model)) is not None:
                session.execute(touch, {"ids": some}, execution_options={"synchronize_session": False})
    _expire(session, ids, model)


def _batches(ids: Sequence[JobId]) -> Iterator[list[JobId]]:
    return (list(ids[first : first + BATCH]) for first in range(0, len(ids), BATCH))


def _expire(session: Session, ids: Sequence[JobId], model: JobClass) -> None:
    """Expire jobs that have been changed: the session's copies are out of date."""
    for job_id in ids if session.identity_map.keys() else ():
        job = session.identity_map.get(session.identity_key(model, job_id))
        if job is not None:
            session.expire(job)


def set_priority(
    session: Session,
    priority: int,
    *,
    where: JobFilter = JobFilter(),
    matching: ColumnElement[bool] | None = None,
    after: JobId | None = None,
    limit: int = MAX_PAGE,
    scan_limit: int = SCAN_LIMIT,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Set the priority of waiting jobs that match a filter, one page per call; return those that had another priority.

    `priority`: -9 to 9, larger first. `where`: only pending and blocked jobs are changed. Running jobs, and jobs enqueued
    later, keep theirs. `matching`, `after`, `limit`, `scan_limit`: as in `list_jobs`, oldest first. Commit after each
    page.
    Changes: `priority`.
    Locks: the jobs, roots first, each in the order of their ids.
    """
    if not isinstance(priority, int) or isinstance(priority, bool) or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidOptionError("priority", f"must be from {MIN_PRIORITY} to {MAX_PRIORITY}, got {priority!r}")
    statuses = sorted(INITIAL.intersection(where.statuses) if where.statuses else INITIAL)
    if not statuses:
        raise InvalidOptionError("where", "must include the status pending or blocked: only waiting jobs can be changed")
    session.flush()
    page = list_jobs(
        session,
        where=replace(where, statuses=statuses),
        matching=matching,
        columns=["id"],
        after=after,
        limit=limit,
        newest_first=False,
        scan_limit=scan_limit,
        model=model,
    )
    ids = [job.id for job in page]
    if not ids:
        return BulkResult([], 0, page.next)
    if dry_run:
        rows = session.execute(jobs.named(model, ("id", "priority")), {"ids": ids})
        changing_ids = {row.id for row in rows if row.priority != priority}
        return BulkResult([job_id for job_id in ids if job_id in changing_ids], len(ids), page.next)
    with translated():
        changed = set(session.execute(priorities.set_priority(model), {"ids": ids, "to": priority}).scalars())
    _expire(session, list(changed), model)
    changed_ids = [job_id for job_id in ids if job_id in changed]
    # Not the condition itself: it may quote payloads.
    about = {"where": where, "matching": None if matching is None else "a condition", "priority": priority}
    record(session, "set_priority", by=by, ids=changed_ids, matched=len(ids), model=model, **about)
    return BulkResult(changed_ids, len(ids), page.next)


def get_progress(session: Session, job_id: JobId, *, model: JobClass = Job) -> Progress | None:
    """Return the progress that a job's running attempt had reported by its worker's last heartbeat.

    None if the job is not running, or its attempt has not reported any yet.
    Raises: NotFoundError.
    """
    check_id(model, "job_id", job_id)
    with translated():
        row = session.execute(progress.of_job(model), {"job_id": job_id}).one_or_none()
    if row is None:
        raise NotFoundError("job", [job_id], reason="")
    return progress.read(row)
