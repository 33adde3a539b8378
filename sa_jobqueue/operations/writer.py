"""The writer of new jobs: each way to enqueue does these duties around its INSERT, in this order.

1. The checks of the jobs and of the database that they go to, by which nothing is written yet.
2. The trace: producers, such as OpenTelemetry's, may set it.
3. The edges to the chains that they wait for, whose roots are locked.
4. The INSERT: of the unit of work, of one row, of an array a column (`write_many`), or by COPY (`copy_payloads`).
5. The rows of the edges.
6. The notification of idle workers, at the commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, ref

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, SessionTransaction, object_session, scoped_session
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.base import NotifyingXid
from sa_jobqueue.models.checks import due_at
from sa_jobqueue.models.job import NEW
from sa_jobqueue.operations import hooks
from sa_jobqueue.operations.blockers import Edge, add_blockers, declare, write_edges
from sa_jobqueue.operations.transactions import check_connection, queue_connection, translated
from sa_jobqueue.policies.fairness import ANY_QUEUE, SEPARATOR, QueueKey
from sa_jobqueue.registry.handlers import no_session
from sa_jobqueue.statements import jobs, notifications
from sa_jobqueue.statements._parts import once_a_model, table
from sa_jobqueue.tracing import announce, is_announced
from sa_jobqueue.types import JobStatus

_flushed: WeakKeyDictionary[Session, list[list[Edge]]] = WeakKeyDictionary()
"""The edges of a flush that is under way, by queue."""


def before_flush(session: Session, context: object, instances: object) -> None:
    """Do what comes before the INSERT for the new jobs of a flush; `before_insert` and `after_flush` do the rest."""
    _flushed.pop(session, None)
    new = [job for job in session.new if isinstance(job, JobMixin)]
    if waiting := [job for job in new if job._blockers]:
        add_blockers(session, waiting)
        new = [job for job in session.new if isinstance(job, JobMixin)]
    if is_announced():
        for kind in {type(job) for job in new}:
            announce(session, [job for job in new if type(job) is kind])
    for queue in {type(job).__table__ for job in waiting}:
        queue_jobs = [job for job in new if type(job).__table__ is queue]
        _flushed.setdefault(session, []).append(declare(queue_connection(session, type(queue_jobs[0])), queue_jobs))


def before_insert(mapper: Mapper[Any], connection: sa.Connection, job: JobMixin[Any]) -> None:
    """Check a job of a flush, and have its INSERT notify workers."""
    state = job.__dict__
    if state.get("status") is JobStatus.BLOCKED and not state.get("open_blockers"):
        raise InvalidJobError(
            "blockers",
            "were not written: only session.add and the cascade of save-update take them along; merge, and events "
            "that add jobs during the flush, do not. Add the job itself to the session before the flush",
        )
    check_connection(connection, type(job))
    # A job that is added again after a rollback still has the id of that transaction, where no claim would find it.
    state.pop("changed_xid", None)
    queue_key = queue_key_of(job)
    session = object_session(job)
    if is_to_notify(session, connection, type(job), queue_key):
        # Sent by the INSERT itself, so that a rollback, also to a savepoint, discards it. An expression costs more than a
        # parameter, but the INSERT returns its value: where reading the column later could not load it, that is needed.
        is_loaded_later = session is not None and session.expire_on_commit and not connection.dialect.is_async
        state["changed_xid"] = queue_key if is_loaded_later else _notifying(type(job), queue_key)  # type: ignore[arg-type]


@lru_cache(maxsize=128)
def _notifying(model: JobClass, queue_key: str) -> sa.ColumnElement[Any]:
    """Return the expression of a parameter of `NotifyingXid`."""
    return NotifyingXid.bind_expression(table(model).c.changed_xid.type, sa.literal(queue_key, sa.Text()))  # type: ignore[arg-type]


def before_update(mapper: Mapper[Any], connection: sa.Connection, job: JobMixin[Any]) -> None:
    """Leave out a `changed_xid` that a merge brings, such as that of a cached job: the database sets it."""
    committed, session = instance_state(job).committed_state, object_session(job)
    if "changed_xid" not in committed or session is None:
        return
    if isinstance(loaded := committed["changed_xid"], int):
        set_committed_value(job, "changed_xid", loaded)
    else:
        session.expire(job, ["changed_xid"])


def after_flush(session: Session, context: object) -> None:
    """Write the edges of jobs that were flushed."""
    topics = set()
    for job in session.new:
        if isinstance(job, JobMixin) and isinstance(queue_key := job.__dict__.get("changed_xid"), str):
            del job.__dict__["changed_xid"]
            instance_state(job).expired_attributes.add("changed_xid")
            topics.add(_topic(type(job), queue_key))
    if topics and (looks := _looks_of(session)) is not None:
        looks.again(topics)  # a commit flushes after `before_commit`, and a flush may write much after the jobs
    for edges in _flushed.pop(session, ()):
        write_edges(queue_connection(session, type(edges[0].job)), edges)


def write_one(session: Session, job: JobMixin[Any]) -> Any:
    """Insert one job and notify workers with one statement, in the caller's transaction; return the job's id.

    `job`: created by `Job(...)` or `handler.job(...)`, and not in a session. It stays transient, and mapper events of the
    application are not called. Pending objects of the session are flushed first, as before a query. A job with blockers is
    added to the session and flushed instead.
    Changes: one row. Locks: none but the new row's.
    Raises: ConflictError for an id or key that is taken, or a foreign key of the application's that has no row.
    """
    with translated():
        if job._blockers:  # several statements, and it may bring others with it
            session.add(job)
            session.flush()
            return job.id
        if session.autoflush:
            session.flush()  # a column of the application may refer to a pending object
        if is_announced():
            announce(session, [job])
        return _insert_one(queue_connection(session, type(job)), job, session)


def _write_one_on(connection: sa.Connection, job: JobMixin[Any]) -> Any:
    """Insert one job as `write_one`, in the transaction of a connection, of which no session knows."""
    if job._blockers or is_announced():  # what these do belongs to a session
        return _within(connection, write_one, job)
    check_connection(connection, type(job))
    with translated():
        return _insert_one(connection, job, None)


def _within(connection: sa.Connection, write: Callable[..., Any], /, *args: Any) -> Any:
    """Write by a session, in the transaction of a connection."""
    if not connection.in_transaction():
        connection.begin()
    with Session(connection, join_transaction_mode="rollback_only") as session:
        outcome = write(session, *args)
        session.commit()  # not the connection's transaction
        return outcome


def _insert_one(connection: sa.Connection, job: JobMixin[Any], session: Session | None) -> Any:
    set_defaults(type(job), [job])
    queue_key = queue_key_of(job)
    notifies = is_to_notify(session, connection, type(job), queue_key)
    statement, parameters = insert_of(job, queue_key if notifies else None)
    connection.execute(statement, parameters)
    job._is_enqueued = True
    return job.__dict__["id"]


def insert_of(job: JobMixin[Any], queue_key: str | None = None) -> tuple[Insert, dict[str, Any]]:
    """Return the statement that inserts one job, and its parameters. `queue_key`: to notify; None for no notification."""
    values = written_values(job)
    if queue_key is not None:
        values["changed_xid"] = queue_key
    expressions: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, sa.ClauseElement)}
    for name in expressions:
        del values[name]
    if (job._delay or job._at) and (due := due_at(delay=job._delay, at=job._at)) is not None:
        expressions["scheduled_at"] = due
    statement = jobs.enqueue_one(type(job), tuple(values))
    del values["chain_id"], values["chain_type_name"]
    if expressions:
        statement = statement.values(expressions)
    if "input" in values:
        values["input"] = input_text(job)
    return statement, values


def write_many(session: Session, new: Iterable[JobMixin[Any]], *, unless_taken: bool = False) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return the ids of those written, in the given order.

    As `enqueue_many` without deduplication. `unless_taken`: leave out jobs whose deduplication key an open chain has, and
    write in the given order.
    """
    listed = list(new)
    if not listed:
        return []
    kind = type(listed[0])
    written_ids: set[Any] = set()

    def insert(statement: Insert, parameters: Any) -> None:
        if unless_taken:
            returning = jobs.unless_taken(kind, statement).returning(table(kind).c.id)
            written_ids.update(connection.execute(returning, parameters).scalars())
        else:
            connection.execute(statement, parameters)

    for index, job in enumerate(listed):
        check_new(f"new[{index}]", job, kind)
    waiting = any(job._blockers for job in listed)
    if waiting:
        session.flush()  # they may wait for pending objects
    with translated():
        announce(session, listed)
        connection = queue_connection(session, kind)
        edges = declare(connection, listed) if waiting else []
        for names, group in group_by_columns(kind, listed, in_order=unless_taken):
            if uncarried(kind, names, group):
                # Row by row, as the unit of work does. Jobs that set the same columns have one statement, unless it has
                # expressions.
                for statement, pairs in groupby(map(insert_of, group), key=itemgetter(0)):
                    insert(statement, [parameters for _, parameters in pairs])
            else:
                varying, equal = without_defaults(arrays(kind, names, group, connection.dialect))
                columns = tuple(name for name in varying if name in names)
                insert(jobs.enqueue_many(kind, columns, tuple(equal)), varying | equal)
        if unless_taken:
            listed = [job for job in listed if job.__dict__["id"] in written_ids]
        if waiting:
            write_edges(connection, edges)
        for queue_key in sorted(set(map(queue_key_of, listed))):
            notify_workers(session, connection, kind, queue_key)
    for job in listed:
        job._is_enqueued = True
    return [job.__dict__["id"] for job in listed]


