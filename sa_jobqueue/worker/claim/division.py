"""Divides a worker's free slots among its partitions, and claims for each.

The steps of one claim: apply changed settings; scan all lanes if that is due (`arrivals`); share the slots (`planner`);
claim (`claims`); move the cursors (`cursors`) and close the lanes that were read to their end (`backlog`). If nothing was
found, catch up before going to sleep.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.splitting import is_of_a_row
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.claim.claims import Claim
from sa_jobqueue.worker.claim.lanes import Lanes, is_of_ordering
from sa_jobqueue.worker.claim.partitions import Partition, Partitions, Queue
from sa_jobqueue.worker.claim.planner import Shares
from sa_jobqueue.worker.claim.selectors import Selection
from sa_jobqueue.worker.run.executor import Executor
from sa_jobqueue.worker.shared import Part, Shared

_MOST: Final = 500
"""Maximum number of jobs of one claim."""


class Division(Part):
    """Claims for the free slots of one worker, and starts the jobs."""

    def __init__(self, shared: Shared, executor: Executor, controls: Callable[[], Controls]) -> None:
        super().__init__(shared)
        self._shared, jobs, self._executor, self._controls = shared, shared.jobs, executor, controls
        self._clock = asyncio.get_running_loop().time
        self._types = list(jobs.registry.names)
        self._slots = {kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None}
        selection_arguments = self._model, self._worker_id, self._events
        self._selections = {queue: Selection(selector, *selection_arguments) for queue, selector in jobs.selectors.items()}
        self._ordered = False
        self._ended: list[QueueKey] = []
        """Queue keys of the jobs under limits that ended since the last claim under limits began."""
        self.renew()

    def renew(self) -> None:
        """Forget all lanes: settings have changed, or the connection. Those of paused queues and types are left out."""
        applied = self._applied = self._controls()
        # A limit that is not below the worker's concurrency has no partition.
        most = self._concurrency = self._executor.concurrency

        def binding(limit: int | None) -> int | None:
            return limit if limit is not None and limit < most else None

        partitions = Partitions(
            {queue: binding(n) for queue, n in self._options.limits.items() if not applied.queue(queue).is_paused},
            [name for name in self._types if not applied.type(name).is_paused],
            {name: n for name, n in self._slots.items() if binding(n) is not None},
            executor=self._executor,
            model=self._model,
            controls=applied,
            selections=self._selections,
        )
        self.lanes = Lanes(self._shared, partitions, self._clock)

    def job_ended(self, job: ClaimedJob | None) -> bool:
        """Return whether the end of a job may allow another one to start: of its ordering key, or under its limit."""
        if not self.lanes.partitions.is_limited:
            return self._ordered
        partition = None if job is None else self.lanes.partitions.of_lane(self.lanes.cursors.lane_of(job))
        if job is not None and partition is not None and partition.limits is not None:
            self._ended.append(job.queue_key)
            self.lanes.count_again([job.queue_key])
        return True

    async def claim(self, connection: AsyncConnection, *, was_notified: bool) -> int:
        """Claim for every partition with a free slot and start what came; return how many jobs."""
        if self._controls() is not self._applied or self._concurrency != self._executor.concurrency:
            self.renew()  # never during a claim: its cursors would be gone
        self._exclude()
        lanes = self.lanes
        lanes.backlog.wake(self._clock())
        await lanes.arrivals.keep_up(connection)
        if was_notified and not lanes.backlog.open:
            # First where jobs were a moment ago: the catch-up that finds a new lane costs another round trip.
            lanes.backlog.open_lingering()
        started = await self._claim_all(connection)
        while started == 0 and lanes.arrivals.may_have_news:
            # No lane is open. Check for new arrivals before going to sleep; a full scan is followed by a catch-up.
            is_last = not lanes.arrivals.is_scanning
            await lanes.arrivals.ask(connection)
            lanes.backlog.wake(self._clock())
            if lanes.backlog.open:
                started = await self._claim_all(connection)
            if is_last:
                break
        return started

    async def _claim_all(self, connection: AsyncConnection) -> int:
        """Claim until something started; lanes that turn out empty and late arrivals that may not start make way."""
        while True:
            lane_count = self.lanes.size
            started = await self._divide(connection)
            if started or not 0 < self.lanes.size < lane_count:
                return started

    async def _divide(self, connection: AsyncConnection) -> int:
        """Divide the free slots. Partitions with limits or selectors are claimed one by one, all others by one statement.

        Slots that the former leave unused are divided again among the others.
        """
        # At most the number of slots when the lanes were created: a limit that was not below it then may be now.
        free = min(self._executor.free, self._concurrency - self._executor.running, _MOST)
        planner, now = self.lanes.planner, self._clock()
        started: Counter[Queue] = Counter()
        tried: set[Partition] = set()
        while (unused_slots := free - started.total()) > 0 and (shares := planner.share(unused_slots, now, tried)):
            before = started.total()
            apart = {partition: queue_shares for partition, queue_shares in shares.items() if not partition.is_plain}
            for partition, queue_shares in apart.items():
                limit = min(sum(queue_shares.values()), free - started.total())
                if limit > 0:
                    started += await self._start({partition: queue_shares}, connection, limit)
                tried.add(partition)
            plain = {partition: queue_shares for partition, queue_shares in shares.items() if partition.is_plain}
            if plain and (limit := free - started.total()) > 0:
                started += await self._start(plain, connection, limit)
            if not apart or started.total() - before >= unused_slots:
                break
        planner.charge_queues(started)
        return started.total()

    async def _start(self, shares: Shares, connection: AsyncConnection, limit: int) -> Counter[Queue]:
        """Claim up to `limit` jobs of these partitions and start them; return how many of each queue."""
        jobs = await self._claim(shares, connection, limit)
        for job in jobs:
            self._ordered = self._ordered or job.ordering_key is not None
            self._executor.start(job)
        await self._quarantine.written(RefusedWrite.START, [job.id for job in jobs])
        own_types = self.lanes.partitions.own_types
        return Counter((job.queue, job.type_name if job.type_name in own_types else "") for job in jobs)

    async def _claim(self, shares: Shares, connection: AsyncConnection, limit: int) -> list[ClaimedJob]:
        """Claim without the jobs that the database refuses to start, and not at all where it refuses the limits."""
        claim = Claim(self.lanes, shares)
        partition = next(iter(shares))  # the only one, if it has limits
        limits = partition.limits
        is_retry, self._ended = False, []
        while True:
            try:
                jobs = await claim.run(connection, limit)
                break
            except Exception as error:
                if is_of_ordering(error):  # another claim has just started a job of the same key, which is visible now
                    self._signals.may_start()
                    return []
                if isinstance(error, OSError) or not is_of_a_row(error):  # an answer that was lost
                    raise
                if await self._leave_out(connection, shares):
                    is_retry = False
                elif limits is not None:
                    await self._quarantine.add(RefusedWrite.CLAIM, [(limits.name, error)])
                    partition.is_refused = True
                    return []
                elif is_retry:
                    raise
                else:
                    is_retry = True  # the cause may have disappeared
        if limits is not None:
            self.lanes.count_again(self._ended)  # the count may have run before these ends were committed
            await self._quarantine.written(RefusedWrite.CLAIM, [limits.name])
        return jobs

    def _exclude(self) -> None:
        """Exclude quarantined jobs and limits; request a full scan when one of the jobs is to be retried."""
        before, self.lanes.excluded = self.lanes.excluded, self._quarantine.quarantined(RefusedWrite.START)
        if before and not set(before) <= set(self.lanes.excluded):
            self.lanes.arrivals.request_full_scan()
        for partition in self.lanes.partitions.every:
            limits = partition.limits
            partition.is_refused = limits is not None and self._quarantine.is_quarantined(RefusedWrite.CLAIM, limits.name)

    async def _leave_out(self, connection: AsyncConnection, shares: Shares) -> bool:
        """Quarantine the jobs that made a claim of these partitions fail; return whether there were any."""
        await self._quarantine.add(RefusedWrite.START, await self.lanes.refused(connection, shares, _MOST))
        before = len(self.lanes.excluded)
        self._exclude()
        return len(self.lanes.excluded) > before
