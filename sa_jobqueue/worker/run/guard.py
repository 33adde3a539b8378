"""Keeps a handler from ending the transaction of its session, which the worker commits with the completion.

A handler's transaction begins with its first statement and ends with the worker's commit. `Guard` refuses what else would
end it, through SQLAlchemy as through a connection or cursor of psycopg. The rest, such as a `COMMIT` sent with the cursor of
another driver, is found by the completing statement, which returns the name that the first statement gave to the
transaction.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

import psycopg
import psycopg.sql
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

from sa_jobqueue.context import AttemptContext, extension_refused
from sa_jobqueue.db.forks import cut_off_when_forked
from sa_jobqueue.db.splitting import is_unreachable, sqlstate
from sa_jobqueue.errors import HandlerCommitError
from sa_jobqueue.statements.session_names import name_session, session_name
from sa_jobqueue.worker.run import pooled

GUARD: Final = "sa_jobqueue.guard"
"""In `Session.info`, and in the execution options of the connection of its transaction."""

_ONE_COMMIT: Final = "the handler's writes and its completion are one commit"
_COMMENTS: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
ENDING: Final = re.compile(
    rf"{_COMMENTS}(?:commit|end|abort|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b)|prepare\s+transaction)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that end the transaction. Only the first word counts: functions are written with `END` as well."""
_SNAPSHOT_LEVELS: Final = ("REPEATABLE READ", "SERIALIZABLE")
"""Isolation levels at which a transaction cannot update a row that was changed after its first statement."""
_GUARDED: Final = "_sa_jobqueue_guard"
"""Attribute of psycopg's connection: the guard of the last handler that had it."""
_completing: ContextVar[Guard] = ContextVar("sa_jobqueue_completing")
"""The guard of the handler that has returned, where its attempt is completed; tasks and threads of the handler lack it."""


