"""Enqueueing: waking workers when an added job commits, and adding many at once.

One job, or some, need no operation: `session.add(Job(...))`. What this module adds to that is the wake-up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, inspect
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapper, Session, object_session

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.statements import jobs, notifications

JobT = TypeVar("JobT", bound=JobMixin[Any])

QUIET: Final = timedelta(milliseconds=50)
"""After a committed wake-up of a queue this process sends no other for so long: a woken worker keeps looking for longer."""

_Topic = tuple[str, str]
_told: dict[_Topic, float] = {}
_pending: WeakKeyDictionary[Session, set[_Topic]] = WeakKeyDictionary()


@event.listens_for(JobMixin, "after_insert", propagate=True)
def _wake_after_insert(mapper: Mapper[Any], connection: Connection, job: JobMixin[Any]) -> None:
    """Send the wake-up in the job's own transaction: a rollback, also of a savepoint, takes it back."""
    session = object_session(job)
    if session is not None:
        _wake(session, connection, type(job), job.queue)


def _wake(session: Session, connection: Connection, model: type[JobMixin[Any]], queue: str) -> None:
    topic = (model.__jobqueue__.channel("due"), queue)
    sent = _pending.setdefault(session, set())
    if topic in sent or time.monotonic() - _told.get(topic, -1e9) < QUIET.total_seconds():
        return
    sent.add(topic)
    connection.execute(notifications.notify_due(model, queue))


@event.listens_for(Session, "after_commit")
def _remember_told(session: Session) -> None:
    # Only a committed wake-up has woken anybody, so only that may silence the next one.
    if session in _pending and session.get_nested_transaction() is None:
        now = time.monotonic()
        _told.update((topic, now) for topic in _pending.pop(session))


@event.listens_for(Session, "after_soft_rollback")
def _forget_untold(session: Session, previous: object) -> None:
    _pending.pop(session, None)


def enqueue_many(session: Session, new: Iterable[JobT], *, model: type[JobT] | None = None) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the order given.

    `new`: jobs as `Job(...)` or `handler.job(...)` make them, all of one class; they stay transient, so this is the
    cheap way for thousands. `model` is only needed to say so for an empty list.
    Changes: one row a job. Locks: none but the new rows'.
    Raises: InvalidJobError when they are of several classes or already in a session; ConflictError for an id or key
    that is taken. Nothing is written then.
    """
    listed = list(new)
    if not listed:
        return []
    kind: type[JobMixin[Any]] = model or type(listed[0])
    for index, job in enumerate(listed):
        if type(job) is not kind:
            raise InvalidJobError(f"new[{index}]", f"is a {type(job).__name__}, the others are {kind.__name__}")
        if object_session(job) is not None or inspect(job).persistent:
            raise InvalidJobError(f"new[{index}]", "is already in a session; add it there, or pass a fresh job")
    set_somewhere = {name for job in listed for name in job.__dict__} - {"scheduled_at"}
    columns = {
        attribute.columns[0].name: attribute.key
        for attribute in inspect(kind).column_attrs
        if attribute.key in set_somewhere
    }
    values: dict[str, list[Any]] = {}
    for name, key in columns.items():
        given = [job.__dict__.get(key) for job in listed]
        as_text = isinstance(kind.__table__.c[name].type, JSONB)
        values[name] = [json.dumps(value) for value in given] if as_text else given
    values["delays"] = [job.__dict__.get("_delay") for job in listed]
    values["ats"] = [job.__dict__.get("_at") for job in listed]
    with translated():
        connection = session.connection()
        connection.execute(jobs.enqueue_many(kind, list(columns)), values)
        for queue in sorted({job.queue for job in listed}):
            _wake(session, connection, kind, queue)
    return [job.id for job in listed]