def check_new(field: str, job: object, kind: type[Any]) -> None:
    """Check that this is a fresh job, and of one class with the others. Raises: InvalidJobError."""
    if not isinstance(job, JobMixin):
        raise InvalidJobError(field, f"must be a job, as Job(...) or handler.job(...) make it, got {type(job).__name__}")
    if type(job) is not kind:
        raise InvalidJobError(field, f"is a {type(job).__name__}, the first is a {kind.__name__}")
    if not instance_state(job).transient:
        raise InvalidJobError(field, "is or was in a session; add it there, or pass a fresh job")


def by_session(write: Callable[..., Any], session: Any, /, *args: Any) -> Any:
    """Write by a function of a `Session`, on whichever kind of session or connection is given."""
    match session:
        case Session():
            return write(session, *args)
        case sa.Connection():
            return _write_one_on(session, *args) if write is write_one else _within(session, write, *args)
        case AsyncSession() | AsyncConnection():
            return session.run_sync(partial(by_session, write), *args)
        case scoped_session() | async_scoped_session():
            return by_session(write, session(), *args)
    raise no_session(session)


# The row of a job


@once_a_model
def written_columns(kind: JobClass) -> dict[str, Any]:
    """Return the columns that enqueueing may write, by attribute: all but those that are computed."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in sa.inspect(kind).column_attrs
        if attribute.columns[0] in table(kind).c.values()
        and attribute.columns[0].computed is None
        # A job whose transaction was rolled back has that of the row it never became.
        and attribute.key not in {"scheduled_at", "changed_xid"}
    }


DEFAULTS: Final[Mapping[str, Any]] = {**NEW, "fairness_key": "", "trace_context": None, "chain_trace_context": None}
"""Values that the database fills in where a row leaves them out; None: it decides by the type."""


def written_values(job: JobMixin[Any]) -> dict[str, Any]:
    """Return the values of a job that its INSERT writes, by column: those that are not the database's defaults."""
    columns = _columns(type(job))
    # By identity: the constructor sets the very objects of `DEFAULTS`, and an equal one may as well be written.
    return {
        column[0]: value
        for key, value in job.__dict__.items()
        if (column := columns.get(key)) is not None and value is not column[1]
    }


