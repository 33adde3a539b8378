"""Sending the events that jobs wait for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import payloads
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.pages import SCAN_LIMIT, Page, check_limit, check_position
from sa_jobqueue.statements import steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """An event that jobs wait for."""

    event: str
    """Its name."""
    jobs: int
    """Number of jobs that wait for it."""
    since: datetime
    """When the first of them began to wait."""
    times_out_at: datetime | None
    """When the first of them stops waiting; None before the first attempt of a job that only waits for events."""
    is_capped: bool = False
    """Whether more jobs than `jobs` may wait for it."""


def list_awaited_events(
    session: Session, *, after: str | None = None, limit: int = 100, model: JobClass = Job
) -> Page[AwaitedEvent]:
    """Return one page of the events that jobs wait for, by name.

    `after`: the `next` of the page before. `limit`: 1 to 1,000. A call reads at most 10,000 waits.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    check_position(after, str)
    parameters = {"after": after or "", "scan_limit": SCAN_LIMIT, "limit": limit + 1}
    rows = session.execute(steps.waits(model), parameters).all()
    is_cut = bool(rows) and rows[0].scanned == SCAN_LIMIT and len(rows) <= limit
    page_rows = rows[:limit]
    items = [
        AwaitedEvent(
            event=row.event,
            jobs=row.jobs,
            since=row.since,
            times_out_at=row.times_out_at,
            is_capped=is_cut and row is page_rows[-1],
        )
        for row in page_rows
        if row.jobs
    ]
    return Page(items, page_rows[-1].event if is_cut or len(rows) > limit else None)


def send_event(
    session: Session,
    event: str,
    payload: Any = None,
    *,
    keep: timedelta = timedelta(days=30),
    replace: bool = False,
    by: str | None = None,
    model: JobClass = Job,
) -> bool:
    """Send an event, when and only when the session's transaction commits; return whether it is the first of its name.

    Jobs that wait for it (`AttemptContext.wait_for`) become due immediately, and workers are notified. If an event of that
    name was sent before and has not expired, nothing changes: the first one counts.
    `event`: its name, 1 to 200 characters, such as `approved:7`. `payload`: JSON, a dataclass or a Pydantic model, at most
    1 MB; no codec encodes it. `keep`: how long it is kept for jobs that begin to wait later.
    `replace`: delete the event of that name first, if there is one; jobs that have got it keep it. `by`: recorded as its
    sender, and in the audit; the database user by default.
    Changes: a row of `job_event`, and the waiting jobs' due time. Locks: the name, and the waiting jobs.
    Raises: InvalidOptionError, also unless the transaction is READ COMMITTED; InvalidPayloadError, PayloadTooLargeError.
    """
    check_event(event)
    check_duration("keep", keep)
    document = json.dumps(payloads.encode_any("payload", payload))
    session.flush()
    try:
        if replace:
            _delete(session, event, model)
        if by:
            session.execute(select(func.set_config("sa_jobqueue.actor", by, True)))
        parameters = {"event": event, "payload": document, "keep": keep}
        is_first: bool = session.execute(steps.send_event(model), parameters).scalar_one()
    except DBAPIError as error:
        diagnosis = diagnose(error)
        if diagnosis.sqlstate == "SJ003":
            raise InvalidOptionError("session", diagnosis.message) from error
        raise
    if by:
        session.execute(select(func.set_config("sa_jobqueue.actor", "", True)))
        record(session, "send_event", by=by, ids=[event] if is_first else [], matched=1, model=model)
    return is_first


def delete_event(session: Session, event: str, *, by: str | None = None, model: JobClass = Job) -> bool:
    """Delete an event that was sent, so that another one of its name can be sent; return whether there was one.

    Jobs that have got its payload keep it; others wait on. To send the right payload in the same transaction, use
    `send_event` with `replace`.
    `event`: its name. `by`: recorded in the audit.
    Changes: a row of `job_event`. Locks: the name, against senders and attempts that begin to wait.
    Raises: InvalidOptionError, also unless the transaction is READ COMMITTED.
    """
    check_event(event)
    session.flush()
    is_deleted = _delete(session, event, model)
    if by:
        record(session, "delete_event", by=by, ids=[event] if is_deleted else [], matched=1, model=model)
    return is_deleted


def _delete(session: Session, event: str, model: JobClass) -> bool:
    # In two statements: the second sees what was committed while the first one waited.
    level = session.execute(steps.shut_out_event(model), {"event": event}).scalar_one()
    if level not in {"read committed", "read uncommitted"}:
        raise InvalidOptionError("session", f"must be READ COMMITTED to delete an event, this one is {level.upper()}")
    return session.execute(steps.delete_event(model), {"event": event}).first() is not None
