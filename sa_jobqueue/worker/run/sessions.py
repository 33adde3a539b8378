"""The sessions that handlers are given: opened by the application's own factories, committed by the worker alone.

A handler's transaction begins with its first statement and ends with the worker's commit, which holds the completion as
well. `Guard` refuses what else would end it, through SQLAlchemy as through a connection or cursor of psycopg. The rest, such
as a `COMMIT` sent with the cursor of another driver, is found by the completing statement, which returns the name that the
first statement gave to the transaction. A connection that comes back in another state than it was given in is closed, and so
is one on which a completion was hidden: what its handler has set may outlast the transaction.
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
from sqlalchemy import AssertionPool, Connection, Engine, QueuePool, StaticPool, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import await_only

from sa_jobqueue.context import AttemptContext, extension_refused
from sa_jobqueue.db.connections import call_connect_listeners
from sa_jobqueue.db.forks import cut_off_when_forked
from sa_jobqueue.db.poolers import prepare_nothing
from sa_jobqueue.db.splitting import is_unreachable, sqlstate
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.errors import HandlerCommitError, InvalidOptionError
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.statements.session_names import name_session, session_name
from sa_jobqueue.types import MOST_CONCURRENT

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
_IS_DISCARDED: Final = "sa_jobqueue.is_discarded"
"""In the `info` of a pooled connection: whether it is closed when it comes back."""
_SETTINGS: Final = "sa_jobqueue.settings"
"""In the `info` of a pooled connection: the settings of the driver with which it was checked out."""
_RETURNED: Final = "sa_jobqueue.returned"
"""In the `info` of a pooled connection: the settings of the driver with which it came back."""


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
            connection.info[_IS_DISCARDED] = True

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
        connection.info.setdefault(_SETTINGS, _settings_of(driver))
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
            event.listen(engine, "checkout", _check_returned, insert=True)  # before listeners that set its state
            event.listen(engine, "checkout", _on_checkout)
            event.listen(engine, "checkin", _on_checkin)
            _watched.add(engine)


def _on_commit(connection: Connection) -> None:
    session_guard = connection.get_execution_options().get(GUARD)
    if (
        session_guard is not None and session_guard.name is not None
    ):  # without one: a connection that the application gives to sessions
        session_guard.commit()
        if session_guard.has_sent_more and _is_aborted(connection):
            # PostgreSQL answers such a COMMIT with a ROLLBACK, which drivers do not report.
            raise HandlerCommitError(
                "a statement failed in the handler's transaction after the worker's own, such as in a listener of "
                "before_commit, and its error was caught: nothing can be committed"
            )


def _check_returned(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
    """Have the pool replace a connection whose driver was given other settings while no session had it.

    A handler that has rolled back its session may still hold the driver's connection.
    """
    returned = record.info.pop(_RETURNED, None)
    if returned not in {None, _settings_of(record.driver_connection)}:
        raise DisconnectionError("the settings of the driver's connection were changed in the pool")


def _on_checkout(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
    record.info[_SETTINGS] = _settings_of(record.driver_connection)


def _on_checkin(connection: Any, record: ConnectionPoolEntry) -> None:
    """Close a connection that is in a transaction, or whose driver has other settings, instead of giving it to the next one.

    The pool has rolled back what SQLAlchemy knew of. A transaction that is still open is one that it does not know of: of a
    refused commit, or begun past it.
    """
    driver: Any = record.driver_connection
    earlier_settings = record.info.pop(_SETTINGS, None)
    is_discarded = record.info.pop(_IS_DISCARDED, False)
    if connection is not None and (
        is_discarded or _is_in_transaction(driver) or earlier_settings not in {None, _settings_of(driver)}
    ):
        record.invalidate()
    elif connection is not None:
        record.info[_RETURNED] = _settings_of(driver)


def _settings_of(driver: Any) -> tuple[Any, ...]:
    names = ("autocommit", "isolation_level", "read_only", "readonly", "deferrable")
    return tuple(getattr(driver, name, None) for name in names)


def _is_in_transaction(driver: Any) -> bool:
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:  # asyncpg
        return bool(is_in_transaction())
    info = getattr(driver, "info", None)
    return info is not None and int(info.transaction_status) != TransactionStatus.IDLE


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


class Sessions:
    """The session factories of handlers: those that the application gave, or made for its engine or URL.

    Raises: InvalidOptionError for a factory that does not create the annotated class, one in AUTOCOMMIT mode, or a pool too
    small for the handlers that need a connection each.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine | AsyncEngine,
        sync: sessionmaker[Any] | None,
        asynchronous: async_sessionmaker[Any] | None,
        *,
        concurrency: int,
    ) -> None:
        kinds = [kind for kind in registry if kind.signature.session_argument is not None]
        self._engine, self._url = engine, for_psycopg(engine.url, option="engine")
        self.concurrency = concurrency
        """How many handlers may run at a time."""
        self._factories: dict[bool, Any] = {False: sync, True: asynchronous}
        """By whether they are asynchronous; None until one is needed."""
        options = self._options = {
            False: "engine" if sync is None else "session_factory",
            True: "engine" if asynchronous is None else "async_session_factory",
        }
        self._making = threading.Lock()
        self.own_engines: list[Engine | AsyncEngine] = []
        """Engines made for them, to be disposed of."""
        self._by_class = {
            kind.signature.session_class: _factory_of(
                kind, self.factory(is_async=kind.wants_async_session), options[kind.wants_async_session]
            )
            for kind in kinds
        }
        """Which factory makes what handlers are annotated with."""
        self.most = MOST_CONCURRENT
        """How many concurrent handlers they have connections for."""
        for is_async, factory in self._factories.items():
            if factory is not None and kinds:
                _check_isolation(options[is_async], factory)
            self.most = min(self.most, _room(options[is_async], factory, concurrency))

    def open(self, job_type: JobType) -> Any:
        """Return a session of the class that a handler is annotated with."""
        kind: Any = job_type.signature.session_class
        return self._by_class[kind]()

    def check_spare(self, *, is_async: bool) -> None:
        """Refuse a second session to a handler whose pool has a connection for the first of each handler only.

        All of them could wait for each other; with one more connection, one of them goes on. Raises: InvalidOptionError.
        """
        size = _room(self._options[is_async], self._factories[is_async], concurrency=1)
        if size <= self.concurrency:
            raise InvalidOptionError(
                self._options[is_async],
                f"its pool holds {size} connections: {self.concurrency} handlers with a session may run at once, and "
                f"`ctx.transaction` needs another. Raise pool_size to {self.concurrency + 1} or more, lower concurrency to "
                f"{size - 1}, or give the handler no session",
            )

    def factory(self, *, is_async: bool) -> Any:
        """Return the factory of plain sessions, such as those of transactions that are steps. From any thread."""
        with self._making:
            if self._factories[is_async] is None:
                self._factories[is_async] = self._new_factory(is_async=is_async)
        return self._factories[is_async]

    def _new_factory(self, *, is_async: bool) -> Any:
        maker = async_sessionmaker if is_async else sessionmaker
        if is_async == isinstance(self._engine, AsyncEngine):
            return maker(self._engine)  # type: ignore[arg-type]
        # Each handler holds up to one connection, and the pool of the application may be smaller than that. There is no
        # overflow limit, because the concurrency may be raised at run time.
        size = {"pool_size": self.concurrency, "max_overflow": -1}
        engine = create_async_engine(self._url, **size) if is_async else create_engine(self._url, **size)
        call_connect_listeners(self._engine.dialect, engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
        self.own_engines.append(engine)
        return maker(engine)  # type: ignore[arg-type]

    def prepare_nothing(self) -> None:
        """Have handlers' sessions prepare no statements: a pooler forgets them."""
        for factory in self._factories.values():
            bind = factory.kw.get("bind") if factory is not None else None
            if isinstance(bind, (Engine, AsyncEngine)):
                prepare_nothing(bind)


def _factory_of(kind: JobType, factory: Any, option: str) -> Any:
    """Return the factory of the session that a handler is annotated with."""
    session_class: Any = kind.signature.session_class
    if issubclass(factory.class_, session_class):
        return factory
    plain = AsyncSession if kind.wants_async_session else Session
    maker = async_sessionmaker if kind.wants_async_session else sessionmaker
    if option == "engine":
        return maker(factory.kw["bind"], class_=session_class)
    raise InvalidOptionError(
        option,
        f"makes a {factory.class_.__mro__[1].__qualname__}, but the handler {kind.place} is annotated with "
        f"{session_class.__qualname__}: pass {maker.__name__}(..., class_={session_class.__qualname__}), or annotate "
        f"{plain.__name__}",
    )


def _check_isolation(option: str, factory: Any) -> None:
    """Refuse AUTOCOMMIT where it can be seen before the first statement; `Guard.begin` finds the rest."""
    bind = factory.kw.get("bind")
    engine = bind.sync_engine if isinstance(bind, AsyncEngine) else bind
    levels = [(factory.kw.get("execution_options") or {}).get("isolation_level")]
    if isinstance(engine, Engine):
        levels += [
            engine.get_execution_options().get("isolation_level"),
            getattr(engine.dialect, "_on_connect_isolation_level", None),
        ]
    if any(str(level).upper() == "AUTOCOMMIT" for level in levels):
        raise InvalidOptionError(
            option,
            "is in AUTOCOMMIT mode, in which a handler's writes and its completion cannot be one commit: remove "
            'isolation_level="AUTOCOMMIT", or pass a session factory of another engine',
        )


def _room(option: str, factory: sessionmaker[Any] | async_sessionmaker[Any] | None, concurrency: int) -> int:
    """Return how many connections the pool of a factory has. Raises: InvalidOptionError if they are too few."""
    bind = factory.kw.get("bind") if factory is not None else None
    match getattr(bind, "pool", None):
        case QueuePool() as pool if pool._max_overflow >= 0:
            size = pool.size() + pool._max_overflow
        case StaticPool() | AssertionPool():  # the first would let handlers commit each other's writes
            size = 1
        case _:
            return MOST_CONCURRENT
    if size < concurrency:
        raise InvalidOptionError(
            option,
            f"its pool holds {size} connections, fewer than the {concurrency} handlers that may run at once: raise "
            "pool_size or lower concurrency",
        )
    return size
