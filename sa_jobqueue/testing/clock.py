"""The queue's clock in tests: it is the database's, so a test moves the stored times instead."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, overload

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.testing._dispatch import on_session

_COMPANIONS: Final = ("Attempt", "Step", "Event", "DeadLetter", "Queue", "JobType", "Schedule", "RateState", "Quarantine")
"""Not `Worker`: a worker that is running must not seem dead."""


@overload
def advance(session: Session, by: timedelta, *, model: JobClass = Job) -> None: ...
@overload
def advance(session: AsyncSession, by: timedelta, *, model: JobClass = Job) -> Coroutine[Any, Any, None]: ...
def advance(session: Any, by: timedelta, *, model: JobClass = Job) -> Any:
    """Advance the queue's clock: move every time stored in its tables back by `by`, in the session's transaction.

    With an `AsyncSession`, await it. Returns None. `by`: above zero.
    Changes: all rows of the queue but those of workers.
    """
    if not isinstance(by, timedelta) or by <= timedelta(0):
        raise InvalidOptionError("by", f"must be a timedelta above zero, got {by!r}")
    return on_session(session, lambda opened: move(opened, by, model))


def move(session: Session, by: timedelta, model: JobClass) -> None:
    """Move the stored times back."""
    session.flush()
    for kind in (model, *(getattr(model, name) for name in _COMPANIONS)):
        columns = [column for column in kind.__table__.c if isinstance(column.type, TIMESTAMP)]
        if columns:
            session.execute(update(kind.__table__).values({column: column - by for column in columns}))
    expire(session, model)


def expire(session: Session, model: JobClass) -> None:
    """Have the session read the jobs that it holds again."""
    for loaded in session.identity_map.values():
        if isinstance(loaded, model | model.Chain):
            session.expire(loaded)
