"""Enqueueing: waking workers when an added job commits, and inserting one or many without the unit of work.

One job, or some, need no operation: `session.add(Job(...))`. What this module adds to that is the wake-up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import ARRAY, JSON, ClauseElement, ColumnElement, Connection, Engine, event, inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, SessionTransaction, object_session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from sa_jobqueue.db.encodings import Encoding, encoding_of
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.blocking import declare, write_edges
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.policies.fairness import part_of
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.statements import jobs, notifications
from sa_jobqueue.statements._parts import once_a_model
from sa_jobqueue.tracing import announce, is_announced

JobT = TypeVar("JobT", bound=JobMixin[Any])

QUIET: Final = timedelta(milliseconds=9)
"""This process notifies a queue's workers once per so long, on average. A notification is suppressed only if one was sent
within that time: a worker that was notified keeps polling for longer."""
BURST: Final = 5
"""So many wake-ups may follow each other more closely: steady jobs below the average rate are notified one by one, jitter
included."""

_Topic = tuple[str, str]
_told: WeakKeyDictionary[Engine, dict[_Topic, float]] = WeakKeyDictionary()
"""Theoretical arrival time of the generic cell rate algorithm (ITU-T I.371), by this process's clock: until when the
notifications it has sent use up its average. Per engine, because another database has other workers."""


@dataclass(slots=True)
class _Wakings:
    """The notifications that a session's transaction has sent, and those it suppressed because one was just sent."""

    sent: dict[_Topic, Engine] = field(default_factory=dict)
    kept: dict[_Topic, tuple[Connection, type[JobMixin[Any]], str, str]] = field(default_factory=dict)


# By transaction, not by session: a session that was closed without a commit is often used again.
_pending: WeakKeyDictionary[SessionTransaction, _Wakings] = WeakKeyDictionary()


@event.listens_for(Session, "before_flush")
def _announce(session: Session, context: object, instances: object) -> None:
    if is_announced() and (new := [job for job in session.new if isinstance(job, JobMixin)]):
        for kind in {type(job) for job in new}:
            announce(session, [job for job in new if type(job) is kind])


@event.listens_for(JobMixin, "before_insert", propagate=True)
def _before_insert(mapper: Mapper[Any], connection: Connection, job: JobMixin[Any]) -> None:
    # A job that is added again after a rollback still has the number of that transaction: claims would look for it there.
    job.__dict__.pop("changed_xid", None)
    if (encoding := encoding_of(connection)) is not None:
        check_encodable(encoding, job)
    session, model = object_session(job), type(job)
    if session is not None and _is_to_notify(session, connection, model, job.queue, job.fairness_key):
        # A part of the INSERT, in the job's own transaction: a rollback, also of a savepoint, discards it.
        job.__dict__["changed_xid"] = jobs.notifying_xid(model, part_of(job.queue, job.fairness_key))


def check_encodable(encoding: Encoding, job: JobMixin[Any], place: str = "") -> None:
    """Refuse a job with a text that its database cannot store. Raises: InvalidJobError naming the field."""
    for name, value in job.__dict__.items():
        fault = None
        if isinstance(value, str):
            fault = encoding.fault(value)
        elif name == "input":
            fault = encoding.fault_in(value)
        if fault is not None:
            raise InvalidJobError(f"{place}{name}", fault)


def wake(session: Session, connection: Connection, model: type[JobMixin[Any]], queue: str, fairness_key: str = "") -> None:
    """Wake the workers of a queue when and if this transaction commits, unless this process has just done so."""
    if _is_to_notify(session, connection, model, queue, fairness_key):
        connection.execute(notifications.notify_due(model), {"queue": part_of(queue, fairness_key)})


def _is_to_notify(
    session: Session, connection: Connection, model: type[JobMixin[Any]], queue: str, fairness_key: str
) -> bool:
    """Return whether to send a notification now, and count it as sent."""
    transaction = cast("SessionTransaction", session.get_transaction())  # it writes a row
    topic = (model.__jobqueue__.channel("due"), queue)  # not a topic for each of a thousand keys
    wakings = _pending.setdefault(transaction, _Wakings())
    if topic in wakings.sent:
        return False
    filled = _told.get(connection.engine, {}).get(topic)
    if filled is not None and filled - time.monotonic() > (BURST - 0.5) * QUIET.total_seconds():
        wakings.kept[topic] = (connection, model, queue, fairness_key)
        return False
    wakings.sent[topic] = connection.engine
    return True


def _outermost(session: Session) -> _Wakings:
    transaction = session.get_transaction()
    if transaction is None or session.get_nested_transaction() is not None:
        return _Wakings()
    return _pending.get(transaction, _Wakings())


@event.listens_for(Session, "before_commit")
def _wake_late(session: Session) -> None:
    # In a transaction longer than `QUIET`, a worker that was woken earlier is asleep again by now.
    for connection, model, queue, fairness_key in list(_outermost(session).kept.values()):
        wake(session, connection, model, queue, fairness_key)