@once_a_model
def _columns(model: JobClass) -> dict[str, tuple[str, Any]]:
    """Return the name and the default of each column that an INSERT may write, by attribute; `_ABSENT` for no default."""
    return {
        key: (column.name, DEFAULTS.get(column.name, _ABSENT) if key in vars(JobMixin) else _ABSENT)
        for key, column in written_columns(model).items()
    }


_ABSENT: Final = object()


def input_text(job: JobMixin[Any]) -> str:
    """Return a job's input as JSON text: that of its check, unless the attribute was set since."""
    value, document = job.__dict__["input"], job._document
    return document.text if document is not None and value is document.value else json.dumps(value)


def set_defaults(kind: JobClass, listed: Sequence[Any]) -> None:
    """Set the defaults in Python of columns that jobs do not set."""
    defaults = defaults_of(kind)
    for job in listed if defaults else ():
        for key, default in defaults.items():
            if key not in job.__dict__:
                setattr(job, key, _default_value(key, default, job))


Default: TypeAlias = Callable[[JobMixin[Any]], Any]
"""Returns the value of a column for a job that does not set it."""


@once_a_model
def defaults_of(kind: JobClass) -> dict[str, Default]:
    """Return the functions that return the defaults of columns with a default in Python, by attribute."""
    defaults = {
        key: default for key, column in written_columns(kind).items() if (default := _default_of(column)) is not None
    }
    mapper = sa.inspect(kind)
    if mapper.version_id_col is not None and callable(first := mapper.version_id_generator):
        defaults[mapper.get_property_by_column(mapper.version_id_col).key] = lambda job: first(None)
    return defaults


