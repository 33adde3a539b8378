"""`Worker`: claims jobs, runs their handlers, writes their ends, until it is told to stop."""

from __future__ import annotations

import asyncio
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
from sa_jobqueue.db.connections import Connections, unavailable
from sa_jobqueue.db.encodings import Encoding, encoding_of
from sa_jobqueue.db.urls import read_url
from sa_jobqueue.errors import InvalidOptionError, JobQueueError, WorkerRunningError
from sa_jobqueue.events import (
    AttemptLost,
    DrainRequested,
    Event,
    EventBus,
    HeartbeatFailing,
    JobCancelled,
    JobCompleted,
    JobDied,
    JobRescheduled,
    JobRescued,
    MemoryExceeded,
    PoolerFound,
    ProviderFailed,
    SchemaAhead,
    SettingsChanged,
    WorkerStarted,
    WorkerStopped,
)
from sa_jobqueue.migrations.versions import LATEST
from sa_jobqueue.registry.handlers import JobQueue
from sa_jobqueue.types import CancelReason, WorkerState
from sa_jobqueue.worker.background.heartbeat import Heartbeat, LeaseGuard, identify
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.background.memory import MemoryGuard
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.background.rescuer import Rescuer
from sa_jobqueue.worker.background.scheduler import Scheduler
from sa_jobqueue.worker.background.settings import ControlReader, Controls
from sa_jobqueue.worker.background.verifier import Verifier
from sa_jobqueue.worker.background.vitals import Phase, Vitals, VitalSigns
from sa_jobqueue.worker.claim.claimer import Claimer
from sa_jobqueue.worker.component import supervise
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.run.isolation import Children, check_importable
from sa_jobqueue.worker.run.sessions import Sessions, prepare_nothing_in, sessions_for

_ENDS: Final = (AttemptLost, JobCancelled, JobCompleted, JobDied, JobRescheduled)
"""After which another job may start: of its ordering key, or under its limit."""
_CLOSING: Final = timedelta(seconds=10)
"""What providers may take to close when a worker stops: Spark needs one or two seconds."""


