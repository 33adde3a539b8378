"""Enqueueing: notifies workers when a transaction with new jobs commits, and inserts jobs without the unit of work.

`session.add(Job(...))` needs no operation of this module except the notification, which event listeners add.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ARRAY,
    JSON,
    ClauseElement,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    TwoPhaseTransaction,
    event,
    inspect,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, SessionTransaction, object_session, scoped_session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, require_postgresql
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.blockers import declare, write_edges
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.transactions import queue_connection
from sa_jobqueue.policies.fairness import ANY_QUEUE, QueueKey
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.statements import jobs, notifications
from sa_jobqueue.statements._parts import once_a_model
from sa_jobqueue.tracing import announce, is_announced
from sa_jobqueue.types import JobStatus

JobT = TypeVar("JobT", bound=JobMixin[Any])

LOOK_AGAIN_AFTER: Final = timedelta(milliseconds=100)
"""A transaction that commits so long after it looked for idle workers looks again: one may have fallen asleep meanwhile. A
worker that falls asleep keeps polling for longer than this."""

_Topic = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Look:
    """Jobs that a transaction has made due: its INSERT notified if a worker was idle at the time."""

    connection: Connection
    model: type[JobMixin[Any]]
    queue: str | None
    fairness_key: str
    at: float


# By transaction, not by session: a session that was closed without a commit is often reused.
_pending: WeakKeyDictionary[SessionTransaction, dict[_Topic, _Look]] = WeakKeyDictionary()
_looked: WeakKeyDictionary[Connection, dict[tuple[type[JobMixin[Any]], str], float]] = WeakKeyDictionary()
"""The same of connections without a session. An entry that a rollback leaves makes the next commit look once too often."""


def announce_flushed(session: Session, context: object, instances: object) -> None:
    """Notify producers of the jobs of a flush."""
    if is_announced() and (new := [job for job in session.new if isinstance(job, JobMixin)]):
        for kind in {type(job) for job in new}:
            announce(session, [job for job in new if type(job) is kind])


def before_insert(mapper: Mapper[Any], connection: Connection, job: JobMixin[Any]) -> None:
    """Check a job of a flush, and have its INSERT notify workers."""
    if job.status is JobStatus.BLOCKED and not job.open_blockers:
        raise InvalidJobError(
            "blockers",
            "were not written: only session.add and the cascade of save-update take them along; merge, and events "
            "that add jobs during the flush, do not. Add the job itself to the session before the flush",
        )
    job.__jobqueue__.check_translation(connection.get_execution_options())
    # A job that is added again after a rollback still has the id of that transaction, where no claim would find it.
    job.__dict__.pop("changed_xid", None)
    session, model = object_session(job), type(job)
    if session is not None and _is_to_notify(session, connection, model, job.queue, job.fairness_key):
        # Sent by the INSERT itself, so that a rollback, also to a savepoint, discards it.
        job.__dict__["changed_xid"] = jobs.notifying_xid(model, _queue_key(job.queue, job.fairness_key))


def notify_workers(
    session: Session, connection: Connection, model: type[JobMixin[Any]], queue: str | None, fairness_key: str = ""
) -> None:
    """Notify the idle workers of a queue when this transaction commits.

    `queue`: None for one that the database decides; all workers are notified.
    """
    if _is_to_notify(session, connection, model, queue, fairness_key):
        connection.execute(notifications.notify_due(model), {"queue": _queue_key(queue, fairness_key)})


def _queue_key(queue: str | None, fairness_key: str) -> str:
    return QueueKey(queue, fairness_key).text if queue else ANY_QUEUE


def _is_to_notify(
    session: Session, connection: Connection, model: type[JobMixin[Any]], queue: str | None, fairness_key: str
) -> bool:
    """Return whether this is the transaction's first for the queue. Raises: UnsupportedServerError without PostgreSQL."""
    require_postgresql(connection.dialect.name)
    transaction = cast("SessionTransaction", session.get_transaction())  # there is one, since it writes a row
    topic = (model.__jobqueue__.channel("due"), queue or ANY_QUEUE)  # one topic for all fairness keys of the queue
    looks = _pending.setdefault(transaction, {})
    if topic in looks:
        return False
    looks[topic] = _Look(connection, model, queue, fairness_key, time.monotonic())
    return True


