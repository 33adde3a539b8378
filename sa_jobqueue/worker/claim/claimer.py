"""Decides when to claim: at wake-ups, when a slot becomes free, when a job is due, and at each poll interval.

`division` decides what to claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.claim.division import Division
from sa_jobqueue.worker.claim.idleness import Idleness
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.outcomes import released
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.signals import Hints, Signals

_DEBOUNCE: Final = 0.004
"""Seconds between two claims while slots trickle free one by one: batches form, and no idle slot waits longer."""
_NOT_ALLOWED_DELAY: Final = 0.02
"""Seconds until a worker that may not start jobs now checks again."""
_ORPHANS_EVERY: Final = 60.0
"""Seconds between two checks for jobs that this worker has leased but does not know of."""
_QUIET: Final = 10.0
"""Seconds without a job after which a worker closes the connections that it needs only under load."""


class Claimer(Component):
    """Claims jobs for free slots only, and starts them immediately. Each worker has one claimer.

    It claims after a notification, when a slot becomes free, when the next job is due, and at each poll interval. If the
    connection fails between a claim's commit and its response, this worker has leases on jobs that it does not know of: the
    next run releases them. Each run starts without cursors, counts and plans, because its connection may lead to another
    server.

    `may_start(since)`: returns whether a heartbeat sent after `since`, on the loop's clock, is recent enough.
    """

    name = "claimer"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        signals: Signals,
        *,
        executor: Executor,
        completer: Completer,
        unblocker: Unblocker,
        worker_id: str,
        jobs: JobQueue[Any],
        events: EventBus,
        options: WorkerOptions,
        may_start: Callable[[float], bool],
        controls: Callable[[], Controls],
        quarantine: Quarantine,
        listener: Listener | None = None,
        until_idle: bool = False,
    ) -> None:
        self._signals, self._until_idle = signals, until_idle
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._executor, self._completer, self._unblocker = executor, completer, unblocker
        self._worker_id, self._options, self._quarantine = worker_id, options, quarantine
        self._may_start = may_start
        self._held = compiled(leases.held, model)
        self._division = Division(
            model,
            jobs,
            executor=executor,
            quarantine=quarantine,
            worker_id=worker_id,
            events=events,
            options=options,
            controls=controls,
            poll_again=self.poll_again,
            clock=self._loop.time,
        )
        self._woken = asyncio.Event()
        self._was_notified = True
        self._idleness = Idleness(listener, self._loop.time)
        self._has_run = False
        self._connected_at = float("-inf")
        self._claim_began = float("-inf")

    def notified(self, queues: Hints) -> None:
        """Poll now: a notification said that these queues (None or `ANY_QUEUE`: any queue) may have due jobs."""
        if queues is None or any(not text or QueueKey.of_text(text).queue in self._options.limits for text in queues):
            self._was_notified = True
            self._idleness.arrived()
            self._woken.set()

    def poll_again(self) -> None:
        """Poll once more before the next sleep: this worker rescheduled a job, which may be due before that ends."""
        self._woken.set()

    def job_ended(self, job_id: Any) -> None:
        """Poll once more if the end of this job may allow another one to start: of its ordering key, or under its limit."""
        if self._division.job_ended(job_id):
            self._woken.set()

    async def run(self) -> None:
        """Claim until cancelled, or with `until_idle` until no job is due or running and all results are written."""
        # Cursors and snapshots are valid for one connection: the next one may lead to another server, or to the same server
        # restored from a dump, with other transaction ids and another clock.
        self._division.renew()
        async with self._engine.connect() as connection:
            if self._has_run:
                # The last heartbeat may have registered this worker on another server than the one it claims from now.
                self._connected_at = self._loop.time()
                self._signals.reconnected()  # before the first claim on the new connection
            self._has_run = True
            await self.release_orphaned_claims(connection)
            orphans_due = self._loop.time() + _ORPHANS_EVERY
            while True:
                if self._loop.time() >= orphans_due:
                    await self.release_orphaned_claims(connection)
                    orphans_due = self._loop.time() + _ORPHANS_EVERY
                if self._executor.free <= 0 or self._completer.backlog > 4 * self._options.completion_batch_size:
                    await self._wait_for_slot()
                    continue
                if not (self._completer.is_connected and self._may_start(self._connected_at)):
                    await asyncio.sleep(_NOT_ALLOWED_DELAY)
                    continue
                # Cleared before polling, so that a notification that arrives from here on ends the next sleep.
                self._woken.clear()
                self._executor.changed.clear()
                if await self.claim(connection) == 0:
                    if self._until_idle and self._executor.running == 0 and self._capacity_in() is None:
                        if await self._is_idle(connection):
                            return
                        continue
                    if not await self._idleness.announce():
                        await self._sleep()
                        await self._let_go()
                elif 0 < self._executor.free < self._executor.concurrency // 2:
                    await asyncio.sleep(_DEBOUNCE)
                elif self._idleness.is_busy and not self._division.lanes.backlog.open:
                    await self._sleep()

    async def _is_idle(self, connection: AsyncConnection) -> bool:
        """Return whether no work is left. No job is running, and only this claimer could start one.

        The last statement decides: all results are written before it, and its snapshot includes every job that was committed
        before it, even those that the last claim missed.
        """
        await self._completer.drained()
        self._unblocker.search()
        await self._unblocker.drained()
        await self._division.lanes.arrivals.scan_all(connection)
        if await self.claim(connection) > 0 or self._capacity_in() is not None:
            return False
        if any(map(self._quarantine.quarantined, (RefusedWrite.UNBLOCK, RefusedWrite.START, RefusedWrite.CLAIM))):
            return True  # it would find jobs whose results cannot be written
        if await self._division.has_jobs_left(connection):
            await asyncio.sleep(_NOT_ALLOWED_DELAY)
            return False
        return True

    async def release_orphaned_claims(self, connection: AsyncConnection) -> int:
        """Release jobs that are leased by this worker in the database but unknown here; return how many.

        A claim whose response was lost leaves such jobs: no other worker may claim them while our heartbeats continue.
        """
        # Read before the query: a job that ends during it is not orphaned. No claim runs at the same time.
        known = self._executor.attempts | self._completer.attempts
        self._division.keep_limited({job_id for job_id, _ in known})
        rows = await self._held.execute(connection, {"worker_id": self._worker_id})
        orphans = [job for job in (ClaimedJob(*row) for row in rows) if (job.id, job.attempt) not in known]
        for job in orphans:
            self._completer.put(released(job))
        return len(orphans)

    async def claim(self, connection: AsyncConnection) -> int:
        """Claim due jobs for the free slots, and start them; return how many jobs."""
        self._claim_began = self._loop.time()
        was_notified, self._was_notified = self._was_notified, False
        return await self._division.claim(connection, was_notified=was_notified)

    async def _let_go(self) -> None:
        """After a quiet time, close the unused connections except one, which an idle worker's components take in turn."""
        pool: Any = self._engine.pool
        is_quiet = self._executor.running == 0 and self._loop.time() - self._division.started_at > _QUIET
        # One by one: after `dispose`, a connection that is in use now would return to a pool that nothing closes any more.
        for _ in range(pool.checkedin() - 1 if is_quiet else 0):
            async with self._engine.connect() as unused:
                await unused.invalidate()

    async def _wait_for_slot(self) -> None:
        self._executor.changed.clear()
        if self._executor.free <= 0:
            await self._executor.changed.wait()
        else:
            await asyncio.sleep(_DEBOUNCE)

    def _capacity_in(self) -> float | None:
        """Return in how many seconds a limit that the last claim found reached may have capacity; None without one."""
        return self._division.lanes.capacity_in(self._claim_began)

    async def _sleep(self) -> None:
        """Sleep until a job may be due, or until a slot becomes free that a queue with a limit needs."""
        lanes = self._division.lanes
        times = [self._options.poll_interval.total_seconds(), *lanes.waits(), self._idleness.poll_in(), self._capacity_in()]
        times += [self._quarantine.retry_in(write, self._claim_began) for write in (RefusedWrite.START, RefusedWrite.CLAIM)]
        seconds = min(time for time in times if time is not None)
        waits = [asyncio.ensure_future(self._woken.wait())]
        if self._until_idle or any(one.has_capacity_of_its_own for one in lanes.partitions.every):
            waits.append(asyncio.ensure_future(self._executor.changed.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