class Worker:
    """Runs the jobs of one `JobQueue` on one event loop.

    `engine`: the application's engine, of either colour; the other colour, where a handler needs it, is made from its
    URL. `session_factory`, `async_session_factory`: what makes the sessions handlers are given, so that an
    application's own options hold there; plain ones on the engine unless given; their pool must hold a connection for
    each of `concurrency` handlers. Beside those it opens up to nine connections of its own: claims, completions, sweeps,
    ends of chains, retention, schedules, heartbeat, notifications. They are made from the engine's URL; `connect_args`
    adds what psycopg needs beyond it. `app`: where child processes of isolated handlers find `jobs`, such as
    "shop.jobs:jobs"; each such handler where it is declared, unless given. `listen_url`: where to listen for notifications
    when the engine's URL leads to a connection pooler, which the worker finds out by itself: the server's own address.

    **A job may run more than once** (a worker can die after the handler's outside effects): handlers must be idempotent.
    What a handler writes through its session happens once.
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
            raise InvalidOptionError("engine", f"must be of PostgreSQL, this one is of {engine.dialect.name}")
        if not len(jobs.registry):
            raise InvalidOptionError("jobs", "has no handlers; import the modules that declare them before this")
        check_importable(jobs, app)
        self._jobs = jobs
        self._app = app
        self._url: URL = engine.url
        self._listen_url = read_url(listen_url, option="listen_url") if isinstance(listen_url, str) else listen_url
        self._connect_args = dict(connect_args or {})
        self._options = options if options.limits else _serving(options, jobs)
        self.events = events or EventBus()
        given = Sessions(session_factory, async_session_factory)
        self._sessions = sessions_for(jobs.registry, engine, given, concurrency=options.concurrency)
        self._identity = identify(jobs, self._options)
        self.id = self._identity.id
        self._alone = threading.Lock()
        """Held while it runs."""
        self._stop_requested: asyncio.Event | None = None
        self._stop_called = self._stop_now = False
        self._executor: Executor | None = None
        self._signs = VitalSigns(self._options)
        self.wants_successor = False
        """Whether it stopped because it held more than `max_memory`: whoever keeps workers running starts another."""

    @property
    def has_stuck_threads(self) -> bool:
        """Whether handlers that did not stop still occupy threads: the interpreter would wait for them at exit."""
        return self._executor is not None and self._executor.has_stuck_threads

    @property
    def running(self) -> int:
        """How many attempts it is running now. May be asked from any thread."""
        return self._executor.running if self._executor is not None else 0

    @property
    def running_by_type(self) -> dict[str, int]:
        """How many attempts it is running now of each type, without types of which none is. May be asked from any thread."""
        return self._executor.running_by_type if self._executor is not None else {}

    @property
    def vitals(self) -> Vitals:
        """Whether its parts still move, and whether it can start jobs. May be asked from any thread."""
        return self._signs.read()

    def stop(self, *, now: bool = False) -> None:
        """Ask the worker to stop: claim no more, let running jobs finish for `shutdown_timeout`, give back the rest.

        `now` gives running jobs back at once; calling it again with `now` shortens a drain under way. Before `run` it
        makes that run end at once. Call it on the worker's loop (from elsewhere by `loop.call_soon_threadsafe`).
        """
        self._stop_now = self._stop_now or now
        self._stop_called = True
        if self._stop_requested is not None:
            self._stop_requested.set()
        if self._stop_now and self._executor is not None:
            self._executor.release_all(CancelReason.SHUTDOWN)

    def _outgrown(self, resident: int) -> None:
        """Stop as on SIGTERM, for another process to take this one's place."""
        self.events.emit(MemoryExceeded(self.id, resident, self._options.max_memory or 0))
        self.wants_successor = True
        self.stop()

    def _drain(self) -> None:
        """Stop as on SIGTERM: somebody asked for it through the database. One that is leaving anyway tells of it too."""
        self.events.emit(DrainRequested(self.id))
        if not self._stop_called:
            self.stop()

    async def run(self) -> None:
        """Work until `stop` is called or `drain_workers` names this worker; then shut down, within its options' bounds.

        Those are `shutdown_timeout` and `cancel_timeout`. When it has ended it may be called again, on any event loop.

        Raises: WorkerRunningError when this worker runs already; DatabaseUnavailableError, ServerTooOldError, SchemaError
        before anything was claimed. Once it runs, it outlives outages of the database.
        """
        await self._run_alone(until_idle=False)

    async def run_until_idle(self) -> None:
        """Work until nothing is left to do, then return. For tests and one-off drains.

        That is: this worker runs nothing, every end is written, no chain has ended whose end was not passed on, and a claim
        would start no job of its queues and types. One statement finds that out at the end, so everything counts that others
        committed before it. Not waited for: jobs scheduled for later, failed ones waiting for their next attempt among
        them; jobs that other workers run; what is paused, waits for its ordering key, or is not chosen by a selector. A
        limit or a rate that leaves no room is waited for.
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
            self._stop_requested = None
            self._alone.release()

    async def _run(self, *, until_idle: bool) -> None:
        self._stop_requested = asyncio.Event()
        if self._stop_called:  # before it had begun
            self._stop_requested.set()
        options, model, loop = self._options, self._jobs.model, asyncio.get_running_loop()
        connections = Connections(
            self._url,
            worker_name=self._identity.name,
            patience=options.heartbeat_timeout,
            connect_args=self._connect_args,
            listen_url=self._listen_url,
        )
        await connections.look()
        hears = options.listen and not until_idle and connections.can_listen
        engine = connections.engine(7)

        def wake(queue: str | None) -> None:
            claimer.wake(queue)

        quarantine = Quarantine(engine, model, self.id, self.events)
        unblocker = Unblocker(engine, model, self.events, quarantine=quarantine, on_due=wake)
        completer = Completer(
            engine,
            model,
            self.id,
            self.events,
            unblocker=unblocker,
            quarantine=quarantine,
            completion_batch_size=options.completion_batch_size,
        )
        children = Children(self._jobs, app=self._app, worker_id=self.id, options=options)
        executor = self._executor = Executor(
            registry=self._jobs.registry,
            model=model,
            engine=engine,
            sessions=self._sessions,
            completer=completer,
            unblocker=unblocker,
            events=self.events,
            worker_id=self.id,
            options=options,
            children=children,
            retry_of=lambda queue: reader.current.retry(queue),  # noqa: PLW0108 - there is no reader yet
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
            told = (tuple(sorted(controls.paused_queues)), tuple(sorted(controls.paused_types)))
            self.events.emit(SettingsChanged(self.id, *told, concurrency))
            claimer.look()

        def unblock() -> None:
            unblocker.look()
            claimer.look()

        def told_of_rules() -> None:
            reader.wake()
            scheduler.wake()
            heartbeat.hurry()

        def reconnected() -> None:
            reader.wake()
            scheduler.synchronise_again()
            heartbeat.hurry()

        claimer.on_reconnected = reconnected

        def look_on(event: Event) -> None:
            if isinstance(event, (JobRescheduled, JobRescued)):  # due again, perhaps sooner than the claimer means to sleep
                claimer.look()
            if isinstance(event, _ENDS):
                claimer.follow(event.job_id)
                if self._signs.phase is Phase.DRAINING:  # it claims no more: what was let go is for others
                    unblocker.notify_workers()

        unsubscribe = self.events.subscribe(look_on, kinds=(JobRescued, *_ENDS))
        rescuer = Rescuer(
            engine,
            model,
            self.events,
            options,
            queues=self._identity.queues,
            types=self._identity.job_types,
            unblocker=unblocker,
            quarantine=quarantine,
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
        verifier = Verifier(engine, model, executor, worker_id=self.id)
        listener = Listener(
            connections,
            model.__jobqueue__,
            on_due=claimer.hear,
            on_lost=verifier.suspect,
            on_freed=claimer.ask_again,
            on_rules=told_of_rules,
            on_unblock=unblock,
        )
        reader = ControlReader(
            engine,
            model,
            worker_id=self.id,
            queues=self._identity.queues,
            types=self._identity.job_types,
            on_change=changed,
            is_told=listener.listening.is_set,
        )
        claimer.listen_by(listener)
        try:
            executor.encoding = completer.encoding = await self._check(engine)
            await children.start()
            await reader.read()  # before the first claim: what is paused is not started
            await asyncio.to_thread(heartbeat.start)
        except (DBAPIError, JobQueueError) as error:
            unsubscribe()
            await children.close()
            await engine.dispose()
            await connections.close(timedelta(seconds=1))
            if isinstance(error, DBAPIError):
                raise unavailable(error, self._url) from error
            raise
        self._signs.watch(heartbeat, listener if hears else None)
        self.events.emit(WorkerStarted(self.id))
        if connections.is_pooled:
            prepare_nothing_in(self._sessions)
            self.events.emit(PoolerFound(self.id, listens=hears, poll_interval=options.poll_interval))
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
            *([listener, verifier] if hears else []),
        ]
        tasks = [asyncio.create_task(supervise(part, self.events), name=part.name) for part in background]
        claiming = asyncio.create_task(supervise(claimer, self.events), name=claimer.name)
        stopping = asyncio.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this task itself is cancelled: the same way out, without the patience.
            interrupted = not stopping.done() and not claiming.done()
            await _cancel(claiming, stopping)
            self._signs.phase = Phase.DRAINING
            heartbeat.announce(WorkerState.DRAINING)
            if not (self._stop_now or interrupted):
                await _within(executor.idle(), options.shutdown_timeout)
            executor.release_all(CancelReason.SHUTDOWN)
            await _within(executor.idle(), options.cancel_timeout + timedelta(seconds=1))
            await _within(self._leave_nothing(engine, claimer, completer), options.heartbeat_timeout)
            # What is not settled by now is recorded in the database, for the next sweep of anybody.
            await _within(unblocker.drained(), timedelta(seconds=1))
            self._signs.stop()
            await _cancel(*tasks)
            await executor.close()
            await children.close()
            await asyncio.to_thread(heartbeat.stop)
            await engine.dispose()
            await connections.close(timedelta(seconds=1))
            for made in self._sessions.own_engines:
                await made.dispose() if isinstance(made, AsyncEngine) else made.dispose()
            await _within(self._close_providers(), _CLOSING)
            unsubscribe()
            self._stop_called = self._stop_now = False
            self.events.emit(WorkerStopped(self.id, executor.given_back))

    async def _leave_nothing(self, engine: AsyncEngine, claimer: Claimer, completer: Completer) -> None:
        """Write every end that waits, and give back what an interrupted claim may have taken."""
        completer.retry_refused()
        await completer.drained()
        async with engine.connect() as connection:
            await claimer.give_back_strays(connection)
        await completer.drained()

    async def _close_providers(self) -> None:
        """Let go of what attempts were lent. One that fails at it is told of: nobody waits for its answer."""
        providers = {id(one): one for kind in self._jobs.registry for one in kind.provided.values()}
        closings = (asyncio.to_thread(one.close) for one in providers.values())
        for failed in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(failed, BaseException):
                self.events.emit(ProviderFailed(failed))

    async def _check(self, engine: AsyncEngine) -> Encoding | None:
        """Check the tables' version; return the database's encoding."""
        async with AsyncSession(engine) as session:
            version = await aio.check_schema(session, model=self._jobs.model)
            encoding = await session.run_sync(lambda sync: encoding_of(sync.connection()))
        if version > LATEST:
            self.events.emit(SchemaAhead(self.id, version, LATEST))
        return encoding


def _serving(options: WorkerOptions, jobs: JobQueue[Any]) -> WorkerOptions:
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.init}
    return replace(options, **given | {"queues": jobs.queues})


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _within(work: Awaitable[None], limit: timedelta) -> None:
    """Await `work` for at most `limit`; what fails or is not done by then is left to other workers."""
    with suppress(TimeoutError, DBAPIError):
        await asyncio.wait_for(work, limit.total_seconds())
