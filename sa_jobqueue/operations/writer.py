"""The writer of new jobs: each way to enqueue does these duties around its INSERT, in this order.

1. The checks of the jobs and of the database that they go to, by which nothing is written yet.
2. The trace: producers, such as OpenTelemetry's, may set it.
3. The edges to the chains that they wait for, whose roots are locked.
4. The INSERT: of the unit of work, of one row, of arrays (`write_many`, `deduplication`) or by COPY (`copying`).
5. The rows of the edges.
6. The notification of idle workers, at the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import ClauseElement, Connection, Insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, object_session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, require_postgresql
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.checks import due_at
from sa_jobqueue.operations.blockers import Edge, add_blockers, declare, write_edges
from sa_jobqueue.operations.columns import (
    arrays,
    group_by_columns,
    input_text,
    set_defaults,
    uncarried,
    without_defaults,
    written_values,
)
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.notifications import (
    is_to_notify,
    is_to_notify_on,
    notify_workers,
    queue_key_of_job,
    queue_keys_of,
)
from sa_jobqueue.operations.transactions import queue_connection
from sa_jobqueue.statements import jobs
from sa_jobqueue.tracing import announce, is_announced
from sa_jobqueue.types import JobStatus

JobT = TypeVar("JobT", bound=JobMixin[Any])

_flushed: WeakKeyDictionary[Session, list[Edge]] = WeakKeyDictionary()
"""The edges of a flush that is under way."""


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
    if waiting:
        _flushed[session] = declare(_connection(session, waiting[0]), new)


def before_insert(mapper: Mapper[Any], connection: Connection, job: JobMixin[Any]) -> None:
    """Check a job of a flush, and have its INSERT notify workers."""
    state = job.__dict__
    if state.get("status") is JobStatus.BLOCKED and not state.get("open_blockers"):
        raise InvalidJobError(
            "blockers",
            "were not written: only session.add and the cascade of save-update take them along; merge, and events "
            "that add jobs during the flush, do not. Add the job itself to the session before the flush",
        )
    job.__jobqueue__.check_translation(connection.get_execution_options())
    # A job that is added again after a rollback still has the id of that transaction, where no claim would find it.
    state.pop("changed_xid", None)
    session, model = object_session(job), type(job)
    queue_key = queue_key_of_job(job)
    if session is not None and is_to_notify(session, connection, model, queue_key):
        # Sent by the INSERT itself, so that a rollback, also to a savepoint, discards it.
        state["changed_xid"] = jobs.notifying_xid(model, queue_key)


def after_flush(session: Session, context: object) -> None:
    """Write the edges of jobs that were flushed."""
    if edges := _flushed.pop(session, None):
        write_edges(_connection(session, edges[0].job), edges)


def _connection(session: Session, job: JobMixin[Any]) -> Connection:
    # An application with several databases binds the queue's class to one of them.
    connection = queue_connection(session, type(job))
    require_postgresql(connection.dialect.name)
    return connection


@contextmanager
def writing(session: Session, model: JobClass, new: Sequence[JobMixin[Any]]) -> Iterator[Connection]:
    """Do the duties around the INSERT of new jobs of one class; gives the connection for it.

    Raises: as `declare`, with nothing written; for errors of the block, see `translated`.
    """
    with translated():
        announce(session, new)
        connection = queue_connection(session, model)
        edges = declare(connection, new)
        yield connection
        write_edges(connection, edges)
        for queue_key in queue_keys_of(new):
            notify_workers(session, connection, model, queue_key)
    for job in new:
        job._is_enqueued = True


def write_one(session: Session, job: JobMixin[Any]) -> Any:
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
        queue_key = queue_key_of_job(job)
        is_first = is_to_notify(session, connection, model, queue_key)
        _insert_one(connection, job, queue_key if is_first else None)
    return job.id


def _write_one_on(connection: Connection, job: JobMixin[Any]) -> Any:
    """Insert one job as `write_one`, in the transaction of a connection, of which no session knows."""
    require_postgresql(connection.dialect.name)
    job.__jobqueue__.check_translation(connection.get_execution_options())
    if job._blockers or is_announced():  # what these do belongs to a session
        return _within(connection, write_one, job)
    with translated():
        queue_key = queue_key_of_job(job)
        is_notifying = is_to_notify_on(connection, type(job), queue_key)
        _insert_one(connection, job, queue_key if is_notifying else None)
    return job.id


def _within(connection: Connection, write: Callable[..., Any], /, *args: Any) -> Any:
    """Write by a session, in the transaction of a connection."""
    if not connection.in_transaction():
        connection.begin()
    with Session(connection, join_transaction_mode="rollback_only") as session:
        written = write(session, *args)
        session.commit()  # not the connection's transaction
        return written


def _insert_one(connection: Connection, job: JobMixin[Any], queue_key: str | None) -> None:
    set_defaults(type(job), [job])
    statement, given = _insert_of(job, queue_key)
    connection.execute(statement, given)
    job._is_enqueued = True


def _insert_of(job: JobMixin[Any], queue_key: str | None = None) -> tuple[Insert, dict[str, Any]]:
    """Return the statement that inserts one job, and its parameters. `queue_key`: to notify; None for no notification."""
    given = written_values(job)
    expressions: dict[str, Any] = {name: value for name, value in given.items() if isinstance(value, ClauseElement)}
    for name in expressions:
        del given[name]
    if (due := due_at(delay=job._delay, at=job._at)) is not None:
        expressions["scheduled_at"] = due
    statement = jobs.enqueue_one(type(job), tuple(given), notifies=queue_key is not None)
    del given["chain_id"], given["chain_type_name"]
    if expressions:
        statement = statement.values(expressions)
    if "input" in given:
        given["input"] = input_text(job)
    if queue_key is not None:
        given["due_lane"] = queue_key
    return statement, given


def write_many(session: Session, new: Iterable[JobMixin[Any]]) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the given order.

    As `enqueue_many` without deduplication.
    """
    listed = list(new)
    if not listed:
        return []
    kind = type(listed[0])
    for index, job in enumerate(listed):
        check_new(f"new[{index}]", job, kind)
    if any(job._blockers for job in listed):
        session.flush()  # they may wait for pending objects
    with writing(session, kind, listed) as connection:
        for names, group in group_by_columns(kind, listed):
            alone = uncarried(kind, names, group)
            if alone:
                _insert_each(connection, [job for job in group if job.id in alone])
            if rest := [job for job in group if job.id not in alone] if alone else group:
                varying, equal = without_defaults(arrays(kind, names, rest, connection.dialect))
                columns = tuple(name for name in varying if name in names)
                connection.execute(jobs.enqueue_many(kind, columns, tuple(equal)), varying | equal)
    return [job.__dict__["id"] for job in listed]