class UnconnectedError(Exception):
    """A handler's session got no connection, so its call has changed nothing through it. `cause` is the handler's error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Guard:
    """Keeps one handler from ending the transaction of its session. Around its call: `with guard: ...`.

    After the call, it keeps tasks and threads that the handler left behind from using the session.
    """

    __slots__ = (
        "_connections",
        "_contexts",
        "_fault",
        "_has_returned",
        "_is_closed",
        "_is_rolled_back",
        "backend_pid",
        "has_sent_more",
        "is_of_step",
        "may_commit",
        "name",
    )

    def __init__(self, contexts: Sequence[AttemptContext]) -> None:
        self._contexts = contexts
        self.name: str | None = None
        """Name of the open transaction of the handler; None while none is open."""
        self.backend_pid: int | None = None
        """Server process of that transaction, as the driver knows it."""
        self.is_of_step = False
        """Whether the session is that of a `ctx.transaction`, which ends before the handler returns."""
        self.may_commit = False
        """Set by the worker, for its own commit."""
        self.has_sent_more = False
        """Whether statements were sent after the worker's own, by listeners of its commit."""
        self._has_returned = False
        self._is_closed = False
        self._is_rolled_back = False
        self._fault: HandlerCommitError | None = None
        self._connections: list[Connection] = []
        """Connections of the open transaction."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._has_returned = True
        _completing.set(self)
        if isinstance(error, Exception) and self.name is None and is_unreachable(error):
            raise UnconnectedError(error)
        if error is None and self._fault is not None:
            raise self._fault

    def check_user(self) -> None:
        """Refuse the session to a task or thread that outlives its handler. Raises: HandlerCommitError."""
        if self._is_closed:
            raise HandlerCommitError(
                "the session of `ctx.transaction` was used after its block: use that of another step, or the handler's"
            )
        self._note_user()
        if self._has_returned and self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Refuse the session from now on: the step that it was made for has ended."""
        self._is_closed = True

    def _note_user(self) -> None:
        if self._has_returned and _completing.get(None) is not self:
            reason = "a task or thread that it left behind used its session: wait for it before you return"
            self._fault = HandlerCommitError(f"{_ONE_COMMIT}, but {reason}")

    def begin(self, connection: Connection) -> None:
        """Name the transaction that the handler begins: one round trip. One that asks for nothing has none."""
        if self._is_closed:
            connection.close()  # the handler does not close this session again
        self.check_user()
        self._connections.append(connection)
        if self._has_returned or connection.dialect.name != "postgresql":
            return
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            self._refuse("its session is in AUTOCOMMIT mode, where nothing can be rolled back: use another isolation level")
        # A transaction that a handler leaves open holds back vacuum: its name in pg_stat_activity shows whose it is.
        job_id = self._contexts[0].job.id
        connection.exec_driver_sql(name_session(job_id))
        _watch(connection.engine)
        connection.execution_options(**{GUARD: self})
        self._keep_driver_from_committing(connection)
        self.name, self.backend_pid = session_name(job_id), backend_pid(connection)
        for context in self._contexts:
            context.transactions.add(self)
        self._is_rolled_back = False
        if (level := _isolation_level(connection)) in _SNAPSHOT_LEVELS:
            self._expect_snapshot(level, connection)

    def _expect_snapshot(self, level: str, connection: Connection) -> None:
        """Refuse extensions from now on, and wait for the last one, whose write to the job the snapshot must see."""
        for context in self._contexts:
            context.snapshot_levels[self] = level
            if context.extension is None or context.extension.done():
                continue
            if connection.dialect.is_async:
                await_only(asyncio.wrap_future(context.extension))
            else:
                context.extension.result()

    @contextmanager
    def explaining_extensions(self) -> Iterator[None]:
        """Within, around the worker's own statements, raise the error of an extension that the transaction collides with.

        It was not refused if the handler has set the isolation level by a statement that `_isolation_level` does not know.
        """
        try:
            yield
        except DBAPIError as error:
            is_extended = any(context.extension is not None for context in self._contexts)
            if not is_extended or sqlstate(error) != "40001":
                raise
            raise extension_refused("one whose snapshot is older than the job's row") from error

    def roll_back(self) -> None:
        """Record that the handler called `session.rollback()`, or that a flush failed: the handler may continue."""
        self._note_user()
        self._is_rolled_back = True

    def end(self) -> None:
        """Record that the transaction ended. Raises: HandlerCommitError if it was not a rollback."""
        rolled_back, self._is_rolled_back, self.name = self._is_rolled_back, False, None
        self._connections.clear()
        for context in self._contexts:
            context.snapshot_levels.pop(self, None)
            context.transactions.discard(self)
        self._note_user()
        if not self._has_returned and not rolled_back:
            self._refuse("it closed its session, which dropped what it had written: leave that to the worker")

    def discard_connections(self) -> None:
        """Have the connections of the open transaction closed at its end, instead of given to others."""
        for connection in self._connections:
            _watch(connection.engine)
            pooled.discard(connection)

    def commit(self) -> None:
        """Refuse a commit that is not the worker's. Raises: HandlerCommitError."""
        self.check_user()
        if not self.may_commit:
            raise HandlerCommitError

    def execute(self, statement: str, *, is_autocommit: bool = False) -> None:
        """Refuse a statement that ends the transaction, and any in the driver's autocommit. Raises: HandlerCommitError."""
        if self._has_returned:
            return
        if is_autocommit:
            self._refuse("it put the driver's connection into autocommit mode: leave that as it is")
        if ENDING.match(statement):
            raise HandlerCommitError(f"a handler must not end its session's transaction, it sent {statement.strip()[:60]!r}")

    def _keep_driver_from_committing(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        cut_off_when_forked(driver)
        pooled.remember(connection)
        if not isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)):
            return
        commit: Any = type(driver).commit

        def guarded_commit() -> Any:
            if not self._has_returned:
                self._refuse("it committed on the driver's connection: leave that to the worker")
            return commit(driver)

        driver.commit = guarded_commit  # type: ignore[method-assign]
        psycopg_connection: Any = driver
        psycopg_connection.cursor_factory = _refusing(psycopg_connection.cursor_factory)
        setattr(driver, _GUARDED, self)

    def _refuse(self, reason: str) -> None:
        self._fault = HandlerCommitError(f"{_ONE_COMMIT}, but {reason}")
        raise self._fault


@cache
def _refusing(base: Any) -> Any:
    """Return a class of psycopg's cursors that sends no statement which would end a handler's transaction."""
    if issubclass(base, _Refusing):
        return base
    return type(base.__name__, (_Refusing, base), {})