@event.listens_for(Session, "after_commit")
def _remember_told(session: Session) -> None:
    # Only a committed wake-up has woken anybody, so only that may silence the next one.
    now = time.monotonic()
    for topic, engine in _outermost(session).sent.items():
        filled = _told.setdefault(engine, {})
        filled[topic] = max(filled.get(topic, now), now) + QUIET.total_seconds()


@event.listens_for(Session, "after_soft_rollback")
def _forget_untold(session: Session, previous: SessionTransaction) -> None:
    # A rolled back savepoint discards the notifications sent within it.
    transaction = session.get_transaction()
    if transaction is not None and transaction in _pending:
        _pending[transaction].sent.clear()


def enqueue_one(session: Session, job: JobMixin[Any]) -> Any:
    """Insert one job by one statement, its notification included, in the caller's transaction; return its id.

    `job`: as `Job(...)` or `handler.job(...)` make it, in no session; it stays transient, and mapper events of the
    application's are not called. Pending objects of the session are flushed before, as by a query. A job with blockers is
    added to the session and flushed instead.
    Changes: one row. Locks: none but the new row's.
    Raises: ConflictError for an id or key that is taken, or a foreign key of the application's that has no row.
    """
    model = type(job)
    with translated():
        if job._blockers:  # several statements, and it may bring others with it
            session.add(job)
            session.flush()
            return job.id
        if session.autoflush:
            session.flush()  # a column of the application's may refer to what is not written yet
        if is_announced():
            announce(session, [job])
        connection = session.connection(bind_arguments={"mapper": model.__mapper__})
        if (encoding := encoding_of(connection)) is not None:
            check_encodable(encoding, job)
        columns = _columns(model)
        for key, made in columns.defaults.items():
            if key not in job.__dict__:
                setattr(job, key, made())
        given = {name: job.__dict__[key] for key, name in columns.names.items() if key in job.__dict__}
        expressions = {name: value for name, value in given.items() if isinstance(value, ClauseElement)}
        notifies = _is_to_notify(session, connection, model, job.queue, job.fairness_key)
        statement = jobs.enqueue_one(
            model,
            tuple(name for name in given if name not in expressions),
            is_delayed=job._delay is not None,
            is_at=job._at is not None,
            notifies=notifies,
        )
        if expressions:
            statement = statement.values(expressions)
            given = {name: value for name, value in given.items() if name not in expressions}
        if notifies:
            given["due_lane"] = part_of(job.queue, job.fairness_key)
        if job._delay is not None:
            given["due_delay"] = job._delay
        if job._at is not None:
            given["due_at"] = job._at
        connection.execute(statement, given)
    job._is_enqueued = True
    return job.id


def _insert(session: Any, job: JobMixin[Any]) -> Any:
    given = session() if isinstance(session, scoped_session | async_scoped_session) else session
    if isinstance(given, AsyncSession):
        return given.run_sync(enqueue_one, job)
    if not isinstance(given, Session):
        raise InvalidOptionError("session", f"must be a Session or an AsyncSession, got {given!r}")
    return enqueue_one(given, job)


Handler._insert = staticmethod(_insert)


@dataclass(frozen=True, slots=True)
class _Columns:
    """What an INSERT of a class writes."""

    names: dict[str, str]
    """Column by attribute, without the time, which the statement computes."""
    defaults: dict[str, Callable[[], Any]]
    """What makes a default in Python, by attribute."""


@once_a_model
def _columns(model: type[JobMixin[Any]]) -> _Columns:
    attributes = written_columns(model)
    defaults = {key: made for key, column in attributes.items() if (made := _default(column)) is not None}
    return _Columns({key: column.name for key, column in attributes.items()}, defaults)