def _default_of(column: sa.ColumnElement[Any]) -> Default | None:
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


def _default_value(key: str, default: Default, job: JobMixin[Any]) -> Any:
    try:
        return default(job)
    except Exception as error:
        reason = f"its default raised {summary(error)}; pass a value, or correct the default"
        raise InvalidJobError(key, reason) from error


# The rows of many jobs


Group = tuple[dict[str, str], list[Any]]
"""The columns that some jobs set, as attribute by column, and those jobs."""


def group_by_columns(kind: JobClass, listed: Sequence[Any], *, in_order: bool = False) -> list[Group]:
    """Group jobs by the columns that they set; the database fills in the others. Sets defaults in Python.

    Columns that the database would fill in with null are set to None, so that they do not separate groups.
    `in_order`: whether the order stays, so that only consecutive jobs are of one group.
    """
    attributes = written_columns(kind)
    keys_by_job = _set_by(kind, attributes, listed)
    empty = {key for key in frozenset().union(*keys_by_job) if _is_null_unset(attributes[key])}
    for job, keys in zip(listed, keys_by_job, strict=True):
        for key in empty - keys:
            setattr(job, key, None)
    groups: dict[tuple[frozenset[str], int], list[Any]] = {}
    runs = groupby(zip((keys | empty for keys in keys_by_job), listed, strict=True), key=itemgetter(0))
    for number, (keys, run) in enumerate(runs):
        groups.setdefault((keys, number if in_order else 0), []).extend(job for _, job in run)
    return [({attributes[key].name: key for key in attributes if key in keys}, group) for (keys, _), group in groups.items()]


def _set_by(kind: JobClass, attributes: Mapping[str, Any], listed: Sequence[Any]) -> list[frozenset[str]]:
    """Return the columns that each job sets, after setting defaults in Python."""
    set_defaults(kind, listed)
    # Jobs created by the same call have the same attributes in the same order.
    keys_by_attributes: dict[tuple[str, ...], frozenset[str]] = {}
    keys_by_job: list[frozenset[str]] = []
    for job in listed:
        attribute_names = tuple(job.__dict__)
        if attribute_names not in keys_by_attributes:
            keys_by_attributes[attribute_names] = frozenset(attributes.keys() & attribute_names)
        keys_by_job.append(keys_by_attributes[attribute_names])
    return keys_by_job


def _is_null_unset(column: Any) -> bool:
    """Return whether a column that no value is given for becomes null. For JSON, None may be a value instead."""
    filled_by = (column.default, column.server_default, column.computed, column.identity)
    is_filled = any(source is not None for source in filled_by)
    return (
        bool(column.nullable) and not is_filled and not (isinstance(column.type, sa.JSON) and not column.type.none_as_null)
    )


_OFTEN_EQUAL: Final = frozenset({"queue", "type_name", "priority", "chain_type_name", "max_attempts", "input_version"})
"""Columns in which most calls have one value for all jobs. Sent once, it makes the insert cheaper."""


