"""The writer of new jobs: each way to enqueue does these duties around its INSERT, in this order.

1. The checks of the jobs and of the database that they go to, by which nothing is written yet.
2. The trace: producers, such as OpenTelemetry's, may set it.
3. The edges to the chains that they wait for, whose roots are locked.
4. The INSERT: of the unit of work, of one row, of an array a column (`write_many`), or by COPY (`copy_payloads`).
5. The rows of the edges.
6. The notification of idle workers, at the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, SessionTransaction, UOWTransaction, object_session, scoped_session
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import READ_BACK
from sa_jobqueue.models.checks import due_at
from sa_jobqueue.operations import hooks, references
from sa_jobqueue.operations.blockers import Edge, add_blockers, declare, write_edges
from sa_jobqueue.operations.rows import (
    DEFAULTS,
    arrays,
    group_by_columns,
    input_text,
    set_defaults,
    uncarried,
    without_defaults,
    written_values,
)
from sa_jobqueue.operations.transactions import check_connection, queue_connection, translated
from sa_jobqueue.operations.wakeups import (
    discard_rolled_back,
    is_to_notify,
    look_again,
    look_again_after_flush,
    notify_with_insert,
    notify_workers,
    queue_key_of,
    silence_twophase,
)
from sa_jobqueue.registry.handlers import no_session
from sa_jobqueue.statements import jobs
from sa_jobqueue.statements._parts import table
from sa_jobqueue.tracing import announce, is_announced
from sa_jobqueue.types import JobStatus

_FEW: Final = 3
"""Largest number of jobs in a flush that are written one by one, without RETURNING; more share a statement, which has it."""
_AS_DEFAULT: Final = ("chain_index", "status", "open_blockers", "attempt")
"""Columns that an INSERT of many jobs leaves to the database: RETURNING a value costs less than a parameter for each row."""
_is_many: ContextVar[bool] = ContextVar("sa_jobqueue_is_many", default=False)
"""Whether the flush that is under way inserts more than a `_FEW` jobs, none of which waits for others."""
_flushed: WeakKeyDictionary[Session, list[list[Edge]]] = WeakKeyDictionary()
"""The edges of a flush that is under way, by queue."""
_expiring: WeakSet[Session] = WeakSet()
"""Sessions in a commit that expires their objects: its flush reads nothing back."""


def before_commit(session: Session) -> None:
    """Notify workers that have become idle, and note that the flush of this commit need read nothing back."""
    look_again(session)
    if session.expire_on_commit and session.get_nested_transaction() is None and not session.twophase:
        _expiring.add(session)


def before_flush(session: Session, context: UOWTransaction, instances: object) -> None:
    """Do what comes before the INSERT for the new jobs of a flush; `before_insert` and `after_flush` do the rest."""
    _flushed.pop(session, None)
    new = [job for job in session.new if isinstance(job, JobMixin)]
    if waiting := [job for job in new if job._blockers]:
        add_blockers(session, waiting)
        new = [job for job in session.new if isinstance(job, JobMixin)]
    READ_BACK.is_lazy.set(session in _expiring and len(new) <= _FEW)
    _is_many.set(len(new) > _FEW and not waiting)
    references.before_flush(session, context, new)
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
    references.before_insert(object_session(job), job)
    if _is_many.get():
        for name in _AS_DEFAULT:
            if state.get(name) is DEFAULTS[name]:
                del state[name]
    # A job that is added again after a rollback still has the id of that transaction, where no claim would find it.
    state.pop("changed_xid", None)
    notify_with_insert(object_session(job), connection, job)


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
    """Write the edges of jobs that were flushed, and inputs that lacked a key."""
    READ_BACK.is_lazy.set(False)
    look_again_after_flush(session)
    references.after_flush(session)
    for edges in _flushed.pop(session, ()):
        write_edges(queue_connection(session, type(edges[0].job)), edges)


def forget_commit(session: Session, transaction: SessionTransaction) -> None:
    """Forget the commit of a transaction that has ended."""
    if transaction.parent is None:
        _expiring.discard(session)


def forget_columns(session: Session, job: object) -> None:
    """Have a job whose INSERT failed or was rolled back read as before its flush.

    No row has the columns that were to be loaded, and defaults that the INSERT left out are set again.
    """
    if isinstance(job, JobMixin):
        instance_state(job).expired_attributes.clear()
        for name in _AS_DEFAULT:
            job.__dict__.setdefault(name, DEFAULTS[name])


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
        references.complete(session, [job])
        if is_announced():
            announce(session, [job])
        return _insert_one(queue_connection(session, type(job)), job, session)


def _write_one_on(connection: sa.Connection, job: JobMixin[Any]) -> Any:
    """Insert one job as `write_one`, in the transaction of a connection, of which no session knows."""
    if job._blockers or is_announced():  # what these do belongs to a session
        return _within(connection, write_one, job)
    check_connection(connection, type(job))
    references.complete(None, [job])
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
        references.complete(session, listed)
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


LISTENERS: Final[tuple[tuple[str, Callable[..., Any]], ...]] = (
    ("after_begin", silence_twophase),
    ("before_flush", before_flush),
    # Then `before_insert` for each job.
    ("after_flush", after_flush),
    ("persistent_to_transient", forget_columns),
    ("pending_to_transient", forget_columns),
    ("before_commit", before_commit),
    ("after_commit", hooks.hand_on),
    ("after_soft_rollback", discard_rolled_back),
    ("after_transaction_end", hooks.run_or_forget),
    ("after_transaction_end", forget_commit),
)


def listen() -> None:
    """Register the listeners, once for the process."""
    for name, listener in LISTENERS:
        sa.event.listen(Session, name, listener)
    sa.event.listen(JobMixin, "before_insert", before_insert, propagate=True)
    sa.event.listen(JobMixin, "before_update", before_update, propagate=True)
