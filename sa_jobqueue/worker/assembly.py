"""The parts of one run of a worker, and the signals that connect them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.connections import STEPS_POOL, Connections
from sa_jobqueue.db.timeouts import cancelled
from sa_jobqueue.display.printable import printable
from sa_jobqueue.events import ComponentFailed, HeartbeatFailing, ProviderFailed, SettingsChanged
from sa_jobqueue.types import CancelReason, WorkerState
from sa_jobqueue.worker.background.controls import ControlReader, Controls
from sa_jobqueue.worker.background.heartbeat import Heartbeat
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.background.rescuer import Rescuer
from sa_jobqueue.worker.background.scheduler import Scheduler
from sa_jobqueue.worker.background.vitals import TICK, Phase, VitalSigns
from sa_jobqueue.worker.claim.claimer import Claimer
from sa_jobqueue.worker.claim.division import Division
from sa_jobqueue.worker.component import Component, Periodic, supervise
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.logs import error_line
from sa_jobqueue.worker.memory import resident_bytes
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.run.isolation import Children
from sa_jobqueue.worker.run.sessions import Sessions
from sa_jobqueue.worker.run.slots import Slots
from sa_jobqueue.worker.shared import Part, Shared, digests
from sa_jobqueue.worker.signals import TickResult

_CLOCKS_DIFFER = 1.0
"""Seconds by which the database's clock may move against the worker's between two ticks; more is a clock that was set."""
_PRUNING = 5.0
"""Maximum seconds of pruning at the end of a run until idle; the next run continues."""
_CLOSING = timedelta(seconds=10)
"""Maximum time for dependencies to close when a worker stops. Spark needs one or two seconds."""


class Assembly(Part):
    """Everything that one run of a worker consists of: started, run, and wound down together.

    `on_drain`: called in another thread when `drain_workers` named this worker. `on_outgrown`: called with the used memory
    when it exceeds `max_memory`.
    """

    def __init__(
        self,
        shared: Shared,
        connections: Connections,
        sessions: Sessions,
        *,
        app: str | None,
        signs: VitalSigns,
        until_idle: bool,
        slots: tuple[Slots, int] | None,
        on_drain: Callable[[], object],
        on_outgrown: Callable[[int], None],
    ) -> None:
        super().__init__(shared)
        self._loop = asyncio.get_running_loop()
        self._declared = digests(self._jobs)
        self._connections, self._sessions, self._signs, self._on_outgrown = connections, sessions, signs, on_outgrown
        options = self._options
        self.can_listen = options.listen and not until_idle and connections.can_listen
        # A separate one, so that handlers with many steps do not delay claims and completions; opened by the first step.
        self._steps_engine = connections.engine(STEPS_POOL)
        signals = self._signals
        self._listener = Listener(shared, connections)
        self._reader = ControlReader(shared, on_change=self._settings_changed, is_notified=self._listener.listening.is_set)
        self._unblocker = Unblocker(shared)
        self._completer = Completer(shared, self._unblocker)
        self._children = Children(shared, app=app)
        self.executor = Executor(
            shared,
            sessions,
            completer=self._completer,
            unblocker=self._unblocker,
            children=self._children,
            steps_engine=self._steps_engine,
            retry_of=lambda queue, key: self._reader.current.retry(queue, key),  # noqa: PLW0108 - the last reading
            slots=slots,
        )
        self._heartbeat = Heartbeat(
            shared,
            connections.thread_engine(),
            on_endangered=self._endangered,
            on_drain=on_drain,
            report=self._report,
            idle_for=lambda: self._claimer.idle_for,
            snapshot=lambda next_tick_in: self._claimer.snapshot(next_tick_in),  # noqa: PLW0108 - it is made later
            on_answer=self._answered,
        )
        self._claimer = Claimer(
            shared,
            Division(shared, self.executor, lambda: self._reader.current),
            executor=self.executor,
            completer=self._completer,
            unblocker=self._unblocker,
            may_start=self._heartbeat.allows,
            on_start=self._heartbeat.resume,
            listener=self._listener if self.can_listen else None,
            until_idle=until_idle,
        )
        scheduler, rescuer = Scheduler(shared), Rescuer(shared, self._unblocker)
        self._pruner = Pruner(shared, idle_for=lambda: self._claimer.idle_for)
        self._background: list[Component] = [
            Periodic("lease guard", self._heartbeat.check, options.heartbeat_interval.total_seconds() / 5),
            Periodic("vital signs", signs.beat, TICK),
            self._reader,
            rescuer,
            self._pruner,
            self._completer,
            self._unblocker,
            *([Periodic("memory guard", self._outgrown, 1.0)] if options.max_memory else []),
            *([] if until_idle else [scheduler]),
            *([self._listener] if self.can_listen else []),
        ]
        self._tasks: dict[asyncio.Task[Any], Component] = {}
        self._state = WorkerState.RUNNING
        self._clocks: float | None = None
        """By how many seconds the database's clock was ahead of the monotonic one at the last tick."""

        signals.ticked.connect(rescuer.ticked, self._reader.ticked, scheduler.ticked, self._claimer.ticked)
        signals.clock_set.connect(scheduler.clock_set, self._claimer.clock_set)
        signals.due.connect(self._claimer.notified)
        signals.may_start.connect(self._claimer.poll_again)
        signals.ended.connect(self._claimer.job_ended, self._leave_capacity)
        signals.suspected.connect(self.executor.suspect)
        signals.rules_changed.connect(self._reader.wake, scheduler.wake, self._heartbeat.hurry)
        signals.chains_ended.connect(self._unblocker.search, self._claimer.poll_again)
        signals.reconnected.connect(self._reader.declare_again, scheduler.synchronise_again, self._heartbeat.hurry)

    def _report(self) -> dict[str, Any]:
        """Return the columns of the worker's row that change while it runs. Thread-safe."""
        # The claimer's failure first: without it no job starts.
        parts = sorted(self._tasks.values(), key=lambda part: part is not self._claimer)
        failures = (f"{part.name}: {printable(error_line(part.failure))}" for part in parts if part.failure)
        return {
            "state": self._state.value,
            "concurrency": self.executor.concurrency,
            "progress": self.executor.progress() or None,
            "report": {"resident_bytes": resident_bytes(os.getpid()), "declared": self._declared},
            "stuck_threads": self.executor.stuck_threads,
            "failure": next(failures, None),
        }

    def _answered(self, answer: TickResult) -> None:
        before = self._clocks
        if answer.now is not None:
            self._clocks = answer.now.timestamp() - time.monotonic()
        with suppress(RuntimeError):  # the loop is closed
            if before is not None and self._clocks is not None and abs(self._clocks - before) > _CLOCKS_DIFFER:
                self._loop.call_soon_threadsafe(self._signals.clock_set)
            self._loop.call_soon_threadsafe(self._signals.ticked, answer)

    def _settings_changed(self, controls: Controls) -> None:
        concurrency = min(controls.concurrency or self._options.concurrency, self._sessions.most)
        if concurrency != self.executor.concurrency:
            self.executor.resize(concurrency)
            self._sessions.concurrency = concurrency
            self._heartbeat.hurry()
        paused = (tuple(key.label for key in sorted(controls.paused_queues)), tuple(sorted(controls.paused_types)))
        self._events.emit(SettingsChanged(self._worker_id, *paused, concurrency))
        self._signals.may_start()

    def _leave_capacity(self, job: ClaimedJob | None) -> None:
        if self._state is WorkerState.DRAINING:  # this worker claims no more: other workers can use the capacity
            self._unblocker.notify_workers()

    def _endangered(self, silent: timedelta) -> None:
        self._events.emit(HeartbeatFailing(self._worker_id, silent))
        self.executor.release_all(CancelReason.DATABASE_LOST)

    def _outgrown(self) -> bool:
        """Report that this process uses more than `max_memory`, and return whether it does."""
        used_bytes = resident_bytes(os.getpid())
        is_outgrown = used_bytes > (self._options.max_memory or used_bytes)
        if is_outgrown:
            self._on_outgrown(used_bytes)
        return is_outgrown

    async def start(self) -> None:
        """Start child processes, read the settings and send the first heartbeat. Raises: what any of them does."""
        await self._children.start()
        await self._reader.read()  # before the first claim, so that nothing paused is started
        await self._register()
        self._signs.watch(self._heartbeat, self._listener if self.can_listen else None, self.executor.job_in)

    async def _register(self) -> None:
        """Send the first heartbeat and start its thread; a cancellation meanwhile waits for its end and undoes it."""
        starting = asyncio.create_task(asyncio.to_thread(self._heartbeat.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            if starting.exception() is None:
                await asyncio.to_thread(self._heartbeat.stop)
            raise

    async def abandon(self) -> None:
        """Close everything that a failed start has opened."""
        await self.executor.close()
        await self._children.close()
        await self._disconnect()

    async def run(self, stopping: asyncio.Task[Any]) -> bool:
        """Run all parts until `stopping` is done, or the claimer is idle; return whether it is."""
        for part in self._background:
            self._begin(part)
        claiming = self._begin(self._claimer)
        try:
            while not (stopping.done() or claiming.done()):
                finished_tasks, _ = await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                # Cancelled by code of the application: without this part the worker would go on as if it did its work.
                for task in [
                    task for task in finished_tasks if task in self._tasks and task.cancelled() and not stopping.done()
                ]:
                    part = self._tasks[task]
                    self._events.emit(ComponentFailed(part.name, RuntimeError("its task was cancelled"), timedelta(0)))
                    again = self._begin(part)
                    claiming = again if part is self._claimer else claiming
                for task in finished_tasks:
                    self._tasks.pop(task, None)
            if claiming.done() and not stopping.done():
                await self._prune_once(stopping)
            return claiming.done()
        finally:
            await cancelled(claiming)  # first of all, so that nothing more is claimed

    async def _prune_once(self, stopping: asyncio.Task[Any]) -> None:
        """Prune before the end of a run until idle: short runs may be all that the database ever gets."""
        await cancelled(*(task for task, part in self._tasks.items() if part is self._pruner))
        pruning = asyncio.create_task(self._pruner.prune(rests=False), name=self._pruner.name)
        try:
            await asyncio.wait({stopping, pruning}, timeout=_PRUNING, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(pruning)
        if not pruning.cancelled() and isinstance(error := pruning.exception(), Exception):
            self._events.emit(ComponentFailed(self._pruner.name, error, timedelta(0)))

    def _begin(self, part: Component) -> asyncio.Task[Any]:
        task = asyncio.create_task(supervise(part, self._events), name=part.name)
        self._tasks[task] = part
        return task

    async def wind_down(self, *, at_once: bool) -> None:
        """Finish or release what runs, write all results, and close everything. Nothing is claimed any more."""
        options = self._options
        self._signs.phase, self._state = Phase.DRAINING, WorkerState.DRAINING
        self._heartbeat.hurry()
        if not at_once:
            await _within(self.executor.idle(), options.shutdown_timeout)
        self.executor.release_all(CancelReason.SHUTDOWN)
        await _within(self.executor.idle(), options.cancel_timeout + timedelta(seconds=1))
        await _within(self._leave_nothing(), options.heartbeat_timeout)
        # Dependants that are not unblocked by now are recorded in the database, for any worker's next rescue.
        await _within(self._unblocker.drained(), timedelta(seconds=1))
        self._signs.stop()
        await cancelled(*self._tasks)
        await self.executor.close()
        await self._children.close()
        await asyncio.to_thread(self._heartbeat.stop)
        await self._disconnect()
        for engine in self._sessions.own_engines:
            await engine.dispose() if isinstance(engine, AsyncEngine) else engine.dispose()
        await _within(self._close_providers(), _CLOSING)

    async def _leave_nothing(self) -> None:
        """Write all pending results, and release jobs that an interrupted claim may have claimed."""
        self._completer.retry_refused()
        await self._completer.drained()
        async with self._engine.connect() as connection:
            await self._claimer.end_orphans(connection)
        await self._completer.drained()

    async def _disconnect(self) -> None:
        await self._engine.dispose()
        await self._steps_engine.dispose()
        await self._connections.close(timedelta(seconds=1))

    async def _close_providers(self) -> None:
        """Close the dependencies. A failure is only reported, because no attempt waits for the result."""
        providers = {id(provider): provider for kind in self._jobs.registry for provider in kind.signature.provided.values()}
        closings = (asyncio.to_thread(provider.close) for provider in providers.values())
        for failed in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(failed, BaseException):
                self._events.emit(ProviderFailed(failed))


async def _within(work: Awaitable[None], limit: timedelta) -> None:
    """Await `work` for at most `limit`; anything that fails or is unfinished by then is left to other workers."""
    with suppress(TimeoutError, DBAPIError):
        async with asyncio.timeout(limit.total_seconds()):
            await work
