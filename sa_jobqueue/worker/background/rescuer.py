"""Rescues jobs of dead workers, and does the housekeeping that no worker owns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.events import JobCancelled, JobRescued, UnknownTypesPending, UnservedQueues
from sa_jobqueue.operations.workers import Rescued, rescue
from sa_jobqueue.statements import corrections, expiry, leases
from sa_jobqueue.types import JobStatus, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.shared import Part, Shared
from sa_jobqueue.worker.signals import TickResult

RESCUE_BATCH = 100
CORRECTED = 1000
"""Rows corrected per transaction: about 20 ms."""
_RETRY: Final = TickResult(has_ended_chains=False, is_ahead=False, has_leftovers=False)
"""What to do when the pause of a quarantined row ends: rescue and expire again."""


class Rescuer(Part, Component):
    """Rescues jobs, one batch per transaction, whether or not this worker has a free slot.

    Every worker runs one. Two may overlap: a job is rescued under its row lock by one of them. A crash leaves the rest to
    the next tick of any worker. Woken by ticks, and when the pause of a quarantined row ends.
    """

    name = "rescuer"

    def __init__(self, shared: Shared, unblocker: Unblocker) -> None:
        super().__init__(shared)
        self._unblocker, model = unblocker, self._model
        compiled(expiry.expire, model, only=False)
        self._forget = leases.forget_dead_workers(model)
        self._correct_heartbeats = compiled(corrections.correct_heartbeats, model)
        self._correct_leases = compiled(corrections.correct_leases, model)
        self._correct_transactions = compiled(corrections.correct_transactions, model)
        self._answer = TickResult()
        self._began = time.monotonic()
        """When it last began to rescue, by the monotonic clock."""
        self._woken = asyncio.Event()

    def ticked(self, answer: TickResult) -> None:
        """Do the work that a tick has found."""
        self._answer = answer
        self._woken.set()

    async def run(self) -> None:
        """Rescue until cancelled."""
        while True:
            pause = self._quarantine.retry_in(RefusedWrite.RESCUE, RefusedWrite.EXPIRE, since=self._began)
            await waited(self._woken, pause)
            self._began = time.monotonic()
            answer = self._answer if self._woken.is_set() else _RETRY
            self._woken.clear()
            if answer.has_orphans or (answer.lost_in is not None and answer.lost_in <= 0):
                while await self.rescue(orphans=bool(answer.has_orphans)) >= RESCUE_BATCH:
                    pass
            if answer.has_ended_chains:
                self._unblocker.search()
            while answer.has_expired and await self.expire() == RESCUE_BATCH:
                pass
            if answer.is_ahead:
                await self.correct()
            if answer.has_leftovers:
                await self.tidy()
            if answer.unknown_types:
                self._events.emit(UnknownTypesPending(tuple(sorted(answer.unknown_types))))
            # The first tick does not see this worker's own row.
            if unserved := [queue for queue in answer.unserved_queues or () if queue not in self._identity.queues]:
                self._events.emit(UnservedQueues(tuple(unserved)))

    async def rescue(self, *, orphans: bool = False) -> int:
        """Rescue one batch and report it; return the number of jobs. A failed scan has changed nothing."""
        parameters: dict[str, Any] = {"limit": RESCUE_BATCH} | ({} if orphans else {"ttl": self._options.heartbeat_timeout})

        async def rescue_some(write_parameters: dict[str, Any]) -> Sequence[Rescued]:
            async with self._transactions.begin() as connection:
                return await connection.run_sync(rescue, self._model, write_parameters)

        lost = leases.lost(self._model, orphans=orphans)
        rescued = await self._quarantine.select(RefusedWrite.RESCUE, rescue_some, lost, parameters)
        if rescued:  # others may serve these queues, and wait for these ordering keys
            self._unblocker.notify_workers()
            self._signals.may_start()
        for job in rescued:
            died = job.status is JobStatus.DEAD
            if died and job.has_waiters:
                self._unblocker.put(job.chain_id)
            self._events.emit(JobRescued(job.id, job.type_name, job.attempt, job.worker_id, died))
        return len(rescued) if not orphans else len(rescued) + await self.rescue()

    async def expire(self) -> int:
        """Cancel one batch of jobs that were not started before they expired, and report it; return their number."""

        async def cancel(write_parameters: dict[str, Any]) -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return await compiled(expiry.expire, self._model, only="ids" in write_parameters).execute(
                    connection, write_parameters
                )

        late = await self._quarantine.select(RefusedWrite.EXPIRE, cancel, expiry.late(self._model), {"limit": RESCUE_BATCH})
        for job_id, type_name, attempt, chain_id, has_waiters in late:
            if has_waiters:
                self._unblocker.put(chain_id)
            self._signals.ended(None)
            self._events.emit(JobCancelled(job_id, type_name, attempt))
        return len(late)

    async def correct(self) -> None:
        """Correct rows written while the server's or cluster's clock was ahead, one batch per transaction."""
        after = {"after": self._options.heartbeat_timeout}
        async with self._engine.connect() as connection:
            await self._correct_heartbeats.execute(connection, after)
            while len(await self._correct_leases.execute(connection, after | {"limit": CORRECTED})) == CORRECTED:
                pass
            while len(await self._correct_transactions.execute(connection, {"limit": CORRECTED})) == CORRECTED:
                pass

    async def tidy(self) -> None:
        """Delete the rows of workers gone for a long time, and records of rows that no worker has tried for a long time."""
        await self._quarantine.tidy()
        async with self._engine.connect() as connection:
            gone_after = 20 * self._options.heartbeat_timeout + timedelta(minutes=1)
            await connection.execute(self._forget, {"gone_after": gone_after})
