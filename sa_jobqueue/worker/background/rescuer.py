"""Rescues jobs of dead workers, and does the housekeeping that no worker owns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.events import EventBus, JobCancelled, JobRescued, UnknownTypesPending, UnservedQueues
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import dead_letter_ids
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.statements import corrections, expiry, jobs, leases
from sa_jobqueue.types import JobStatus, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.signals import Signals

BATCH = 100
CORRECTED = 1000
"""Rows corrected per transaction: about 20 ms."""
_RARELY = 15
"""Rescue scans between two checks of what changes slowly: orphaned jobs, old workers, unhandled job types."""


class Rescuer(Component):
    """Rescues jobs, one batch per transaction, whether or not this worker has a free slot.

    Every worker runs one, each on its own timer. Two may overlap: a job is rescued under its row lock by one of them. A
    crash leaves the rest to the next scan of any worker. Woken by its timer only.
    """

    name = "rescuer"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        events: EventBus,
        signals: Signals,
        options: WorkerOptions,
        *,
        queues: list[str],
        types: list[str],
        unblocker: Unblocker,
        quarantine: Quarantine,
        backoff: Backoff = Backoff(),
    ) -> None:
        self._unblocker = unblocker
        self._quarantine = quarantine
        self._signals = signals
        self._model = model
        self._engine = engine
        self._events = events
        self._options = options
        self._queues = queues
        self._types = types
        self._backoff = backoff
        for orphans in (False, True):  # compiled now, and not while the first jobs wait
            compiled(leases.rescue, model, orphans=orphans, only=False)
        compiled(expiry.expire, model, only=False)
        self._forget = leases.forget_dead_workers(model)
        self._correct_heartbeats = compiled(corrections.correct_heartbeats, model)
        self._correct_leases = compiled(corrections.correct_leases, model)
        self._correct_transactions = compiled(corrections.correct_transactions, model)
        self._unknown = compiled(jobs.unknown_types, model)
        self._unserved = compiled(jobs.unserved_queues, model)

    async def run(self) -> None:
        """Rescue until cancelled."""
        rounds = 0
        while True:
            if await self.rescue(orphans=rounds % _RARELY == 0) < BATCH:
                # Alternating: this keeps an idle worker's load low, and neither is urgent.
                if rounds % 4 == 0:
                    self._unblocker.search()
                elif rounds % 8 == 2:
                    while await self.expire() == BATCH:
                        pass
                if rounds % _RARELY == 0:
                    await self.correct()
                    await self.tidy()
                rounds += 1
                # Jitter, so that workers started together do not scan together.
                await asyncio.sleep(self._options.rescue_interval.total_seconds() * random.uniform(0.8, 1.0))

    async def rescue(self, *, orphans: bool = False) -> int:
        """Rescue one batch and report it; return the number of jobs. A failed scan has changed nothing."""
        given: dict[str, Any] = {"limit": BATCH} | ({} if orphans else {"ttl": self._options.heartbeat_timeout})
        given |= {"base": self._backoff.base.total_seconds(), "cap": self._backoff.cap.total_seconds()}

        async def rescue_some(which: dict[str, Any]) -> Sequence[Any]:
            statement = compiled(leases.rescue, self._model, orphans=orphans, only="ids" in which)
            made = {"dead_letter_ids": dead_letter_ids(self._model.__jobqueue__, BATCH)}
            async with self._engine.connect() as connection:
                return await statement.execute(connection, given | made | which)

        async def candidates(which: dict[str, Any]) -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return (await connection.scalars(leases.lost(self._model, orphans=orphans), given | which)).all()

        rescued = await self._quarantine.select(RefusedWrite.RESCUE, rescue_some, candidates)
        if rescued:  # others may serve these queues, and wait for these ordering keys
            self._unblocker.notify_workers()
            self._signals.may_start()
        for job_id, type_name, attempt, status, worker_id, chain_id, has_waiters in rescued:
            died = JobStatus(status) is JobStatus.DEAD
            if died and has_waiters:
                self._unblocker.put(chain_id)
            self._events.emit(JobRescued(job_id, type_name, attempt, worker_id, died))
        return len(rescued) if not orphans else len(rescued) + await self.rescue()

    async def expire(self) -> int:
        """Cancel one batch of jobs that were not started before they expired, and report it; return their number."""

        async def cancel(which: dict[str, Any]) -> Sequence[Any]:
            async with self._engine.connect() as connection:
                statement = compiled(expiry.expire, self._model, only="ids" in which)
                return await statement.execute(connection, {"limit": BATCH, **which})

        async def candidates(which: dict[str, Any]) -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return (await connection.scalars(expiry.late(self._model), {"limit": BATCH, **which})).all()

        late = await self._quarantine.select(RefusedWrite.EXPIRE, cancel, candidates)
        for job_id, type_name, attempt, chain_id, has_waiters in late:
            if has_waiters:
                self._unblocker.put(chain_id)
            self._signals.ended(job_id)
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
        """Delete the rows of workers gone for a long time, and report due jobs that no worker can run."""
        await self._quarantine.tidy()
        async with self._engine.connect() as connection:
            await connection.execute(self._forget, {"after": 20 * self._options.heartbeat_timeout + timedelta(minutes=1)})
            served = {"queues": self._queues, "types": self._types, "ttl": self._options.heartbeat_timeout}
            names = tuple(sorted(name for (name,) in await self._unknown.execute(connection, served)))
            unserved = await self._unserved.execute(connection, {"ttl": self._options.heartbeat_timeout})
            queues = tuple(sorted(queue for (queue,) in unserved))
        if names:
            self._events.emit(UnknownTypesPending(names))
        if queues:
            self._events.emit(UnservedQueues(queues))
