"""Decides when to claim: at wake-ups, when a slot becomes free, when a job is due, and at each poll interval.

`division` decides what to claim.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.connections import close_idle
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import blockers, leases
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.claim.cursors import Snapshot
from sa_jobqueue.worker.claim.division import Division
from sa_jobqueue.worker.claim.idleness import Idleness
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.shared import Part, Shared
from sa_jobqueue.worker.signals import Hints, TickResult

_DEBOUNCE: Final = 0.004
"""Seconds between two claims while slots trickle free one by one: batches form, and no idle slot waits longer."""
_NOT_ALLOWED_DELAY: Final = 0.02
"""Seconds until a worker that may not start jobs now checks again."""
_QUIET: Final = 10.0
"""Seconds without a job after which a worker closes the connections that it needs only under load."""


class Claimer(Part, Component):
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
        shared: Shared,
        division: Division,
        *,
        executor: Executor,
        completer: Completer,
        unblocker: Unblocker,
        may_start: Callable[[float], bool],
        on_start: Callable[[], object],
        listener: Listener | None,
        until_idle: bool,
    ) -> None:
        super().__init__(shared)
        self._loop = asyncio.get_running_loop()
        self._division, self._until_idle, self._may_start = division, until_idle, may_start
        self._executor, self._completer, self._unblocker = executor, completer, unblocker
        self._running_jobs = compiled(leases.held, self._model)
        self._chains_to_unblock = blockers.chains_to_unblock(self._model)
        self._woken = asyncio.Event()
        self._was_notified = True
        self._idleness = Idleness(listener, self._loop.time)
        self._listener, self._on_start = listener, on_start
        self._is_asleep = self._may_have_orphans = False
        self._closing: asyncio.Future[None] | None = None
        self._has_run = False
        self._connected_at = float("-inf")
        self._claim_began = float("-inf")
        self._busy_at = self._loop.time()
        """When a job last started or ended here."""

    @property
    def idle_for(self) -> float:
        """For how many seconds this worker has run no job, while producers notify it. Thread-safe."""
        if self._listener is None or not self._listener.is_announced or self._executor.running:
            return 0.0
        return self._loop.time() - self._busy_at

    def snapshot(self, next_tick_in: float) -> Snapshot | None:
        """Return the snapshot of the last catch-up if the tick that asks is the last before a poll is due. Thread-safe.

        `next_tick_in`: seconds until the next tick.
        """
        is_due = self._loop.time() + next_tick_in > self._claim_began + self._options.poll_interval.total_seconds()
        return self._division.lanes.cursors.watermark if self._is_asleep and is_due else None

    def ticked(self, answer: TickResult) -> None:
        """Poll if a tick has found jobs, and close connections that an idle worker does not need."""
        if answer.has_arrivals and self._is_asleep:
            self._woken.set()
            if self._listener is not None and self._listener.is_announced:
                self._listener.check()  # no notification of them has arrived
        if answer.running_jobs > len(self._executor.attempts | self._completer.attempts):
            self._may_have_orphans = True
            self._woken.set()
        is_quiet = self._executor.running == 0 and self._loop.time() - self._busy_at > _QUIET
        if is_quiet and (self._closing is None or self._closing.done()):
            self._closing = asyncio.ensure_future(close_idle(self._engine))

    def notified(self, queues: Hints) -> None:
        """Poll now: a notification said that these queues (None or `ANY_QUEUE`: any queue) may have due jobs."""
        if queues is None or any(not text or QueueKey.of_text(text).queue in self._options.limits for text in queues):
            self._was_notified = True
            self._idleness.arrived()
            self._woken.set()

    def poll_again(self) -> None:
        """Poll once more before the next sleep: this worker rescheduled a job, which may be due before that ends."""
        self._woken.set()

    def clock_set(self) -> None:
        """Scan all lanes: a job may be due earlier or later than known."""
        self._division.lanes.arrivals.request_full_scan()
        self._woken.set()

    def job_ended(self, job: ClaimedJob | None) -> None:
        """Poll once more if the end of this job may allow another one to start: of its ordering key, or under its limit."""
        self._busy_at = self._loop.time()
        if self._division.job_ended(job):
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
            self._may_have_orphans = True
            while True:
                if self._may_have_orphans:
                    self._may_have_orphans = False
                    await self.end_orphans(connection)
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
                elif 0 < self._executor.free < self._executor.concurrency // 2:
                    await asyncio.sleep(_DEBOUNCE)
                elif self._idleness.is_busy and not self._division.lanes.backlog.open:
                    await self._sleep()

    async def _is_idle(self, connection: AsyncConnection) -> bool:
        """Return whether no work is left. No job is running, and only this claimer could start one.

        All results are written before the lanes are scanned, so the claim that follows finds every job that was committed
        until then; one that met a job of a key that another worker has just started wakes this one.
        """
        await self._completer.drained()
        self._unblocker.search()
        await self._unblocker.drained()
        await self._division.lanes.arrivals.scan_all(connection)
        if await self.claim(connection) > 0 or self._capacity_in() is not None or self._woken.is_set():
            return False
        if any(map(self._quarantine.quarantined, (RefusedWrite.UNBLOCK, RefusedWrite.START, RefusedWrite.CLAIM))):
            return True  # it would find jobs whose results cannot be written
        if (await connection.scalars(self._chains_to_unblock, {"limit": 1})).all():
            await asyncio.sleep(_NOT_ALLOWED_DELAY)
            return False
        return True

    async def end_orphans(self, connection: AsyncConnection) -> int:
        """End attempts that this worker holds in the database, and does not run; return how many.

        A claim whose response was lost leaves such jobs: no other worker may claim them while our heartbeats continue. So
        does an attempt whose end was not written, such as by a commit that the server has lost: that one is counted.
        """
        # Read before the query: a job that ends during it is not orphaned. No claim runs at the same time.
        known_attempts = self._executor.attempts | self._completer.attempts
        rows = await self._running_jobs.execute(connection, {"worker_id": self._worker_id})
        orphans = [job for job in (ClaimedJob(*row) for row in rows) if (job.id, job.attempt) not in known_attempts]
        for job in orphans:
            self._completer.put(self._executor.end_of_orphan(job))
        return len(orphans)

    async def claim(self, connection: AsyncConnection) -> int:
        """Claim due jobs for the free slots, and start them; return how many jobs."""
        self._claim_began = self._loop.time()
        was_notified, self._was_notified = self._was_notified, False
        async with self._executor.claiming():
            started = await self._division.claim(connection, was_notified=was_notified)
        if started:
            self._idleness.arrived(started)
            self._busy_at = self._loop.time()
            self._on_start()
        return started

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
        poll_interval, heartbeat_interval = self._options.poll_interval, self._options.heartbeat_interval
        # Otherwise ticks poll.
        seconds = poll_interval.total_seconds() if self._until_idle or poll_interval < heartbeat_interval else math.inf
        times = [seconds, *lanes.waits(), self._idleness.poll_in(), self._capacity_in()]
        times.append(self._quarantine.retry_in(RefusedWrite.START, RefusedWrite.CLAIM, since=self._claim_began))
        seconds = min(time for time in times if time is not None)
        waits = [asyncio.ensure_future(self._woken.wait())]
        if self._until_idle or any(partition.has_capacity_of_its_own for partition in lanes.partitions.every):
            waits.append(asyncio.ensure_future(self._executor.changed.wait()))
        self._is_asleep = True
        try:
            timeout = None if seconds == math.inf else seconds
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_asleep = False
            for wait in waits:
                wait.cancel()