def without_defaults(values: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Return the `arrays` whose values vary among jobs, and the values of those of `_OFTEN_EQUAL` that do not.

    Columns in which all jobs have the database's default are left out, which reduces the cost of an insert by a third.
    """
    varying: dict[str, Sequence[Any]] = {}
    equal: dict[str, Any] = {}
    for name, column in values.items():
        if name in DEFAULTS and column.count(DEFAULTS[name]) == len(column):
            continue
        if name in _OFTEN_EQUAL and column.count(column[0]) == len(column):
            equal[name] = column[0]
        else:
            varying[name] = column
    return varying, equal


def arrays(kind: JobClass, names: dict[str, str], group: Sequence[Any], dialect: sa.Dialect) -> dict[str, Sequence[Any]]:
    """Return the values of jobs that set the same columns as the arrays of `statements.jobs.enqueue_many`.

    `dialect`: that of the connection, whose engine may have a `json_serializer`.
    """
    dumps = getattr(dialect, "_json_serializer", None) or json.dumps
    values: dict[str, Sequence[Any]] = {}
    states, attributes = [*map(vars, group)], written_columns(kind)
    for name, key in names.items():
        column_type = attributes[key].type
        column_values: Sequence[Any] = [state[key] for state in states]
        if name == "input":
            column_values = [input_text(job) for job in group]
        elif isinstance(column_type, sa.JSON):
            try:
                column_values = [
                    None if value is None and column_type.none_as_null else dumps(value) for value in column_values
                ]
            except (TypeError, ValueError) as error:
                reason = f"is not JSON: {error}; pass what `json.dumps` takes, or give the engine a json_serializer"
                raise InvalidJobError(key, reason) from error
        values[name] = column_values
    values["delays"] = [job._delay for job in group]
    values["ats"] = [job._at for job in group]
    return values


def uncarried(kind: JobClass, names: Mapping[str, str], group: Sequence[Any]) -> str | None:
    """Return an attribute with a value that no array of a set-based statement can carry, None if there is none.

    Such values are arrays, SQL expressions, and values that a column type wraps into an SQL expression or a TypeDecorator
    into JSON.
    """
    never, expressible = _uncarried_columns(kind)
    for key in names.values():
        if key in never or (key in expressible and any(isinstance(job.__dict__[key], sa.ClauseElement) for job in group)):
            return key
    return None


@once_a_model
def _uncarried_columns(kind: JobClass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns whose values no array can carry, and the ones that may be set to SQL expressions, by attribute."""
    application_columns = {key: column for key, column in written_columns(kind).items() if key not in vars(JobMixin)}
    never = tuple(key for key, column in application_columns.items() if not _is_carried(column.type))
    return never, ("expires_at", *(key for key in application_columns if key not in never))


def _is_carried(column_type: TypeEngine[Any]) -> bool:
    """Return whether values of a column type can be elements of an array parameter."""
    inner = of_postgresql(column_type)
    while isinstance(inner, TypeDecorator):
        inner = of_postgresql(inner.impl_instance)
    wrapped = isinstance(inner, sa.JSON) and not isinstance(column_type, sa.JSON)
    return not (wrapped or isinstance(inner, sa.ARRAY) or is_expressed(column_type))


def is_expressed(column_type: TypeEngine[Any]) -> bool:
    """Return whether a column type wraps its values into an SQL expression, which neither arrays nor COPY can."""
    postgresql_type = of_postgresql(column_type)
    return postgresql_type._has_bind_expression or (
        isinstance(postgresql_type, TypeDecorator) and is_expressed(postgresql_type.impl_instance)
    )


def of_postgresql(column_type: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type's variant for PostgreSQL, or the type itself."""
    return column_type._variant_mapping.get("postgresql", column_type)


# The notification: idle workers hear of new jobs when the transaction that wrote them commits


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


LISTENERS: Final[tuple[tuple[str, Callable[..., Any]], ...]] = (
    ("after_begin", silence_twophase),
    ("before_flush", before_flush),
    # Then `before_insert` for each job.
    ("after_flush", after_flush),
    ("before_commit", look_again),
    ("after_commit", hooks.hand_on),
    ("after_soft_rollback", discard_rolled_back),
    ("after_transaction_end", hooks.run_or_forget),
)


def listen() -> None:
    """Register the listeners, once for the process."""
    for name, listener in LISTENERS:
        sa.event.listen(Session, name, listener)
    sa.event.listen(JobMixin, "before_insert", before_insert, propagate=True)
    sa.event.listen(JobMixin, "before_update", before_update, propagate=True)
