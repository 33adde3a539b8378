"""Notifications of new jobs: idle workers hear of them when the transaction that wrote them commits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, TwoPhaseTransaction, event
from sqlalchemy.orm import Session, SessionTransaction

from sa_jobqueue.errors import require_postgresql
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.policies.fairness import ANY_QUEUE, SEPARATOR, QueueKey
from sa_jobqueue.statements import notifications

LOOK_AGAIN_AFTER: Final = timedelta(milliseconds=100)
"""A transaction that commits so long after it looked for idle workers looks again: one may have fallen asleep meanwhile. A
worker that falls asleep keeps polling for longer than this."""


class _Look(NamedTuple):
    """Jobs that a transaction has made due: its INSERT notified if a worker was idle at the time."""

    connection: Connection
    model: JobClass
    queue_key: str
    at: float


# By transaction, not by session: a session that was closed without a commit is often reused.
_pending: WeakKeyDictionary[SessionTransaction, dict[tuple[str, str], _Look]] = WeakKeyDictionary()
_looked: WeakKeyDictionary[Connection, dict[tuple[JobClass, str], float]] = WeakKeyDictionary()
"""The same of connections without a session. An entry that a rollback leaves makes the next commit look once too often."""


def queue_key_of_job(job: JobMixin[Any]) -> str:
    """Return the text of the queue key to notify of a new job: that of all queues if the database decides."""
    queue, fairness_key = _queue_and_key(job)
    return QueueKey(queue, fairness_key).text if queue else ANY_QUEUE


def queue_keys_of(new: Sequence[JobMixin[Any]]) -> list[str]:
    """Return the texts of the queue keys to notify of new jobs, in their order."""
    return sorted({queue_key_of_job(job) for job in {_queue_and_key(job): job for job in new}.values()})


def _queue_and_key(job: JobMixin[Any]) -> tuple[str | None, str]:
    state = job.__dict__  # instrumented attributes take five times as long to read
    return state.get("queue"), state["fairness_key"]


def notify_workers(session: Session, connection: Connection, model: JobClass, queue_key: str) -> None:
    """Notify the idle workers of a queue when this transaction commits."""
    if is_to_notify(session, connection, model, queue_key):
        connection.execute(notifications.notify_due(model), {"queue": queue_key})


def is_to_notify(session: Session, connection: Connection, model: JobClass, queue_key: str) -> bool:
    """Return whether this is the transaction's first for the queue. Raises: UnsupportedServerError without PostgreSQL."""
    require_postgresql(connection.dialect.name)
    transaction = cast("SessionTransaction", session.get_transaction())  # there is one, since it writes a row
    topic = (
        model.__jobqueue__.channel("due"),
        queue_key.partition(SEPARATOR)[0],
    )  # one topic for all fairness keys of the queue
    looks = _pending.setdefault(transaction, {})
    if topic in looks:
        return False
    looks[topic] = _Look(connection, model, queue_key, time.monotonic())
    return True


def look_again(session: Session) -> None:
    """Notify workers that have become idle since the jobs were written."""
    transaction = session.get_transaction()
    if transaction is None or transaction not in _pending or session.get_nested_transaction() is not None:
        return
    since = time.monotonic() - LOOK_AGAIN_AFTER.total_seconds()
    for look in _pending[transaction].values():
        if look.at < since:
            look.connection.execute(notifications.notify_due(look.model), {"queue": look.queue_key})


def discard_rolled_back(session: Session, previous: SessionTransaction) -> None:
    """Forget notifications within a savepoint that was rolled back."""
    # A rollback to a savepoint discards the notifications sent within it.
    transaction = session.get_transaction()
    if transaction is not None and transaction in _pending:
        _pending[transaction].clear()


def silence_twophase(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    """Have a transaction that is prepared send no notification."""
    if session.twophase and not transaction.nested and connection.dialect.name == "postgresql":
        # PostgreSQL refuses to PREPARE a transaction with a NOTIFY: workers find its jobs at their next poll.
        connection.execute(notifications.SILENCE)


def is_to_notify_on(connection: Connection, model: JobClass, queue_key: str) -> bool:
    """Return whether an INSERT on a connection without a session is to notify; its commit looks again."""
    # Each INSERT, because no event reports a rollback to a savepoint; PostgreSQL delivers equal notifications once.
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        return False
    looks = _looked.get(connection)
    if looks is None:
        looks = _looked[connection] = {}
        event.listen(connection, "commit", _look_again_on)
    looks[model, queue_key] = time.monotonic()
    return True


def _look_again_on(connection: Connection) -> None:
    looks = _looked[connection]
    since = time.monotonic() - LOOK_AGAIN_AFTER.total_seconds()
    for (model, queue_key), at in looks.items():
        if at < since:
            connection.execute(notifications.notify_due(model), {"queue": queue_key})
    looks.clear()