def look_again(session: Session) -> None:
    """Notify workers that have become idle since the jobs were written."""
    transaction = session.get_transaction()
    if transaction is None or session.get_nested_transaction() is not None:
        return
    since = time.monotonic() - LOOK_AGAIN_AFTER.total_seconds()
    for look in _pending.get(transaction, {}).values():
        if look.at < since:
            look.connection.execute(
                notifications.notify_due(look.model), {"queue": _queue_key(look.queue, look.fairness_key)}
            )


def silence_twophase(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    """Have a transaction that is prepared send no notification."""
    if session.twophase and not transaction.nested and connection.dialect.name == "postgresql":
        # PostgreSQL refuses to PREPARE a transaction with a NOTIFY: workers find its jobs at their next poll.
        connection.execute(notifications.SILENCE)


def _look_again_on(connection: Connection) -> None:
    since = time.monotonic() - LOOK_AGAIN_AFTER.total_seconds()
    for (model, lane), at in _looked.pop(connection, {}).items():
        if at < since:
            connection.execute(notifications.notify_due(model), {"queue": lane})


def discard_rolled_back(session: Session, previous: SessionTransaction) -> None:
    """Forget notifications within a savepoint that was rolled back."""
    # A rollback to a savepoint discards the notifications sent within it.
    transaction = session.get_transaction()
    if transaction is not None and transaction in _pending:
        _pending[transaction].clear()


def enqueue_one(session: Session, job: JobMixin[Any]) -> Any:
    """Insert one job and notify workers with one statement, in the caller's transaction; return the job's id.

    `job`: created by `Job(...)` or `handler.job(...)`, and not in a session. It stays transient, and mapper events of the
    application are not called. Pending objects of the session are flushed first, as before a query. A job with blockers is
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
            session.flush()  # a column of the application may refer to a pending object
        if is_announced():
            announce(session, [job])
        connection = queue_connection(session, model)
        _insert_one(connection, job, notifies=_is_to_notify(session, connection, model, job.queue, job.fairness_key))
    return job.id


def _enqueue_on(connection: Connection, job: JobMixin[Any]) -> Any:
    """Insert one job as `enqueue_one`, in the transaction of a connection, of which no session knows."""
    require_postgresql(connection.dialect.name)
    job.__jobqueue__.check_translation(connection.get_execution_options())
    if job._blockers or is_announced():  # what these do belongs to a session
        if not connection.in_transaction():
            connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            job_id = enqueue_one(session, job)
            session.commit()  # not the connection's transaction
            return job_id
    with translated():
        # In each INSERT, because no event reports a rollback to a savepoint; PostgreSQL delivers equal notifications once.
        notifies = not isinstance(connection.get_transaction(), TwoPhaseTransaction)
        if notifies:
            if not event.contains(connection, "commit", _look_again_on):
                event.listen(connection, "commit", _look_again_on)
            _looked.setdefault(connection, {})[type(job), _queue_key(job.queue, job.fairness_key)] = time.monotonic()
        _insert_one(connection, job, notifies=notifies)
    return job.id


def _insert_one(connection: Connection, job: JobMixin[Any], *, notifies: bool) -> None:
    columns = _columns(type(job))
    _set_defaults(type(job), [job])
    statement, given = _insert_of(job, columns, notifies=notifies)
    connection.execute(statement, given)
    job._is_enqueued = True


def _insert_of(job: JobMixin[Any], columns: _Columns, *, notifies: bool) -> tuple[Insert, dict[str, Any]]:
    """Return the statement that inserts one job, and its parameters."""
    given = {name: job.__dict__[key] for key, name in columns.names.items() if key in job.__dict__}
    expressions = {name: value for name, value in given.items() if isinstance(value, ClauseElement)}
    statement = jobs.enqueue_one(
        type(job),
        tuple(name for name in given if name not in expressions),
        is_delayed=job._delay is not None,
        is_at=job._at is not None,
        notifies=notifies,
    )
    if expressions:
        statement = statement.values(expressions)
        given = {name: value for name, value in given.items() if name not in expressions}
    if notifies:
        given["due_lane"] = _queue_key(job.queue, job.fairness_key)
    if job._delay is not None:
        given["due_delay"] = job._delay
    if job._at is not None:
        given["due_at"] = job._at
    return statement, given


def _insert_each(connection: Connection, kind: type[JobMixin[Any]], listed: Sequence[JobMixin[Any]]) -> None:
    """Insert jobs row by row, as the unit of work does: with values that no array can carry."""
    columns = _columns(kind)
    # A statement is the same object for all jobs that set the same columns, unless it has expressions.
    for statement, pairs in groupby((_insert_of(job, columns, notifies=False) for job in listed), key=itemgetter(0)):
        connection.execute(statement, [given for _, given in pairs])


def _insert(session: Any, job: JobMixin[Any]) -> Any:
    match session() if isinstance(session, scoped_session | async_scoped_session) else session:
        case AsyncSession() | AsyncConnection() as given:
            return given.run_sync(_insert, job)
        case Session() as given:
            return enqueue_one(given, job)
        case Connection() as given:
            return _enqueue_on(given, job)
    raise InvalidOptionError("session", f"must be a Session or a Connection, or one of asyncio, got {session!r}")


Handler._insert = staticmethod(_insert)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns that an INSERT of a class writes."""

    names: dict[str, str]
    """Column names by attribute, without `scheduled_at`, which the statement computes."""
    defaults: dict[str, Default]
    """Functions that return the defaults of columns with a default in Python, by attribute."""


@once_a_model
def _columns(model: type[JobMixin[Any]]) -> _Columns:
    return _Columns({key: column.name for key, column in written_columns(model).items()}, defaults_of(model))


def enqueue_many(session: Session, new: Iterable[JobT], *, model: type[JobT] | None = None) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the given order.

    `new`: jobs of one class, not in a session. They stay transient, which makes this much cheaper than `session.add_all`.
    `model` is only needed for an empty list. Jobs that set different columns of the application need one statement for each
    set; arrays, SQL expressions and values of types with a bind expression are inserted row by row. A `scheduled_at` that
    is set directly is ignored: use `delay` or `at`.
    Changes: one row a job. Locks: only the new rows.
    Raises: InvalidJobError for jobs of several classes, or a job in a session; ConflictError for an id or key that is
    taken.
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
            session.flush()  # they may wait for pending objects
        announce(session, listed)
        connection = queue_connection(session, kind)
        edges = declare(connection, listed)
        alone = uncarried(kind, listed)
        rest = [job for job in listed if job not in alone] if alone else listed
        _insert_each(connection, kind, list(alone))
        for names, group in group_by_columns(kind, rest) if rest else ():
            written = _without_defaults(names, group)
            equal = _equal(written, group)
            varying = {name: key for name, key in written.items() if name not in equal}
            statement = jobs.enqueue_many(kind, tuple(varying), tuple(equal))
            connection.execute(statement, arrays(kind, varying, group, connection.dialect) | equal)
        write_edges(connection, edges)
        # `__dict__`, here and below: instrumented attributes take five times as long to read.
        lanes = {(job.__dict__.get("queue") or "", job.__dict__["fairness_key"]) for job in listed}
        for queue, fairness_key in sorted(lanes):
            notify_workers(session, connection, kind, queue or None, fairness_key)
    for job in listed:
        job._is_enqueued = True
    return [job.__dict__["id"] for job in listed]


Group = tuple[dict[str, str], list[Any]]
"""The columns that some jobs set, as attribute by column, and those jobs."""


def group_by_columns(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> list[Group]:
    """Group jobs by the columns that they set; the database fills in the others. Raises: InvalidJobError if `uncarried`."""
    attributes = written_columns(kind)
    groups: dict[frozenset[str], list[Any]] = {}
    for job, keys in zip(listed, _set_by(kind, attributes, listed, "session.add_all"), strict=True):
        groups.setdefault(keys, []).append(job)
    return [(_named(attributes, keys), group) for keys, group in groups.items()]


def group_neighbours_by_columns(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> list[Group]:
    """Group consecutive jobs that set the same columns, without changing the order.

    Columns that the database would fill in with null are set to None, so that they do not separate groups.
    """
    attributes = written_columns(kind)
    given = _set_by(kind, attributes, listed, "enqueue")
    empty = {key for key in frozenset().union(*given) if _is_null_unset(attributes[key])}
    for job, keys in zip(listed, given, strict=True):
        for key in empty - keys:
            setattr(job, key, None)
    runs = groupby(zip((keys | empty for keys in given), listed, strict=True), key=itemgetter(0))
    return [(_named(attributes, keys), [job for _, job in run]) for keys, run in runs]


@once_a_model
def written_columns(kind: type[JobMixin[Any]]) -> dict[str, Any]:
    """Return the columns that enqueueing may write, by attribute: all but those that are computed."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in inspect(kind).column_attrs
        if attribute.columns[0] in kind.__table__.c.values()
        and attribute.columns[0].computed is None
        # A job whose transaction was rolled back has that of the row it never became.
        and attribute.key not in {"scheduled_at", "changed_xid"}
    }


def _named(attributes: Mapping[str, Any], keys: frozenset[str]) -> dict[str, str]:
    return {attributes[key].name: key for key in attributes if key in keys}


_DEFAULTS: Final[Mapping[str, Any]] = {
    "queue": None,
    "fairness_key": "",
    "priority": None,
    "max_attempts": None,
    "timeout": None,
    "rate_cost": None,
    "input_version": None,
    "deduplication_key": None,
    "chain_index": 0,
    "status": JobStatus.PENDING,
    "open_blockers": 0,
    "attempt": 0,
    "trace_context": None,
    "chain_trace_context": None,
}
"""Values that the database fills in where a row leaves them out; None: it decides by the type."""
_OFTEN_EQUAL: Final = frozenset({"queue", "type_name", "priority", "chain_type_name", "max_attempts", "input_version"})
"""Columns in which most calls have one value for all jobs. Sent once, it makes the insert cheaper."""


def _without_defaults(names: dict[str, str], group: Sequence[Any]) -> dict[str, str]:
    """Leave out columns in which all jobs have the database's default, which reduces the cost of an insert by a third."""
    states = [job.__dict__ for job in group]
    return {
        name: key
        for name, key in names.items()
        if name not in _DEFAULTS or [state[key] for state in states].count(_DEFAULTS[name]) < len(states)
    }


def _equal(names: Mapping[str, str], group: Sequence[Any]) -> dict[str, Any]:
    """Return the value of each column of `_OFTEN_EQUAL` in which all jobs have the same."""
    states = [job.__dict__ for job in group]
    firsts = {name: states[0][key] for name, key in names.items() if name in _OFTEN_EQUAL}
    return {
        name: first for name, first in firsts.items() if [state[names[name]] for state in states].count(first) == len(states)
    }


def uncarried(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> dict[Any, str]:
    """Return the jobs with a value that no array of a set-based statement can carry, each with its attribute.

    Sets defaults in Python. Such values are arrays, SQL expressions, and values that a column type wraps into an SQL
    expression or a TypeDecorator into JSON.
    """
    _set_defaults(kind, listed)
    never, expressible = _uncarried_columns(kind)
    found: dict[Any, str] = {}
    for job in listed if never or expressible else ():
        state = job.__dict__
        for key in never:
            if key in state:
                found[job] = key
        for key in expressible:
            if isinstance(state.get(key), ClauseElement):
                found[job] = key
    return found


@once_a_model
def _uncarried_columns(kind: type[JobMixin[Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns whose values no array can carry, and those that may be set to SQL expressions, by attribute."""
    own = {key: column for key, column in written_columns(kind).items() if key not in vars(JobMixin)}
    never = tuple(key for key, column in own.items() if not is_carried(column.type))
    return never, ("expires_at", *(key for key in own if key not in never))


def is_carried(given: TypeEngine[Any]) -> bool:
    """Return whether values of a column type can be elements of an array parameter."""
    inner = of_postgresql(given)
    while isinstance(inner, TypeDecorator):
        inner = of_postgresql(inner.impl_instance)
    wrapped = isinstance(inner, JSON) and not isinstance(given, JSON)
    return not (wrapped or isinstance(inner, ARRAY) or is_expressed(given))


def is_expressed(given: TypeEngine[Any]) -> bool:
    """Return whether a column type wraps its values into an SQL expression, which neither arrays nor COPY can."""
    own = of_postgresql(given)
    return own._has_bind_expression or (isinstance(own, TypeDecorator) and is_expressed(own.impl_instance))


def of_postgresql(given: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type's variant for PostgreSQL, or the type itself."""
    return given._variant_mapping.get("postgresql", given)


def _set_defaults(kind: type[JobMixin[Any]], listed: Sequence[Any]) -> None:
    defaults = _columns(kind).defaults
    for job in listed if defaults else ():
        for key, made in defaults.items():
            if key not in job.__dict__:
                setattr(job, key, _made(key, made, job))


def _set_by(
    kind: type[JobMixin[Any]], attributes: Mapping[str, Any], listed: Sequence[Any], cure: str
) -> list[frozenset[str]]:
    """Return the columns that each job sets, after setting defaults in Python. Raises: InvalidJobError if uncarried."""
    alone = uncarried(kind, listed)
    for index, job in enumerate(listed) if alone else ():
        if job in alone:
            raise InvalidJobError(
                f"new[{index}].{alone[job]}",
                "is an array, an SQL expression, or of a type that makes SQL or JSON of its values, which a set-based "
                f"insert does not take; use {cure}",
            )
    # Jobs created by the same call have the same attributes in the same order.
    known: dict[tuple[str, ...], frozenset[str]] = {}
    given: list[frozenset[str]] = []
    for job in listed:
        held = tuple(job.__dict__)
        if held not in known:
            known[held] = frozenset(attributes.keys() & held)
        given.append(known[held])
    return given


def _is_null_unset(column: Any) -> bool:
    """Return whether the database fills in null for a column. For JSON, None may be a value instead."""
    is_filled = column.server_default is not None or column.computed is not None or column.identity is not None
    return bool(column.nullable) and not is_filled and not (isinstance(column.type, JSON) and not column.type.none_as_null)


Default: TypeAlias = Callable[[JobMixin[Any]], Any]
"""Returns the value of a column for a job that does not set it."""


@once_a_model
def defaults_of(kind: type[JobMixin[Any]]) -> dict[str, Default]:
    """Return the functions that return the defaults of columns with a default in Python, by attribute."""
    defaults = {key: made for key, column in written_columns(kind).items() if (made := _default_of(column)) is not None}
    mapper = inspect(kind)
    if mapper.version_id_col is not None and callable(first := mapper.version_id_generator):
        defaults[mapper.get_property_by_column(mapper.version_id_col).key] = lambda job: first(None)
    return defaults


def _default_of(column: ColumnElement[Any]) -> Default | None:
    default: Any = getattr(column, "default", None)
    if default is not None and default.is_callable:
        return lambda job: default.arg(_Context(job))
    if default is not None and default.is_scalar:
        return lambda job: default.arg
    return None


@dataclass(frozen=True, slots=True)
class _Context:
    """Answers a context-sensitive default that asks for the other values of its row, as SQLAlchemy's own context does."""

    job: JobMixin[Any]

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> dict[str, Any]:
        state = self.job.__dict__
        return {column.key: state[key] for key, column in written_columns(type(self.job)).items() if key in state}

    @property
    def current_parameters(self) -> dict[str, Any]:
        return self.get_current_parameters()


def _made(key: str, default: Default, job: JobMixin[Any]) -> Any:
    try:
        return default(job)
    except Exception as error:
        reason = f"its default raised {summary(error)}; pass a value, or correct the default"
        raise InvalidJobError(key, reason) from error


def arrays(kind: type[JobMixin[Any]], names: dict[str, str], group: Sequence[Any], dialect: Dialect) -> dict[str, list[Any]]:
    """Return the values of jobs that set the same columns as the arrays of `statements.jobs.enqueue_many`.

    `dialect`: that of the connection, whose engine may have a `json_serializer`.
    """
    dumps = getattr(dialect, "_json_serializer", None) or json.dumps
    values: dict[str, list[Any]] = {}
    for name, key in names.items():
        column_type = kind.__table__.c[name].type
        given = [job.__dict__[key] for job in group]
        if isinstance(column_type, JSON):
            try:
                given = [None if value is None and column_type.none_as_null else dumps(value) for value in given]
            except (TypeError, ValueError) as error:
                reason = f"is not JSON: {error}; pass what `json.dumps` takes, or give the engine a json_serializer"
                raise InvalidJobError(key, reason) from error
        values[name] = given
    values["delays"] = [job._delay for job in group]
    values["ats"] = [job._at for job in group]
    return values