class _Refusing:
    connection: Any

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        session_guard: Guard | None = getattr(self.connection, _GUARDED, None)
        if session_guard is not None:
            session_guard.execute(_text_of(query), is_autocommit=self.connection.autocommit)
        return super().execute(query, *args, **options)  # type: ignore[misc]


def _text_of(query: Any) -> str:
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return query.as_string(None) if isinstance(query, psycopg.sql.Composable) else str(query)


def backend_pid(connection: Connection) -> int | None:
    """Return the server process of a connection, as its driver knows it; another one behind a pooler."""
    driver: Any = connection.connection.driver_connection
    info = getattr(driver, "info", None)
    pid: int | None = driver.get_server_pid() if hasattr(driver, "get_server_pid") else getattr(info, "backend_pid", None)
    return pid


def guard(session: Session | AsyncSession, contexts: Sequence[AttemptContext]) -> Guard:
    """Return the guard of a session that is about to be given to the handler of these attempts."""
    session_guard = session.info[GUARD] = Guard(contexts)
    return session_guard


def _isolation_level(connection: Connection) -> str:
    """Return the isolation level of a transaction that begins, without a round trip; the last default is the server's."""
    psycopg_level = getattr(connection.connection.driver_connection, "isolation_level", None)
    levels = (
        getattr(psycopg_level, "name", "").replace("_", " "),
        connection.get_execution_options().get("isolation_level"),
        getattr(connection.dialect, "_on_connect_isolation_level", None),
        connection.default_isolation_level,
    )
    return next((str(level).upper() for level in levels if level), "")


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    # Savepoints are the handler's own business; the outermost commit is the worker's.
    session_guard = session.info.get(GUARD)
    if session_guard is not None and session.get_nested_transaction() is None:
        session_guard.commit()


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    session_guard = session.info.get(GUARD)
    if session_guard is not None and not transaction.nested:
        session_guard.begin(connection)


@event.listens_for(Session, "after_rollback")
def _after_rollback(session: Session) -> None:
    session_guard = session.info.get(GUARD)
    if session_guard is not None and session.get_nested_transaction() is None:
        session_guard.roll_back()


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    session_guard = session.info.get(GUARD)
    if session_guard is not None and transaction.parent is None:
        session_guard.end()


_watched: WeakSet[Engine] = WeakSet()
_watching: Final = threading.Lock()


def _watch(engine: Engine) -> None:
    """See the commits and statements of an engine's connections: those without a guard pass immediately."""
    if engine in _watched:
        return
    with _watching:
        if engine not in _watched:
            event.listen(engine, "commit", _on_commit)
            event.listen(engine, "before_cursor_execute", _on_execute)
            pooled.watch(engine)
            _watched.add(engine)


def _on_commit(connection: Connection) -> None:
    session_guard = connection.get_execution_options().get(GUARD)
    # Without a name, it is a connection that the application gives to sessions.
    if session_guard is not None and session_guard.name is not None:
        session_guard.commit()
        if session_guard.has_sent_more and _is_aborted(connection):
            # PostgreSQL answers such a COMMIT with a ROLLBACK, which drivers do not report.
            raise HandlerCommitError(
                "a statement failed in the handler's transaction after the worker's own, such as in a listener of "
                "before_commit, and its error was caught: nothing can be committed"
            )


def _is_aborted(connection: Connection) -> bool:
    """Return whether a statement has failed in the open transaction: without a round trip where the driver knows."""
    info = getattr(connection.connection.driver_connection, "info", None)
    if info is not None:  # psycopg, psycopg2
        return int(info.transaction_status) == TransactionStatus.INERROR
    try:
        connection.exec_driver_sql("SELECT 1")
    except DBAPIError:
        return True
    return False


def _on_execute(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:  # noqa: PLR0917 - SQLAlchemy calls it
    session_guard = connection.get_execution_options().get(GUARD)
    if session_guard is not None:
        session_guard.check_user()
        session_guard.has_sent_more = session_guard.may_commit
    if session_guard is None or context is None or context.isinsert or context.isupdate or context.isdelete:
        return
    session_guard.execute(statement)
