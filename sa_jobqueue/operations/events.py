"""Sending the events that jobs wait for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import payloads
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations.pages import check_limit
from sa_jobqueue.statements import steps
from sa_jobqueue.types import LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """An event that jobs wait for."""

    event: str
    """Its name."""
    jobs: int
    """Number of jobs that wait for it."""
    since: datetime
    """When the first of them began to wait."""
    times_out_at: datetime
    """When the first of them stops waiting."""


def list_awaited_events(session: Session, *, limit: int = 1000, model: type[JobMixin[Any]] = Job) -> list[AwaitedEvent]:
    """Return the events that jobs wait for, by name, at most `limit`.

    Cost: reads every waiting job.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    rows = session.execute(steps.waits(model), {"limit": limit}).mappings()
    return [AwaitedEvent(**row) for row in rows]


def send_event(
    session: Session,
    event: str,
    payload: Any = None,
    *,
    keep: timedelta = timedelta(days=30),
    model: type[JobMixin[Any]] = Job,
) -> bool:
    """Send an event, when and only when the session's transaction commits; return whether it is the first of its name.

    Jobs that wait for it (`AttemptContext.wait_for`) become due immediately, and workers are notified. If an event of that
    name was sent before and has not expired, nothing changes: the first one counts.
    `event`: its name, 1 to 200 characters, such as `approved:7`. `payload`: JSON, a dataclass or a Pydantic model, at most
    1 MB; no codec encodes it. `keep`: how long it is kept for jobs that begin to wait later.
    Changes: a row of `job_event`, and the waiting jobs' due time. Locks: the name until the transaction ends (other senders
    of it wait, and attempts that wait for it continue after that), and the waiting jobs.
    Raises: InvalidOptionError, also unless the transaction is READ COMMITTED; InvalidPayloadError, PayloadTooLargeError.
    """
    check_event(event)
    if not isinstance(keep, timedelta) or not timedelta(0) < keep <= LONGEST:
        raise InvalidOptionError("keep", f"must be a timedelta above zero and at most {LONGEST.days} days, got {keep!r}")
    document = json.dumps(payloads.encode_any("payload", payload))
    session.flush()
    try:
        given = {"event": event, "payload": document, "keep": keep}
        is_first: bool = session.execute(steps.send_event(model), given).scalar_one()
    except DBAPIError as error:
        diagnosis = diagnose(error)
        if diagnosis.sqlstate == "SJ003":
            raise InvalidOptionError("session", diagnosis.message) from error
        raise
    return is_first
