"""The sessions that handlers are given: opened by the application's own factories, or by ones for its engine or URL."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import AssertionPool, Engine, QueuePool, StaticPool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue.db.connections import call_connect_listeners
from sa_jobqueue.db.poolers import prepare_nothing
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.types import MOST_CONCURRENT


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
