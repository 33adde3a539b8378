"""Change the priority of waiting jobs: some jobs, those of a chain, or all that match a filter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.audit import check_by, record
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.jobs import JobFilter, list_jobs
from sa_jobqueue.operations.pages import MAX_PAGE, SCAN_LIMIT, Page
from sa_jobqueue.operations.results import BulkResult
from sa_jobqueue.statements import priorities
from sa_jobqueue.types import INITIAL, MAX_PRIORITY, MIN_PRIORITY, JobId


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
    model: type[JobMixin[Any]] = Job,
) -> BulkResult[Any]:
    """Set the priority of waiting jobs that match a filter, one page per call; return those that had another priority.

    `priority`: -9 to 9, larger first. `where`: only pending and blocked jobs are changed. Running jobs, and jobs enqueued
    later, keep theirs. `matching`, `after`, `limit`, `scan_limit`: as in `list_jobs`, oldest first. Commit after each page;
    workers apply it with their next claim.
    Changes: `priority`.
    Locks: the jobs, roots first, each in the order of their ids, until the transaction ends. It waits for a running claim;
    later claims skip the jobs until then.
    Raises: InvalidOptionError naming the option. Nothing is written then.
    """
    if not isinstance(priority, int) or isinstance(priority, bool) or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidOptionError("priority", f"must be from {MIN_PRIORITY} to {MAX_PRIORITY}, got {priority!r}")
    check_by(by)
    statuses = sorted(INITIAL.intersection(where.statuses) if where.statuses else INITIAL)
    if not statuses:
        raise InvalidOptionError("where", "must include the status pending or blocked: only waiting jobs can be changed")
    session.flush()
    page: Page[Any] = list_jobs(
        session,
        where=replace(where, statuses=statuses),
        matching=matching,
        columns=["id", "priority"],
        after=after,
        limit=limit,
        newest_first=False,
        scan_limit=scan_limit,
        model=model,
    )
    ids = [job["id"] for job in page]
    if not ids:
        return BulkResult([], 0, page.next)
    if dry_run:
        return BulkResult([job["id"] for job in page if job["priority"] != priority], len(ids), page.next)
    with translated():
        changed = set(session.execute(priorities.set_priority(model), {"ids": ids, "to": priority}).scalars())
    for job_id in changed:
        known = session.identity_map.get(session.identity_key(model, job_id))
        if known is not None:
            session.expire(known, ["priority", "changed_xid"])
    done = [job_id for job_id in ids if job_id in changed]
    # Not the condition itself: it may quote payloads.
    about = {"where": where, "matching": None if matching is None else "a condition", "priority": priority}
    record(session, "set_priority", by=by, ids=done, matched=len(ids), model=model, **about)
    return BulkResult(done, len(ids), page.next)
