"""The sessions that handlers are given: opened by the application's own factories, committed by the worker alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from sa_jobqueue.errors import HandlerCommitError, InvalidOptionError
from sa_jobqueue.registry import Registry
from sa_jobqueue.statements.sessions import name_session
from sa_jobqueue.types import MOST_CONCURRENT
from sa_jobqueue.urls import for_psycopg
from sa_jobqueue.worker.poolers import prepare_nothing

HELD: Final = "sa_jobqueue.held"
"""In `Session.info` for as long as the session is the handler's."""
NAMED: Final = "sa_jobqueue.named"
"""In `Session.info` while what the session begins is the handler's own: the id of its job."""


@event.listens_for(Session, "before_commit")
def _refuse_commit(session: Session) -> None:
    # Savepoints are the handler's own business; the outermost commit is the worker's.
    if session.info.get(HELD) and session.get_nested_transaction() is None:
        raise HandlerCommitError


@event.listens_for(Session, "after_begin")
def _name(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    # A transaction that a handler leaves open holds back vacuum: let it be seen whose it is. One round trip for each
    # transaction of a handler; one that asks the database for nothing has none.
    job_id = session.info.get(NAMED)
    if job_id is not None and not transaction.nested and connection.dialect.name == "postgresql":
        connection.exec_driver_sql(name_session(job_id))


@dataclass(slots=True)
class Sessions:
    """The application's own session factories, as far as its handlers need them."""

    sync: sessionmaker[Any] | None = None
    asynchronous: async_sessionmaker[Any] | None = None
    most: int = MOST_CONCURRENT
    """How many handlers at once they have connections for."""
    own_engines: list[Engine | AsyncEngine] = field(default_factory=list)
    """What was made for them, to be disposed of."""

    def open_sync(self) -> Any:
        """Return a session for a thread."""
        if self.sync is None:
            raise InvalidOptionError("session_factory", "is needed by a handler that takes a Session")
        return self.sync()

    def open_async(self) -> Any:
        """Return a session for a task."""
        if self.asynchronous is None:
            raise InvalidOptionError("async_session_factory", "is needed by a handler that takes an AsyncSession")
        return self.asynchronous()


def prepare_nothing_in(sessions: Sessions) -> None:
    """Make handlers' sessions prepare no statements: a pooler forgets them."""
    for factory in (sessions.sync, sessions.asynchronous):
        bind = factory.kw.get("bind") if factory is not None else None
        if isinstance(bind, (Engine, AsyncEngine)):
            prepare_nothing(bind)


def sessions_for(registry: Registry, engine: Engine | AsyncEngine, given: Sessions, *, concurrency: int) -> Sessions:
    """Complete what was given with what the handlers need beyond it, made of the application's engine or of its URL.

    Raises: InvalidOptionError for a pool in which handlers would wait for each other's connections until they fail.
    """
    kinds = [kind for kind in registry if kind.session_argument is not None]
    url = for_psycopg(engine.url, option="engine")
    # A worker's handlers hold up to one connection each; the application's own pool may be smaller than that.
    # Never more than those: but how many that is may change while it runs.
    size = {"pool_size": concurrency, "max_overflow": -1}
    if given.sync is None and any(not kind.wants_async_session for kind in kinds):
        if isinstance(engine, AsyncEngine):
            made = create_engine(url, **size)
            given.own_engines.append(made)
            given.sync = sessionmaker(made)
        else:
            given.sync = sessionmaker(engine)
    if given.asynchronous is None and any(kind.wants_async_session for kind in kinds):
        if isinstance(engine, AsyncEngine):
            given.asynchronous = async_sessionmaker(engine)
        else:
            async_made = create_async_engine(url, **size)
            given.own_engines.append(async_made)
            given.asynchronous = async_sessionmaker(async_made)
    for option, factory in (("session_factory", given.sync), ("async_session_factory", given.asynchronous)):
        given.most = min(given.most, _room(option, factory, concurrency))
    return given


def _room(option: str, factory: sessionmaker[Any] | async_sessionmaker[Any] | None, concurrency: int) -> int:
    bind = factory.kw.get("bind") if factory is not None else None
    pool = getattr(bind, "pool", None)
    overflow = getattr(pool, "_max_overflow", -1)
    if not isinstance(pool, QueuePool) or overflow < 0:
        return MOST_CONCURRENT
    if pool.size() + overflow < concurrency:
        raise InvalidOptionError(
            option,
            f"its pool holds {pool.size() + overflow} connections, fewer than the {concurrency} handlers that may run at "
            "once: raise pool_size or lower concurrency",
        )
    return pool.size() + overflow
