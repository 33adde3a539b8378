"""Claims due jobs for the free slots, and decides how long to sleep when there are none.

The steps of one claim: apply changed settings; scan all lanes if that is due (`arrivals`); plan (`planner`); claim
(`claims`); move the cursors (`cursors`) and close the lanes that were read to their end (`backlog`). If nothing was found,
catch up before going to sleep.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.splitting import is_of_a_row
from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import queue_of
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.background.listener import Listener
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.claims import Claims, is_of_ordering
from sa_jobqueue.worker.claim.cursors import Allocation, Cursors, Lane, Plan
from sa_jobqueue.worker.claim.idleness import Idleness
from sa_jobqueue.worker.claim.limits import FULL, Limits, transaction
from sa_jobqueue.worker.claim.partitions import Partition, Partitions, Queue
from sa_jobqueue.worker.claim.planner import Planner, Share
from sa_jobqueue.worker.claim.rates import OutdatedError, TooHeavyError
from sa_jobqueue.worker.claim.selectors import Selectors
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
_MOST: Final = 500
"""Maximum number of jobs of one claim."""
_ORPHANS_EVERY: Final = 60.0
"""Seconds between two checks for jobs that this worker has leased but does not know of."""
_QUIET: Final = 10.0
"""Seconds without a job after which a worker closes the connections that it needs only under load."""
_SELECT_AGAIN: Final = 0.5
"""Seconds until a selector that rejected candidates is called again: its reasons may have changed."""


class _Lanes:
    """State of one worker's lanes; valid while its partitions and its connection stay the same."""

    def __init__(
        self,
        partitions: Partitions,
        model: type[JobMixin[Any]],
        *,
        queues: list[str],
        types: list[str],
        fair: bool,
        weight: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        self.partitions = partitions
        self.types = types
        self.cursors = Cursors(partitions.own_types, lowest_id(model.__jobqueue__))
        self.planner = Planner(partitions, self.cursors, fair=fair, weight=weight)
        self.backlog = Backlog(self.cursors, self.planner.open, self.planner.close)
        self.arrivals = Arrivals(model, partitions, self.cursors, self.backlog, queues=queues, types=types, clock=clock)
        self.arrivals.on_full_scan = self._forget_candidates
        self._clock = clock
        self._backing_off: dict[str, list[Lane]] = {}
        """Fairness keys without capacity, with their lanes."""

    def claimed(self, plan: Plan, shares: Mapping[Partition, Sequence[Share]], jobs: Sequence[Any], at: Any) -> None:
        """Record which jobs a claim of this plan returned, at `at` by the database's clock."""
        ended, started = self.cursors.claimed(plan, jobs, at)
        self.planner.charge(shares, started)
        self.backlog.read_to_end(ended, self._clock())
        self.arrivals.claimed()

    @property
    def left(self) -> int:
        """Number of open lanes and late arrivals."""
        return len(self.backlog.open) + sum(map(len, self.cursors.late.values()))

    def back_off(self, capacities: Mapping[str, int], now: float) -> None:
        """Leave fairness keys without capacity out of plans for a while: they would displace those that have some."""
        for queue_key, capacity in capacities.items():
            if capacity > 0:
                self._backing_off.pop(queue_key, None)
                continue
            lanes = self._backing_off[queue_key] = self.planner.lanes_of_key(queue_key)
            self.backlog.back_off(lanes, now + FULL)

    def key_ended(self, queue_key: str, now: float) -> None:
        """Plan a fairness key again because one of its jobs ended."""
        for lane in self._backing_off.pop(queue_key, []):
            self.backlog.found(lane, now, now)

    def _forget_candidates(self) -> None:
        for partition in self.partitions.every:
            if partition.selection is not None:
                for one in partition.selection.forget():
                    lane = self.cursors.lane_of(one)
                    self.cursors.lower(lane, one.scheduled_at)
                    self.backlog.found(lane, 0.0, 0.0)


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
        self._worker_id = worker_id
        self._types = list(jobs.registry.names)
        self._options = options
        self._may_start = may_start
        self._quarantine = quarantine
        self._claims = Claims(model, worker_id=worker_id, grace=options.heartbeat_timeout)
        self._held = compiled(leases.held, model)
        self._model = model
        self._ordered = False
        self._limited: dict[Any, str] = {}
        """Queue keys (`queue_key_of`) of the jobs that this worker runs under limits, by their ids."""
        self._ended: list[str] = []
        """Queue keys of those that ended since the last count began."""
        self._controls = controls
        self._applied = Controls()
        self._slots = {kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None}
        self._selectors = Selectors(jobs.selectors, model, worker_id=worker_id, events=events)
        self._concurrency = 0
        """The worker's concurrency when its lanes were created: a separate limit that is not below it has no partition."""
        self._lanes = self._new_lanes()
        self._woken = asyncio.Event()
        self._was_notified = True
        self._idleness = Idleness(listener, self._loop.time)
        self._has_run = False
        self._connected_at = float("-inf")
        self._claim_began = float("-inf")
        self._started_at = self._loop.time()

    def notified(self, queues: Hints) -> None:
        """Poll now: a notification said that these queues (None or `ANY_QUEUE`: any queue) may have due jobs."""
        if queues is None or any(not queue or queue_of(queue) in self._options.limits for queue in queues):
            self._was_notified = True
            self._idleness.arrived()
            self._woken.set()

    def poll_again(self) -> None:
        """Poll once more before the next sleep: this worker rescheduled a job, which may be due before that ends."""
        self._woken.set()

    def job_ended(self, job_id: Any) -> None:
        """Poll once more if the end of this job may allow another one to start: of its ordering key, or under its limit."""
        queue_key = self._limited.pop(job_id, None)
        if queue_key is not None:
            self._ended.append(queue_key)
            self._count_again([queue_key])
        if self._ordered or self._lanes.partitions.is_limited:
            self._woken.set()

    def _count_again(self, queue_keys: Sequence[str]) -> None:
        """Count at the next claim what limits leave: jobs of these queue keys have ended."""
        if queue_keys:
            for partition in self._lanes.partitions.every:
                partition.full_until = float("-inf")
        for queue_key in queue_keys:
            self._lanes.key_ended(queue_key, self._loop.time())

    async def run(self) -> None:
        """Claim until cancelled, or with `until_idle` until no job is due or running and all results are written."""
        # Cursors and snapshots are valid for one connection: the next one may lead to another server, or to the same server
        # restored from a dump, with other transaction ids and another clock.
        self._lanes = self._new_lanes()
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
                elif self._idleness.is_busy and not self._lanes.backlog.open:
                    await self._sleep()

    async def _is_idle(self, connection: AsyncConnection) -> bool:
        """Return whether no work is left. No job is running, and only this claimer could start one.

        The last statement decides: all results are written before it, and its snapshot includes every job that was committed
        before it, even those that the last claim missed.
        """
        await self._completer.drained()
        self._unblocker.search()
        await self._unblocker.drained()
        await self._lanes.arrivals.scan_all(connection)
        if await self.claim(connection) > 0 or self._capacity_in() is not None:
            return False
        if any(map(self._quarantine.quarantined, (RefusedWrite.UNBLOCK, RefusedWrite.START, RefusedWrite.CLAIM))):
            return True  # it would find jobs whose results cannot be written
        # Queues with a selector are left out: a selector may reject jobs that are due.
        lanes = [lane for partition, of in self._known_lanes().items() if partition.selection is None for lane in of]
        if await self._claims.remaining(connection, lanes, self._lanes.types):
            await asyncio.sleep(_NOT_ALLOWED_DELAY)
            return False
        return True

    async def release_orphaned_claims(self, connection: AsyncConnection) -> int:
        """Release jobs that are leased by this worker in the database but unknown here; return how many.

        A claim whose response was lost leaves such jobs: no other worker may claim them while our heartbeats continue.
        """
        # Read before the query: a job that ends during it is not orphaned. No claim runs at the same time.
        known = self._executor.attempts | self._completer.attempts
        for job_id in self._limited.keys() - {job_id for job_id, _ in known}:
            self.job_ended(job_id)
        rows = await self._held.execute(connection, {"worker_id": self._worker_id})
        orphans = [job for job in (ClaimedJob(*row) for row in rows) if (job.id, job.attempt) not in known]
        for job in orphans:
            self._completer.put(released(job))
        return len(orphans)

    def _new_lanes(self) -> _Lanes:
        """Return the lanes of what is not paused, none of them known yet."""
        most = self._concurrency = self._executor.concurrency

        def binding(limit: int | None) -> int | None:
            return limit if limit is not None and limit < most else None

        limits = {queue: binding(n) for queue, n in self._options.limits.items() if not self._applied.queue(queue).is_paused}
        types = [name for name in self._types if not self._applied.type(name).is_paused]
        partitions = Partitions(
            limits,
            types,
            {name: n for name, n in self._slots.items() if binding(n) is not None},
            executor=self._executor,
            model=self._model,
            controls=self._applied,
            selectors=self._selectors,
        )
        return _Lanes(
            partitions,
            self._model,
            queues=list(limits),
            types=types,
            fair=self._options.fair,
            weight=lambda name: self._applied.queue(name).weight,
            clock=self._loop.time,
        )

    def _apply_settings(self) -> None:
        """Apply settings that have changed since the last claim. Never during one: its cursors would be gone."""
        before, self._applied = self._applied, self._controls()
        if _partitions_of(before) != _partitions_of(self._applied) or self._concurrency != self._executor.concurrency:
            self._lanes = self._new_lanes()
        else:
            self._lanes.planner.reweigh()

    async def claim(self, connection: AsyncConnection) -> int:
        """Claim for every partition with a free slot and start what came; return how many jobs."""
        self._claim_began = self._loop.time()
        if self._controls() is not self._applied or self._concurrency != self._executor.concurrency:
            self._apply_settings()
        self._exclude()
        lanes = self._lanes
        lanes.backlog.wake(self._loop.time())
        await lanes.arrivals.keep_up(connection)
        if self._was_notified:
            # First where jobs were a moment ago: the catch-up that finds a new lane costs another round trip.
            self._was_notified = False
            if not lanes.backlog.open:
                lanes.backlog.open_lingering()
        started = await self._claim_all(connection)
        while started == 0 and lanes.arrivals.may_have_news:
            # No lane is open. Check for new arrivals before going to sleep; a full scan is followed by a catch-up.
            is_last = not lanes.arrivals.is_scanning
            await lanes.arrivals.ask(connection)
            lanes.backlog.wake(self._loop.time())
            if lanes.backlog.open:
                started = await self._claim_all(connection)
            if is_last:
                break
        return started

    def _exclude(self) -> None:
        """Exclude quarantined jobs and limits; request a full scan when one of the jobs is to be retried."""
        before, self._claims.excluded = self._claims.excluded, self._quarantine.quarantined(RefusedWrite.START)
        if before and not set(before) <= set(self._claims.excluded):
            self._lanes.arrivals.request_full_scan()
        for partition in self._lanes.partitions.every:
            limits = partition.limits
            partition.is_refused = limits is not None and self._quarantine.is_quarantined(RefusedWrite.CLAIM, limits.name)

    def _known_lanes(self) -> dict[Partition, list[Lane]]:
        known: dict[Partition, list[Lane]] = {}
        for lane in self._lanes.cursors.of_lane:
            if (partition := self._lanes.partitions.of_lane(lane)) is not None:
                known.setdefault(partition, []).append(lane)
        return known

    async def _leave_out(self, connection: AsyncConnection, lanes: Mapping[Partition, Sequence[Lane]]) -> bool:
        """Quarantine the jobs that made a claim of these lanes fail; return whether there were any."""
        windows = [one.selection.window for one in lanes if one.selection is not None]
        refused = await self._claims.refused(connection, lanes, max([_MOST, *windows]))
        await self._quarantine.add(RefusedWrite.START, refused)
        before = len(self._claims.excluded)
        self._exclude()
        return len(self._claims.excluded) > before

    async def _claim_all(self, connection: AsyncConnection) -> int:
        is_retry = False
        while True:
            known = self._lanes.left
            try:
                started = await self._claim_once(connection)
            except Exception as error:
                if isinstance(error, OSError) or not is_of_a_row(error):  # an answer that was lost
                    raise
                found = await self._leave_out(connection, self._known_lanes())
                # If none is found, try once more: the cause may have disappeared.
                if is_retry and not found:
                    raise
                is_retry = not found
                continue
            # Lanes that were empty and late arrivals that may not start now are out of the way: others may be planned now.
            if started or not 0 < self._lanes.left < known:
                return started

    async def _claim_once(self, connection: AsyncConnection) -> int:
        """Divide the free slots. Partitions with limits or selectors are claimed one by one, all others by one statement.

        Slots that the former leave unused are divided again among the others.
        """
        # At most the number of slots when the lanes were created: a limit that was not below it then may be now.
        free = min(self._executor.free, self._concurrency - self._executor.running, _MOST)
        planner, now = self._lanes.planner, self._loop.time()
        started: Counter[Queue] = Counter()
        tried: set[Partition] = set()
        while (left := free - started.total()) > 0 and (shares := planner.share(left, now, tried)):
            before = started.total()
            apart = {one: of for one, of in shares.items() if not one.is_plain}
            for partition, of in apart.items():
                limit = min(sum(share.quota for share in of), free - started.total())
                if limit > 0:
                    started += await self._start(self._claim_apart(connection, partition, of, limit))
                tried.add(partition)
            plain = {one: of for one, of in shares.items() if one.is_plain}
            if plain and (limit := free - started.total()) > 0:
                started += await self._start(self._claim_together(connection, plain, limit))
            if not apart or started.total() - before >= left:
                break
        planner.charge_queues(started)
        return started.total()

    async def _start(self, claim: Awaitable[list[ClaimedJob]]) -> Counter[Queue]:
        """Start the jobs of a claim; return how many of each queue."""
        try:
            jobs = await claim
        except Exception as error:
            if not is_of_ordering(error):
                raise
            self.poll_again()  # another claim has just started a job of the same ordering key, which is visible now
            return Counter()
        if jobs:
            self._started_at = self._loop.time()
        for job in jobs:
            self._ordered = self._ordered or job.ordering_key is not None
            self._executor.start(job)
        await self._quarantine.written(RefusedWrite.START, [job.id for job in jobs])
        own = self._lanes.partitions.own_types
        return Counter((job.queue, job.type_name if job.type_name in own else "") for job in jobs)

    async def _take(self, connection: AsyncConnection, plan: Plan) -> tuple[list[ClaimedJob], datetime]:
        return await self._claims.take(connection, self._lanes.cursors.parameters(plan, self._claims.excluded))

    async def _claim_together(
        self, connection: AsyncConnection, shares: Mapping[Partition, Sequence[Share]], limit: int
    ) -> list[ClaimedJob]:
        """Claim for all partitions without limits across workers and without selectors, by one statement."""
        plan = self._lanes.planner.plan(shares, limit)
        jobs, at = await self._take(connection, plan)
        self._lanes.claimed(plan, shares, jobs, at)
        return jobs

    async def _claim_apart(
        self, connection: AsyncConnection, partition: Partition, shares: Sequence[Share], limit: int
    ) -> list[ClaimedJob]:
        """Claim for one partition with a selector, or limits, which are quarantined if they cannot be read or written."""
        try:
            chosen = await self._select(connection, partition, shares, limit)
            if chosen is not None and not chosen:
                return []
            if (limits := partition.limits) is None:
                plan = self._plan(partition, shares, limit, chosen, {})
                jobs, at = await self._take(connection, plan)
                self._claimed(partition, plan, shares, jobs, at)
                return jobs
            while (found := await self._claim_under(connection, partition, limits, shares, limit, chosen=chosen)) is None:
                pass
        except Exception as error:
            is_of_row = is_of_a_row(error) and not isinstance(error, OSError) and not is_of_ordering(error)
            if partition.limits is None or not is_of_row:
                raise
            if await self._leave_out(connection, {partition: self._known_lanes().get(partition, [])}):
                return await self._claim_apart(connection, partition, shares, limit)
            await self._quarantine.add(RefusedWrite.CLAIM, [(partition.limits.name, error)])
            partition.is_refused = True
            return []
        await self._quarantine.written(RefusedWrite.CLAIM, [limits.name])
        return found

    async def _claim_under(
        self,
        connection: AsyncConnection,
        partition: Partition,
        limits: Limits,
        shares: Sequence[Share],
        limit: int,
        *,
        chosen: Sequence[Any] | None,
    ) -> list[ClaimedJob] | None:
        """Claim as many jobs as the limits across all workers allow; return None if the claim must be repeated.

        It must be repeated if the jobs exceeded a rate, so that fewer may fit, or if another claim used the rate at the same
        time. No job is started before the commit.
        """
        lanes, jobs, plan = self._lanes, list[ClaimedJob](), None
        names = (
            lanes.planner.names(shares) if chosen is None else sorted({one.queue_key for one in chosen if one.fairness_key})
        )
        at: Any = None
        try:
            async with transaction(connection):
                self._ended = []
                limit, capacities = await limits.capacity(connection, limit, names)
                now = self._loop.time()
                partition.full_until = now + limits.retry_in if limits.retry_in else float("-inf")
                if chosen is None:
                    lanes.back_off(capacities, now)
                if limit > 0:
                    capacities = {name: capacities.get(name, limit) for name in names}
                    plan = self._plan(partition, shares, limit, chosen, capacities)
                    jobs, at = await self._take(connection, plan)
                    await limits.rates.spend(connection, jobs)
        except (TooHeavyError, OutdatedError):  # the cursors have not moved
            return None
        if jobs and len(jobs) == limits.left:  # all that the count left: another one would find nothing
            partition.full_until = max(partition.full_until, self._loop.time() + FULL)
        self._count_again(self._ended)  # the count may have run before these ends were committed
        self._limited |= {job.id: job.queue_key for job in jobs}
        if plan is not None:
            self._claimed(partition, plan, shares, jobs, at)
        return jobs

    def _plan(
        self,
        partition: Partition,
        shares: Sequence[Share],
        limit: int,
        chosen: Sequence[Any] | None,
        capacities: dict[str, int],
    ) -> Plan:
        """Return the plan for one partition: of its open lanes, or of what its selector chose, within `capacities`."""
        if chosen is None or partition.selection is None:
            return self._lanes.planner.plan({partition: shares}, limit, capacities)
        late: dict[Any, str] = {}
        for one in chosen:
            if capacities.get(one.queue_key, 1) > 0 and one.id in partition.selection.held:
                if one.queue_key in capacities:
                    capacities[one.queue_key] -= 1
                late[one.id] = partition.selection.held[one.id][1]
        return Plan([Allocation(partition.types, 0, [])], late, limit)

    def _claimed(self, partition: Partition, plan: Plan, shares: Sequence[Share], jobs: list[ClaimedJob], at: Any) -> None:
        if partition.selection is None:
            self._lanes.claimed(plan, {partition: shares}, jobs, at)
            return
        place = {job_id: place for place, job_id in enumerate(plan.late)}
        jobs.sort(key=lambda job: place[job.id])
        partition.selection.started(jobs)
        for share in shares:
            self._lanes.planner.retain(share.queue, bool(partition.selection.held))

    async def _select(
        self, connection: AsyncConnection, partition: Partition, shares: Sequence[Share], limit: int
    ) -> list[Any] | None:
        """Read the due jobs of a queue with a selector; return those that it chose, best first. None without a selector."""
        if (selection := partition.selection) is None:
            return None
        lanes, capacity = self._lanes, selection.capacity
        wanted = [share._replace(quota=capacity) for share in shares]
        plan = lanes.planner.plan({partition: wanted}, capacity)
        new, at = await selection.read(
            connection, lanes.cursors.parameters(plan, self._claims.excluded), self._claims.excluded
        )
        lanes.claimed(plan, {partition: wanted}, new, at)
        for share in shares:
            lanes.planner.retain(share.queue, bool(selection.held))
        return await selection.choose(limit, self._loop.time())

    async def _let_go(self) -> None:
        """After a quiet time, close the unused connections except one, which an idle worker's components take in turn."""
        pool: Any = self._engine.pool
        is_quiet = self._executor.running == 0 and self._loop.time() - self._started_at > _QUIET
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
        """Return in how many seconds a limit that the last claim found reached may have capacity; None without such a limit.

        Zero if that time has already passed.
        """
        waiting = (one for one in self._lanes.planner.waiting() if not one.is_refused)
        ends = [one.full_until for one in waiting if one.full_until > self._claim_began]
        return max(min(ends) - self._loop.time(), 0.0) if ends else None

    async def _sleep(self) -> None:
        """Sleep until a job may be due, or until a slot becomes free that a queue with a limit needs."""
        now, lanes = self._loop.time(), self._lanes
        seconds = self._options.poll_interval.total_seconds()
        times = [self._idleness.poll_in(), self._capacity_in()]
        times += [self._quarantine.retry_in(write, self._claim_began) for write in (RefusedWrite.START, RefusedWrite.CLAIM)]
        times.append(lanes.arrivals.full_scan_in())
        if (opens_at := lanes.backlog.next_at) is not None:
            times.append(max(opens_at - now, _DEBOUNCE))
        if any(one.selection is not None and one.selection.held for one in lanes.partitions.every):
            times.append(_SELECT_AGAIN)
        seconds = min([seconds, *(time for time in times if time is not None)])
        waits = [asyncio.ensure_future(self._woken.wait())]
        if self._until_idle or any(one.has_capacity_of_its_own for one in lanes.partitions.every):
            waits.append(asyncio.ensure_future(self._executor.changed.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _partitions_of(controls: Controls) -> tuple[Any, ...]:
    """Return the settings that determine partitions and pauses."""
    return controls.paused_queues, controls.paused_types, controls.limited
