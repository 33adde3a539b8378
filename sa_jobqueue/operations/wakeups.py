"""Waking idle workers: the notification that a transaction sends when it commits new jobs.

A transaction notifies a queue with its first INSERT there, if a worker was idle at the time (`notifications.notify_due`
looks), and looks again before a late commit. PostgreSQL delivers a notification at the commit, and drops it with a rollback,
also to a savepoint.

In a flush the INSERT is the unit of work's. Its `changed_xid` carries the notification: the parameter is the text of the
queue key, and the column's type, `NotifyingXid`, binds it as an expression that notifies and returns the id of the
transaction. After the flush the attribute is expired, or has the value that the INSERT returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, ref

import sqlalchemy as sa
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.base import READ_BACK, NotifyingXid
from sa_jobqueue.policies.fairness import ANY_QUEUE, SEPARATOR, QueueKey
from sa_jobqueue.statements import notifications
from sa_jobqueue.statements._parts import table

LOOK_AGAIN_AFTER: Final = timedelta(milliseconds=100)
"""A transaction that commits so long after it looked for idle workers looks again: one may have fallen asleep meanwhile. A
worker that falls asleep keeps polling for longer than this."""


Topic: TypeAlias = tuple[JobClass, str]
"""A queue of a model: its fairness keys are notified together."""


class _Look(NamedTuple):
    """The first job that a transaction has enqueued in a queue: its INSERT notified if a worker was idle at the time."""

    connection: ref[sa.Connection]
    model: JobClass
    queue_key: str
    at: float
    savepoint: ref[SessionTransaction] | None

    def is_within(self, transaction: SessionTransaction) -> bool:
        around = None if self.savepoint is None else self.savepoint()
        while around is not None and around is not transaction:
            around = around.parent
        return around is not None

    def again(self) -> None:
        connection = self.connection()
        if connection is not None and self.at < time.monotonic() - LOOK_AGAIN_AFTER.total_seconds():
            connection.execute(notifications.notify_due(self.model), {"queue": self.queue_key})


@dataclass(slots=True)
class _Looks:
    """The looks for idle workers of one transaction."""

    first: dict[Topic, _Look] = field(default_factory=dict)
    notified: set[Topic] = field(default_factory=set)
    """Queues that need no second notification."""

    def discard(self, savepoint: SessionTransaction) -> None:
        """Forget the looks within a savepoint that was rolled back; which notifications these are is not known."""
        self.first = {topic: look for topic, look in self.first.items() if not look.is_within(savepoint)}
        self.notified.clear()

    def again(self, topics: Iterable[Topic] | None = None) -> None:
        for topic in self.first if topics is None else topics:
            if (look := self.first.get(topic)) is not None:
                look.again()


_looks: WeakKeyDictionary[SessionTransaction | sa.Connection, _Looks] = WeakKeyDictionary()
"""By transaction, not by session: a session that was closed without a commit is often reused. By connection if that commits,
not a session; an entry that a rollback leaves there makes the next commit look once too often."""


def queue_key_of(job: JobMixin[Any]) -> str:
    """Return the text of the queue key to notify of a new job: that of all queues if the database decides."""
    state = job.__dict__  # instrumented attributes take five times as long to read
    queue, fairness_key = state.get("queue"), state["fairness_key"]
    return QueueKey(queue, fairness_key).text if queue and fairness_key else queue or ANY_QUEUE


def notify_workers(session: Session, connection: sa.Connection, model: JobClass, queue_key: str) -> None:
    """Notify the idle workers of a queue when this transaction commits."""
    if is_to_notify(session, connection, model, queue_key):
        connection.execute(notifications.notify_due(model), {"queue": queue_key})


def notify_with_insert(session: Session | None, connection: sa.Connection, job: JobMixin[Any]) -> None:
    """Have the INSERT of a job that is being flushed notify the idle workers of its queue, if it is the first."""
    queue_key = queue_key_of(job)
    if is_to_notify(session, connection, type(job), queue_key):
        # An expression costs more than a parameter, but the INSERT returns its value: where reading the column later could
        # not load it, that is needed.
        is_loaded_later = not READ_BACK or (
            session is not None and session.expire_on_commit and not connection.dialect.is_async
        )
        notifying: Any = queue_key if is_loaded_later else _notifying(type(job), queue_key)  # type: ignore[arg-type]
        job.__dict__["changed_xid"] = notifying


@lru_cache(maxsize=128)
def _notifying(model: JobClass, queue_key: str) -> sa.ColumnElement[Any]:
    """Return the expression of a parameter of `NotifyingXid`."""
    return NotifyingXid.bind_expression(table(model).c.changed_xid.type, sa.literal(queue_key, sa.Text()))  # type: ignore[arg-type]


def look_again_after_flush(session: Session) -> None:
    """Expire the parameters of each INSERT that notified, and look again if the flush took long.

    A commit flushes after `before_commit`, and a flush may write much after the jobs.
    """
    topics = set()
    for job in session.new:
        if isinstance(job, JobMixin) and isinstance(queue_key := job.__dict__.get("changed_xid"), str):
            del job.__dict__["changed_xid"]
            instance_state(job).expired_attributes.add("changed_xid")
            topics.add(_topic(type(job), queue_key))
    if topics and (looks := _looks_of(session)) is not None:
        looks.again(topics)


def is_to_notify(session: Session | None, connection: sa.Connection, model: JobClass, queue_key: str) -> bool:
    """Return whether a write notifies: the transaction's first for the queue. `session`: None for a connection alone."""
    # A session that joined the transaction of a connection does not commit it.
    is_session = session is not None and session.get_bind(model) is not connection
    owner: Any = session.get_transaction() if session is not None and is_session else connection
    if not is_session:
        if isinstance(connection.get_transaction(), sa.TwoPhaseTransaction):
            return False
        if connection not in _looks:
            sa.event.listen(connection, "commit", _look_again_on)
    looks = _looks.get(owner)
    if looks is None:
        looks = _looks[owner] = _Looks()
    topic = _topic(model, queue_key)
    # On a connection each INSERT notifies, because no event reports a rollback to a savepoint; PostgreSQL delivers equal
    # notifications once.
    if is_session and topic in looks.notified:
        return False
    looks.notified.add(topic)
    if topic not in looks.first:
        savepoint = None if session is None else session.get_nested_transaction()
        inner = None if savepoint is None else ref(savepoint)
        looks.first[topic] = _Look(ref(connection), model, queue_key, time.monotonic(), inner)
    return True


def _looks_of(session: Session) -> _Looks | None:
    transaction = session.get_transaction()
    return None if transaction is None else _looks.get(transaction)


def _topic(model: JobClass, queue_key: str) -> Topic:
    return model, queue_key.partition(SEPARATOR)[0]


def look_again(session: Session) -> None:
    """Notify workers that have become idle since the jobs were written."""
    if (looks := _looks_of(session)) is not None and session.get_nested_transaction() is None:
        looks.again()


def _look_again_on(connection: sa.Connection) -> None:
    _looks.pop(connection, _Looks()).again()


def discard_rolled_back(session: Session, previous: SessionTransaction) -> None:
    """Have the next INSERT for each queue notify: a rollback to a savepoint discards the notifications sent within it."""
    if (looks := _looks_of(session)) is not None:
        looks.discard(previous)


def silence_twophase(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    """Have a transaction that is prepared send no notification."""
    if session.twophase and not transaction.nested and connection.dialect.name == "postgresql":
        # PostgreSQL refuses to PREPARE a transaction with a NOTIFY: workers find its jobs at their next poll.
        connection.execute(notifications.SILENCE)
