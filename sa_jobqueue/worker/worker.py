"""`Worker`: claims jobs, runs their handlers and records the results, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_jobqueue import aio
from sa_jobqueue.db.connections import Connections, check_reachable, unavailable
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.db.urls import read_url
from sa_jobqueue.errors import InvalidOptionError, WorkerRunningError, require_postgresql
from sa_jobqueue.events import (
    ComponentFailed,
    DrainRequested,
    EventBus,
    HeartbeatFailing,
    MemoryExceeded,
    PoolerFound,
    ProviderFailed,
    SchemaAhead,
    SettingsChanged,
    WorkerStarted,
    WorkerStopped,
)
from sa_jobqueue.migrations.versions import LATEST
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.types import CancelReason, JobId, WorkerState
from sa_jobqueue.worker import logs
from sa_jobqueue.worker.background.heartbeat import Heartbeat, LeaseGuard, identify
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.background.loop_watch import LoopWatch
from sa_jobqueue.worker.background.memory_guard import MemoryGuard
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.background.rescuer import Rescuer
from sa_jobqueue.worker.background.scheduler import Scheduler
from sa_jobqueue.worker.background.settings import ControlReader, Controls
from sa_jobqueue.worker.background.vitals import Phase, Vitals, VitalSigns
from sa_jobqueue.worker.claim.claimer import Claimer
from sa_jobqueue.worker.component import Component, supervise
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.ownership import Ownership
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.run.isolation import Children, check_importable
from sa_jobqueue.worker.run.sessions import Sessions, prepare_nothing_in, sessions_for

_CLOSING: Final = timedelta(seconds=10)
"""Maximum time for dependencies to close when a worker stops. Spark needs one or two seconds."""


class Worker:
    """Runs the jobs of one `JobQueue` on one event loop.

    - `jobs`: the registry of the handlers. `options`: queues, concurrency, timeouts and intervals; see `WorkerOptions`.
    - `engine`: an `Engine` or `AsyncEngine`. If a handler needs the other kind, it is created from the same URL.
    - `session_factory`, `async_session_factory`: create the sessions that handlers receive; by default plain sessions on
      the engine. Their pool needs one connection for each of `concurrency` handlers.
    - `connect_args`: arguments for psycopg beyond the engine's URL, which the worker uses to open up to nine more
      connections. Listeners of the engine's `do_connect` event, such as one that renews an access token, are called for
      these too.
    - `listen_url`: the server's own address, for notifications, if the engine's URL leads to a connection pooler.
    - `events`: receives the worker's events; by default a new `EventBus`.
    - `app`: where child processes of isolated handlers find `jobs`, such as "shop.jobs:jobs"; by default the module that
      declares each such handler.

    **A job may run more than once**, because a worker can die after the handler's external effects: handlers must be
    idempotent. Writes through its session happen once.

    Raises: InvalidOptionError naming the parameter.
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
        if not len(jobs.registry):
            raise InvalidOptionError("jobs", "has no handlers; import the modules that declare them before this")
        check_importable(jobs, app)
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
        given = Sessions(session_factory, async_session_factory)
        self._sessions = sessions_for(jobs.registry, engine, given, concurrency=options.concurrency)
        self._identity = identify(jobs, self._options)
        self.id = self._identity.id
        self._alone = threading.Lock()
        """Held while the worker runs."""
        self._stop_requested: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_called = self._stop_now = False
        self._executor: Executor | None = None
        self._signs = VitalSigns(self._options)
        self.wants_successor = False
        """Whether the worker stopped because it used more than `max_memory` and should be replaced by a new process."""

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
        event loop.
        Raises: WorkerRunningError if this worker is already running; DatabaseUnavailableError, UnsupportedServerError or
        SchemaError before anything is claimed. Once it runs, it survives outages of the database.
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

        It returns when this worker runs no job, every result is written, every ended chain has unblocked its dependants,
        and a claim would start no job of its queues and types, including everything committed before. It does not wait for
        jobs that are scheduled for later or retried later, jobs of other workers, and jobs that are paused, wait for their
        ordering key, or are not chosen by a selector. It does wait for concurrency and rate limits.
        Raises: as `run`.
        """
        await self._run_alone(until_idle=True)

    async def _run_alone(self, *, until_idle: bool) -> None:
        # A lock, not a flag: another thread's event loop may call this at the same moment.
        if not self._alone.acquire(blocking=False):
            raise WorkerRunningError(self.id)
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
        options, model, loop = self._options, self._jobs.model, asyncio.get_running_loop()
        connections = Connections(
            self._url,
            worker_name=self._identity.name,
            patience=options.heartbeat_timeout,
            connect_args=self._connect_args,
            listen_url=self._listen_url,
            application=self._dialect,
        )
        await connections.find_pooler()
        can_listen = options.listen and not until_idle and connections.can_listen
        engine = connections.engine(7)
        # Of its own, so that handlers with many steps do not delay claims and completions; opened by the first step.
        steps_engine = connections.engine(4)

        # The claimer and the settings' reader are created last, because they use what calls these.
        def wake(queue: str | None) -> None:
            claimer.wake(queue)

        def poll() -> None:
            claimer.poll_again()

        def ended(job_id: JobId) -> None:
            """Another job may start: the next of the ordering key, or one that waited for a limit."""
            claimer.job_ended(job_id)
            if self._signs.phase is Phase.DRAINING:  # this worker claims no more: other workers can use the capacity
                unblocker.notify_workers()

        def retry_of(queue: str, fairness_key: str) -> Backoff | None:
            return reader.current.retry(queue, fairness_key)

        quarantine = Quarantine(engine, model, self.id, self.events)
        ownership = Ownership(engine, model, self.id)
        unblocker = Unblocker(engine, model, self.events, quarantine=quarantine, on_due=wake, on_ended=ended)
        completer = Completer(
            engine,
            model,
            self.id,
            self.events,
            unblocker=unblocker,
            ownership=ownership,
            quarantine=quarantine,
            completion_batch_size=options.completion_batch_size,
            on_ended=ended,
            on_rescheduled=poll,  # it may be due before the claimer's next poll
        )
        children = Children(self._jobs, app=self._app, worker_id=self.id, options=options)
        executor = self._executor = Executor(
            registry=self._jobs.registry,
            model=model,
            engine=engine,
            steps_engine=steps_engine,
            sessions=self._sessions,
            completer=completer,
            unblocker=unblocker,
            ownership=ownership,
            events=self.events,
            worker_id=self.id,
            options=options,
            children=children,
            retry_of=retry_of,
            on_ended=ended,
        )

        def endangered(silent: timedelta) -> None:
            self.events.emit(HeartbeatFailing(self.id, silent))
            executor.release_all(CancelReason.DATABASE_LOST)

        def asked_to_drain() -> None:
            loop.call_soon_threadsafe(self._drain)

        heartbeat = Heartbeat(
            connections.thread_engine(),
            model,
            self._identity,
            interval=options.heartbeat_interval,
            heartbeat_timeout=options.heartbeat_timeout,
            on_endangered=endangered,
            on_drain=asked_to_drain,
            progress=executor.progress,
            stuck_threads=lambda: executor.stuck_threads,
        )
        claimer = Claimer(
            engine,
            model,
            executor=executor,
            completer=completer,
            unblocker=unblocker,
            worker_id=self.id,
            jobs=self._jobs,
            events=self.events,
            options=options,
            may_start=lambda since: heartbeat.is_safe and heartbeat.last > since,
            controls=lambda: reader.current,
            quarantine=quarantine,
        )
        claimer.until_idle = until_idle

        def changed(controls: Controls) -> None:
            concurrency = min(controls.concurrency or options.concurrency, self._sessions.most)
            if concurrency != executor.concurrency:
                executor.resize(concurrency)
                heartbeat.announce_concurrency(concurrency)
            paused = (tuple(sorted(controls.paused_queues)), tuple(sorted(controls.paused_types)))
            self.events.emit(SettingsChanged(self.id, *paused, concurrency))
            claimer.poll_again()

        def unblock() -> None:
            unblocker.search()
            claimer.poll_again()

        def rules_changed() -> None:
            reader.wake()
            scheduler.wake()
            heartbeat.hurry()

        def reconnected() -> None:
            reader.declare_again()
            scheduler.synchronise_again()
            heartbeat.hurry()

        claimer.on_reconnected = reconnected

        rescuer = Rescuer(
            engine,
            model,
            self.events,
            options,
            queues=self._identity.queues,
            types=self._identity.job_types,
            unblocker=unblocker,
            quarantine=quarantine,
            on_ended=ended,
            on_rescued=poll,
        )
        pruner = Pruner(
            engine,
            model,
            self.events,
            self._jobs.retention_rules,
            interval=options.prune_interval,
            quarantine=quarantine,
        )
        scheduler = Scheduler(
            engine,
            model,
            self.events,
            declared=self._jobs.schedules,
            types=self._identity.job_types,
            quarantine=quarantine,
        )
        listener = Listener(
            connections,
            model.__jobqueue__,
            on_due=claimer.notified,
            on_lost=executor.suspect,
            on_rules=rules_changed,
            on_unblock=unblock,
        )
        reader = ControlReader(
            engine,
            model,
            self.events,
            declared=self._jobs.declared_queues,
            quarantine=quarantine,
            worker_id=self.id,
            queues=self._identity.queues,
            types=list(self._jobs.registry),
            on_change=changed,
            is_notified=listener.listening.is_set,
        )
        try:
            schema_version = await self._check(engine)
            await children.start()
            await reader.read()  # before the first claim, so that nothing paused is started
            await _registered(heartbeat)
        except BaseException as error:  # a cancellation as well
            await children.close()
            await engine.dispose()
            await steps_engine.dispose()
            await connections.close(timedelta(seconds=1))
            if isinstance(error, DBAPIError):
                raise unavailable(error, self._url) from error
            raise
        self._signs.watch(heartbeat, listener if can_listen else None)
        loop_watch = LoopWatch(self._signs, executor.job_in)
        self.events.emit(
            WorkerStarted(
                self.id,
                queues=tuple(self._identity.queues),
                concurrency=executor.concurrency,
                handlers=tuple(sorted(self._identity.job_types)),
                database=self._url.set(query={}).render_as_string(hide_password=True),
                schema_version=schema_version,
            )
        )
        if connections.is_pooled:
            prepare_nothing_in(self._sessions)
            self.events.emit(PoolerFound(self.id, listens=can_listen, poll_interval=options.poll_interval))
        background = [
            LeaseGuard(heartbeat, interval=options.heartbeat_interval),
            self._signs,
            reader,
            rescuer,
            pruner,
            completer,
            unblocker,
            *([MemoryGuard(options.max_memory, self._outgrown)] if options.max_memory else []),
            *([] if until_idle else [scheduler]),
            *([listener] if can_listen else []),
        ]
        loop_watch.start()
        parts: dict[asyncio.Task[Any], Component] = {}

        def begin(part: Component) -> asyncio.Task[Any]:
            task = asyncio.create_task(supervise(part, self.events), name=part.name)
            parts[task] = part
            return task

        for part in background:
            begin(part)
        claiming = begin(claimer)
        stopping = asyncio.create_task(self._stop_requested.wait())
        try:
            while not (stopping.done() or claiming.done()):
                done, _ = await asyncio.wait({stopping, *parts}, return_when=asyncio.FIRST_COMPLETED)
                # Cancelled by code of the application: without this part the worker would go on as if it did its work.
                for task in [task for task in done if task in parts and task.cancelled() and not stopping.done()]:
                    part = parts[task]
                    self.events.emit(ComponentFailed(part.name, RuntimeError("its task was cancelled"), timedelta(0)))
                    again = begin(part)
                    claiming = again if part is claimer else claiming
                for task in done:
                    parts.pop(task, None)
        finally:
            # Also runs if this task itself is cancelled: the same shutdown without waiting.
            interrupted = not stopping.done() and not claiming.done()
            parts.pop(claiming, None)
            await cancelled(claiming, stopping)
            self._signs.phase = Phase.DRAINING
            heartbeat.announce(WorkerState.DRAINING)
            if not (self._stop_now or interrupted):
                await _within(executor.idle(), options.shutdown_timeout)
            executor.release_all(CancelReason.SHUTDOWN)
            await _within(executor.idle(), options.cancel_timeout + timedelta(seconds=1))
            await _within(self._leave_nothing(engine, claimer, completer), options.heartbeat_timeout)
            # Dependants that are not unblocked by now are recorded in the database, for any worker's next rescue.
            await _within(unblocker.drained(), timedelta(seconds=1))
            self._signs.stop()
            loop_watch.stop()
            await cancelled(*parts)
            await executor.close()
            await children.close()
            await asyncio.to_thread(heartbeat.stop)
            await engine.dispose()
            await connections.close(timedelta(seconds=1))
            for made in self._sessions.own_engines:
                await made.dispose() if isinstance(made, AsyncEngine) else made.dispose()
            await _within(self._close_providers(), _CLOSING)
            self._stop_called = self._stop_now = False
            self.events.emit(WorkerStopped(self.id, executor.given_back))

    async def _leave_nothing(self, engine: AsyncEngine, claimer: Claimer, completer: Completer) -> None:
        """Write all pending results, and release what an interrupted claim may have claimed."""
        completer.retry_refused()
        await completer.drained()
        async with engine.connect() as connection:
            await claimer.release_orphaned_claims(connection)
        await completer.drained()

    async def _close_providers(self) -> None:
        """Close the dependencies. A failure is only reported, because no attempt waits for the result."""
        providers = {id(one): one for kind in self._jobs.registry for one in kind.provided.values()}
        closings = (asyncio.to_thread(one.close) for one in providers.values())
        for failed in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(failed, BaseException):
                self.events.emit(ProviderFailed(failed))

    async def _check(self, engine: AsyncEngine) -> int:
        """Check the server and the schema version; return the latter."""
        async with AsyncSession(engine) as session:
            version = await aio.check_schema(session, model=self._jobs.model)
        if version > LATEST:
            self.events.emit(SchemaAhead(self.id, version, LATEST))
        return version


def _serving(options: WorkerOptions, jobs: JobQueue[Any]) -> WorkerOptions:
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.init}
    return replace(options, **given | {"queues": jobs.queues})


async def _registered(heartbeat: Heartbeat) -> None:
    """Send the first heartbeat and start its thread; a cancellation meanwhile waits for its end and undoes it."""
    starting = asyncio.create_task(asyncio.to_thread(heartbeat.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await asyncio.to_thread(heartbeat.stop)
        raise


async def _within(work: Awaitable[None], limit: timedelta) -> None:
    """Await `work` for at most `limit`; anything that fails or is unfinished by then is left to other workers."""
    with suppress(TimeoutError, DBAPIError):
        await asyncio.wait_for(work, limit.total_seconds())