def enqueue_many(session: Session, new: Iterable[JobT], *, model: type[JobT] | None = None) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the order given.

    `new`: jobs as `Job(...)` or `handler.job(...)` make them, all of one class; they stay transient, so this is the
    cheap way for thousands. `model` is only needed for an empty list. Jobs that set different columns of the
    application's own are one statement for each set; a time set other than by `delay` or `at` is not looked at.
    Changes: one row a job. Locks: none but the new rows'.
    Raises: InvalidJobError when they are of several classes, already in a session or set an array; ConflictError for an
    id or key that is taken. Nothing is written then.
    """
    listed = list(new)
    if not listed:
        return []
    kind: type[JobMixin[Any]] = model or type(listed[0])
    for index, job in enumerate(listed):
        if type(job) is not kind:
            raise InvalidJobError(f"new[{index}]", f"is a {type(job).__name__}, the others are {kind.__name__}")
        if not isinstance(job, JobMixin):
            raise InvalidJobError(f"new[{index}]", f"must be a job, got a {type(job).__name__}")
        if not instance_state(job).transient:
            raise InvalidJobError(f"new[{index}]", "is or was in a session; add it there, or pass a fresh job")
    with translated():
        if any(job._blockers for job in listed):
            session.flush()  # what they wait for may be among what is not written yet
        announce(session, listed)
        connection = session.connection()
        if (encoding := encoding_of(connection)) is not None:
            for index, job in enumerate(listed):
                check_encodable(encoding, job, f"new[{index}].")
        edges = declare(connection, listed)
        for names, group in alike(kind, listed):
            connection.execute(jobs.enqueue_many(kind, tuple(names)), arrays(kind, names, group))
        write_edges(connection, edges)
        # Their dicts, here and below: an attribute of a mapped class takes five times as long to read.
        lanes = {(job.__dict__["queue"], job.__dict__["fairness_key"]) for job in listed}
        for queue, fairness_key in sorted(lanes):
            wake(session, connection, kind, queue, fairness_key)
    for job in listed:
        job._is_enqueued = True
    return [job.__dict__["id"] for job in listed]


_Group = tuple[dict[str, str], list[Any]]
"""The columns that some jobs set, as attribute by column, and those jobs."""


def alike(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> list[_Group]:
    """Group jobs by which columns they set: what is not set is the database's to fill."""
    attributes = written_columns(kind)
    groups: dict[frozenset[str], list[Any]] = {}
    for job, keys in zip(listed, _set_by(kind, attributes, listed), strict=True):
        groups.setdefault(keys, []).append(job)
    return [(_named(attributes, keys), group) for keys, group in groups.items()]


def alike_in_order(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> list[_Group]:
    """Group neighbours that set the same columns, so that the order of all stays as it is.

    What some of them leave out is set to None where that is what the database would fill in: neighbours that differ by
    nothing else are one group.
    """
    attributes = written_columns(kind)
    given = _set_by(kind, attributes, listed)
    empty = {key for key in frozenset().union(*given) if _is_null_unset(attributes[key])}
    for job, keys in zip(listed, given, strict=True):
        for key in empty - keys:
            setattr(job, key, None)
    runs = groupby(zip((keys | empty for keys in given), listed, strict=True), key=itemgetter(0))
    return [(_named(attributes, keys), [job for _, job in run]) for keys, run in runs]


@once_a_model
def written_columns(kind: type[JobMixin[Any]]) -> dict[str, Any]:
    """Return the columns that an enqueue may write, by attribute; all but the time, which the statement computes."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in inspect(kind).column_attrs
        if attribute.columns[0] in kind.__table__.c.values() and attribute.key != "scheduled_at"
    }


def _named(attributes: Mapping[str, Any], keys: frozenset[str]) -> dict[str, str]:
    return {attributes[key].name: key for key in attributes if key in keys}


def _set_by(kind: type[JobMixin[Any]], attributes: Mapping[str, Any], listed: Sequence[Any]) -> list[frozenset[str]]:
    """Return which columns each job sets, defaults in Python among them. Raises: InvalidJobError for an array."""
    defaults = {key: made for key, column in attributes.items() if (made := _default(column)) is not None}
    uncarried = [key for key, column in attributes.items() if isinstance(column.type, ARRAY)]
    for index, job in enumerate(listed) if defaults or uncarried else ():
        for key, made in defaults.items():
            if key not in job.__dict__:
                setattr(job, key, made())
        for key in uncarried:
            if key in job.__dict__:
                raise InvalidJobError(f"new[{index}].{key}", "is an array, which this cannot carry; use session.add_all")
    # Jobs that are made alike have the same attributes, in the same order.
    known: dict[tuple[str, ...], frozenset[str]] = {}
    given: list[frozenset[str]] = []
    for job in listed:
        held = tuple(job.__dict__)
        if held not in known:
            known[held] = frozenset(attributes.keys() & held)
        given.append(known[held])
    return given


def _is_null_unset(column: Any) -> bool:
    """Return whether a column that is not set is null. In JSON, None would be a value."""
    is_filled = column.server_default is not None or column.computed is not None or column.identity is not None
    return bool(column.nullable) and not is_filled and not (isinstance(column.type, JSON) and not column.type.none_as_null)


def _default(column: ColumnElement[Any]) -> Callable[[], Any] | None:
    """Return what makes a column's default in Python; None where it has none, or SQL makes it."""
    default: Any = getattr(column, "default", None)
    if default is not None and default.is_callable:
        return lambda: default.arg(None)
    if default is not None and default.is_scalar:
        return lambda: default.arg
    return None


def arrays(kind: type[JobMixin[Any]], names: dict[str, str], group: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the values of alike jobs as the arrays of `statements.jobs.enqueue_many`."""
    values: dict[str, list[Any]] = {}
    for name, key in names.items():
        column_type = kind.__table__.c[name].type
        given = [job.__dict__[key] for job in group]
        if isinstance(column_type, JSON):
            given = [None if value is None and column_type.none_as_null else json.dumps(value) for value in given]
        values[name] = given
    values["delays"] = [job._delay for job in group]
    values["ats"] = [job._at for job in group]
    return values
