"""`Worker`: claims jobs, runs their handlers and records the results, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_jobqueue import aio
from sa_jobqueue.db.connections import OWN_CONNECTIONS, POOL, Connections, check_reachable, unavailable
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.db.urls import read_url
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.errors import InvalidOptionError, JobQueueError, RowSecurityError, require_postgresql
from sa_jobqueue.events import (
    DrainRequested,
    EventBus,
    MemoryExceeded,
    PoolerFound,
    RowsHidden,
    SchemaAhead,
    WorkerStarted,
    WorkerStopped,
)
from sa_jobqueue.models.job import check_onupdate
from sa_jobqueue.operations.row_security import hidden_rows
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker import logs
from sa_jobqueue.worker.assembly import Assembly
from sa_jobqueue.worker.background.vitals import Vitals, VitalSigns
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.run.isolation import app_of
from sa_jobqueue.worker.run.sessions import Sessions
from sa_jobqueue.worker.run.slots import Slots
from sa_jobqueue.worker.shared import Shared, identify


class Worker:
    """Runs the jobs of one `JobQueue` on one event loop.

    **A job may run more than once**, because a worker can die after the handler's external effects: handlers must be
    idempotent. Writes through its session happen once.

    `jobs`: the registry of the handlers.
    `engine`: an `Engine` or `AsyncEngine`. If a handler needs the other kind, it is created from the same URL.
    `session_factory`, `async_session_factory`: create the sessions that handlers receive; by default plain sessions on the
    engine. Their pool needs one connection for each of `concurrency` handlers.
    `options`: see `WorkerOptions`.
    `events`: receives the worker's events; by default a new `EventBus`.
    `connect_args`: arguments for psycopg beyond the engine's URL, for the worker's own connections.
    `app`: where child processes of isolated handlers find `jobs`, such as "shop.jobs:jobs"; by default the variable of a
    module that it is assigned to.
    `listen_url`: the server's own address, for notifications, if the engine's URL leads to a connection pooler.
    """

    def __init__(
        self,
        jobs: JobQueue[Any],
        engine: Engine | AsyncEngine,
        *,
        session_factory: sessionmaker[Any] | None = None,
        async_session_factory: async_sessionmaker[Any] | None = None,
        options: WorkerOptions = WorkerOptions(),
        events: EventBus | None = None,
        connect_args: Mapping[str, Any] | None = None,
        app: str | None = None,
        listen_url: URL | str | None = None,
    ) -> None:
        if not isinstance(jobs, JobQueue):
            raise InvalidOptionError("jobs", f"must be a JobQueue, got a {type(jobs).__name__}")
        if not isinstance(engine, (Engine, AsyncEngine)):
            raise InvalidOptionError("engine", f"must be an Engine or AsyncEngine, got a {type(engine).__name__}")
        if engine.dialect.name != "postgresql":
            require_postgresql(engine.dialect.name)
        options_of_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        jobs.model.__jobqueue__.check_translation(options_of_engine.get_execution_options())
        if not len(jobs.registry):
            raise InvalidOptionError("jobs", "has no handlers; import the modules that declare them before this")
        app_of(jobs, app)
        check_onupdate(jobs.model)
        self._jobs = jobs
        self._app = app
        check_reachable(engine, connect_args or {})
        self._url: URL = engine.url
        self._dialect = engine.dialect
        self._listen_url = read_url(listen_url, option="listen_url") if isinstance(listen_url, str) else listen_url
        self._connect_args = dict(connect_args or {})
        self._options = options if options.limits else _serving(options, jobs)
        self.events = events or EventBus()
        logs.subscribe(self.events)
        factories = session_factory, async_session_factory
        self._sessions = Sessions(jobs.registry, engine, *factories, concurrency=options.concurrency)
        self._identity = identify(jobs, self._options)
        self.id = self._identity.id
        self._alone = threading.Lock()
        """Held while the worker runs."""
        self._stop_requested: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_called = self._stop_now = False
        self._executor: Executor | None = None
        self._signs = VitalSigns(self._options)
        self._slots: tuple[Slots, int] | None = None
        self.wants_successor = False
        """Whether the worker stopped because it used more than `max_memory` and should be replaced by a new process."""

    @property
    def database(self) -> str:
        """URL of its database, without the password and parameters."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def share(self, slots: Slots, weight: int) -> None:
        """Share slots with other workers of this process, from the next run on; see `WorkerGroup`.

        `slots`: of all of them. `weight`: this worker's part of them while all are taken.
        """
        self._slots = slots, weight

    @property
    def has_stuck_threads(self) -> bool:
        """Whether threads are still occupied by handlers that did not stop. The interpreter would wait for them at exit."""
        return self._executor is not None and self._executor.stuck_threads > 0

    @property
    def running(self) -> int:
        """The number of attempts that are running now. Thread-safe."""
        return self._executor.running if self._executor is not None else 0

    @property
    def running_by_type(self) -> dict[str, int]:
        """The number of attempts that are running now by job type; types without any are left out. Thread-safe."""
        return self._executor.running_by_type if self._executor is not None else {}

    @property
    def vitals(self) -> Vitals:
        """Whether the worker's components make progress, and whether it can start jobs. Thread-safe."""
        return self._signs.read()

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, let running jobs finish for up to `shutdown_timeout`, then release the rest.

        With `now`, running jobs are released immediately, also during a drain. If called before `run`, that run ends
        immediately. Thread-safe.
        """
        self._stop_now = self._stop_now or now
        self._stop_called = True
        loop = self._loop
        if loop is None:
            return
        if asyncio._get_running_loop() is loop:
            self._request_stop()
        else:
            with suppress(RuntimeError):  # it has ended and closed its loop
                loop.call_soon_threadsafe(self._request_stop)

    def _request_stop(self) -> None:
        if self._stop_requested is not None:
            self._stop_requested.set()
        if self._stop_now and self._executor is not None:
            self._executor.release_all(CancelReason.SHUTDOWN)

    def _outgrown(self, resident: int) -> None:
        """Stop as on SIGTERM, so that another process can replace this one."""
        self.events.emit(MemoryExceeded(self.id, resident, self._options.max_memory or 0))
        self.wants_successor = True
        self.stop()

    def _drain(self) -> None:
        """Stop as on SIGTERM, because `drain_workers` requested it. The event is emitted even if it is already stopping."""
        self.events.emit(DrainRequested(self.id))
        if not self._stop_called:
            self.stop()

    async def run(self) -> None:
        """Work until `stop` is called or `drain_workers` names this worker, then shut down.

        The shutdown takes at most `shutdown_timeout` plus `cancel_timeout`. Afterwards the worker can run again, on any
        event loop. Once it runs, it survives outages of the database.

        Raises: JobQueueError if this worker is already running; DatabaseUnavailableError, UnsupportedServerError,
        SchemaError or RowSecurityError before anything is claimed.
        """
        await self._run_alone(until_idle=False)

    def run_sync(self) -> None:
        """Work on a separate event loop until SIGTERM or SIGINT (Ctrl-C), or until another thread calls `stop`.

        The first signal stops as `stop` does, the second as `stop(now=True)`. Outside the main thread, signals are not
        handled.
        Raises: as `run`; RuntimeError in a thread that runs an event loop.
        """
        asyncio.run(self._run_until_signal())

    async def _run_until_signal(self) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self.stop(now=self._stop_called)

        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
        await self.run()

    async def run_until_idle(self) -> None:
        """Work until there is nothing left to do, then return. For tests and one-off runs.

        It returns when this worker runs no job, every result is written, and a claim would start no job. It does not
        wait for jobs that are scheduled or retried later, run by other workers, or paused. It does wait for concurrency
        and rate limits.

        Raises: as `run`.
        """
        await self._run_alone(until_idle=True)

    async def _run_alone(self, *, until_idle: bool) -> None:
        # A lock, not a flag: another thread's event loop may call this at the same moment.
        if not self._alone.acquire(blocking=False):
            words = "is already running: create another Worker, or call run again after the first call returns"
            raise JobQueueError(f"worker {self.id} {words}")
        try:
            await self._run(until_idle=until_idle)
        finally:
            self._stop_requested = self._loop = None
            self._alone.release()

    async def _run(self, *, until_idle: bool) -> None:
        self._stop_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stop_called:  # before this run
            self._stop_requested.set()
        connections = Connections(
            self._url,
            worker_name=self._identity.name,
            patience=self._options.heartbeat_timeout,
            connect_args=self._connect_args,
            listen_url=self._listen_url,
            application=self._dialect,
        )
        await connections.find_pooler()
        shared = Shared(connections.engine(POOL), self._jobs, self._identity, self._options, self.events)
        parts = Assembly(
            shared,
            connections,
            self._sessions,
            app=self._app,
            signs=self._signs,
            until_idle=until_idle,
            slots=self._slots,
            on_drain=partial(self._loop.call_soon_threadsafe, self._drain),
            on_outgrown=self._outgrown,
        )
        self._executor = parts.executor
        try:
            schema_version = await self._check(shared.engine)
            await parts.start()
        except BaseException as error:  # a cancellation as well
            await parts.abandon()
            if isinstance(error, DBAPIError):
                raise unavailable(error, self._url) from error
            raise
        self.events.emit(
            WorkerStarted(
                self.id,
                queues=tuple(self._identity.queues),
                concurrency=parts.executor.concurrency,
                handlers=tuple(sorted(self._identity.job_types)),
                database=self.database,
                schema_version=schema_version,
                max_connections=OWN_CONNECTIONS + parts.executor.concurrency,
            )
        )
        if connections.is_pooled:
            self._sessions.prepare_nothing()
            self.events.emit(PoolerFound(self.id, listens=parts.can_listen, poll_interval=self._options.poll_interval))
        stopping, is_idle = asyncio.create_task(self._stop_requested.wait()), False
        try:
            is_idle = await parts.run(stopping)
        finally:
            # Also runs if this task itself is cancelled: the same shutdown without waiting.
            is_interrupted = not (stopping.done() or is_idle)
            await cancelled(stopping)
            await parts.wind_down(at_once=self._stop_now or is_interrupted)
            self._stop_called = self._stop_now = False
            self.events.emit(WorkerStopped(self.id, parts.executor.given_back))

    async def _check(self, engine: AsyncEngine) -> int:
        """Check the server and the schema version; return the latter."""
        async with AsyncSession(engine) as session:
            version = await aio.check_schema(session, model=self._jobs.model)
            hidden = await session.run_sync(hidden_rows, model=self._jobs.model)
        for rows in hidden:
            # Without any policy for its commands: a worker with a few of the jobs is one that someone may want.
            if rows.noun == "job" and rows.is_total and not {"SELECT", "UPDATE"}.isdisjoint(rows.commands):
                raise RowSecurityError(rows.table, rows.role)
        if hidden:
            self.events.emit(RowsHidden(self.id, hidden[0].role, tuple(rows.table for rows in hidden)))
        if version > LATEST:
            self.events.emit(SchemaAhead(self.id, version, LATEST))
        return version


def _serving(options: WorkerOptions, jobs: JobQueue[Any]) -> WorkerOptions:
    option_values = {f.name: getattr(options, f.name) for f in fields(options) if f.init}
    return replace(options, **option_values | {"queues": jobs.queues})