def check_new(field: str, job: object, kind: type[Any]) -> None:
    """Check that this is a fresh job, and of one class with the others. Raises: InvalidJobError."""
    if not isinstance(job, JobMixin):
        raise InvalidJobError(field, f"must be a job, as Job(...) or handler.job(...) make it, got {type(job).__name__}")
    if type(job) is not kind:
        raise InvalidJobError(field, f"is a {type(job).__name__}, the first is a {kind.__name__}")
    if not instance_state(job).transient:
        raise InvalidJobError(field, "is or was in a session; add it there, or pass a fresh job")


def _insert_each(connection: Connection, listed: Sequence[JobMixin[Any]]) -> None:
    """Insert jobs row by row, as the unit of work does: with values that no array can carry."""
    # A statement is the same object for all jobs that set the same columns, unless it has expressions.
    for statement, pairs in groupby(map(_insert_of, listed), key=itemgetter(0)):
        connection.execute(statement, [given for _, given in pairs])


def by_session(write: Callable[..., Any], session: Any, /, *args: Any) -> Any:
    """Write by a function of a `Session`, on whichever kind of session or connection is given."""
    match session:
        case Session():
            return write(session, *args)
        case Connection():
            return _write_one_on(session, *args) if write is write_one else _within(session, write, *args)
        case AsyncSession() | AsyncConnection():
            return session.run_sync(partial(by_session, write), *args)
        case scoped_session() | async_scoped_session():
            return by_session(write, session(), *args)
    raise InvalidOptionError("session", f"must be a Session or a Connection, or one of asyncio, got {session!r}")
