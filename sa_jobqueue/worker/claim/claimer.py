"""Claims due jobs for the free slots, and decides how long to sleep when there are none.

The story of one claim: read changed settings; learn which lanes have jobs (`arrivals`), if that is due; plan (`planner`);
claim (`claims`); move the cursors (`cursors`) and close the lanes that were read to their end (`backlog`). Where nothing was
found, catch up before going to sleep.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.splitting import is_of_a_row
from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import whole
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.listener import Hints
from sa_jobqueue.worker.background.settings import Controls
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.buckets import Buckets
from sa_jobqueue.worker.claim.claims import Claims, is_of_ordering
from sa_jobqueue.worker.claim.cursors import Cursors, Lane, Plan, Turn
from sa_jobqueue.worker.claim.freed import Freed
from sa_jobqueue.worker.claim.limits import FULL, SELDOM, transaction
from sa_jobqueue.worker.claim.partitions import Partition, Partitions, Queue
from sa_jobqueue.worker.claim.planner import Planner, Share
from sa_jobqueue.worker.claim.rates import OutdatedError, TooHeavyError
from sa_jobqueue.worker.claim.selectors import Selection, Selectors
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.finish.outcomes import released
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.run.executor import Executor

_PACE: Final = 0.004
"""Seconds between two claims while slots trickle free one by one: batches form, and no idle slot waits longer."""
_AWAKE: Final = 0.2
"""Seconds a woken worker keeps polling: longer than the silence a producer keeps after waking it."""
_GLANCE: Final = 0.005
"""Seconds until a woken worker's next poll, then twice as many each time: what came within the silence is found at once."""
_HELD_OFF: Final = 0.02
"""Seconds until a worker that may not start anything now asks again."""
_MOST: Final = 500
"""Most jobs of one claim."""
_STRAYS_EVERY: Final = 60.0
"""Seconds between two checks that every job we hold is one we know of."""
_ASK_AGAIN: Final = 0.5
"""Seconds until a selector that left candidates out is asked again, though nothing happens: its reasons may have changed."""


class _Lanes:
    """What one worker knows of its lanes, for as long as its partitions and its connection stay the same."""

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
        self.arrivals.on_survey = self._forget_held
        self._clock = clock
        self._put_off: dict[str, tuple[float, list[Lane]]] = {}
        """Fairness keys without capacity: for how many seconds, and their lanes."""

    def claimed(self, plan: Plan, shares: Mapping[Partition, Sequence[Share]], jobs: Sequence[Any], at: Any) -> None:
        """Record what a claim of a plan has found, at `at` by the database's clock."""
        ended, started = self.cursors.claimed(plan, jobs, at)
        self.planner.charge(shares, started)
        self.backlog.read_to_end(ended, self._clock())
        self.arrivals.claimed()

    @property
    def left(self) -> int:
        """How many open lanes and late arrivals there are."""
        return len(self.backlog.open) + sum(map(len, self.cursors.late.values()))

    def put_off(self, rooms: Mapping[str, int], now: float) -> None:
        """Plan no more, for a while, fairness keys without capacity: they would be named before those that have some."""
        for part, room in rooms.items():
            if room > 0:
                self._put_off.pop(part, None)
                continue
            seconds = min(2 * self._put_off[part][0], SELDOM) if part in self._put_off else FULL
            lanes = self.planner.lanes_of_key(part)
            self._put_off[part] = seconds, lanes
            self.backlog.put_off(lanes, now + seconds)

    def follow(self, part: str, now: float) -> bool:
        """Plan a fairness key again, as one of its jobs has ended; return whether it was put off."""
        _, lanes = self._put_off.pop(part, (0.0, []))
        for lane in lanes:
            self.backlog.found(lane, now, now)
        return bool(lanes)

    def _forget_held(self) -> None:
        for partition in self.partitions.every:
            if partition.selection is not None:
                for one in partition.selection.forget():
                    lane = self.cursors.lane_of(one)
                    self.cursors.lower(lane, one.scheduled_at)
                    self.backlog.found(lane, 0.0, 0.0)


class Claimer(Component):
    """Claims for free slots only: what is claimed is started at once.

    Woken by a notification, a freed slot, the time the next job is due, or the poll interval. A failure between a
    claim's commit and its answer leaves jobs that this worker holds and does not know: the next run gives them back.
    Each run begins without cursors, counts and plans: its connection may lead to another server. One a worker.

    `may_start(since)`: whether a heartbeat that was sent after `since`, on the loop's clock, is fresh enough.
    """

    name = "claimer"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
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
    ) -> None:
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
        self._freed = Freed(unblocker.notify_freed)
        self._controls = controls
        self._obeyed = Controls()
        self._buckets = Buckets()
        self._slots = {kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None}
        self._selectors = Selectors(jobs.selectors, model, worker_id=worker_id, events=events)
        self._concurrency = 0
        """Of the worker, when its lanes were made: limits of this worker that are not below it have no partitions."""
        self._lanes = self._new_lanes()
        self._woken = asyncio.Event()
        self._was_notified = True
        self._awake_until = 0.0
        self._glance = _GLANCE
        self._freed_meanwhile: set[str] | None = None
        """Limits that notifications have named since a count began; None while nothing is counted."""
        self._is_again = False
        self._connected_at = float("-inf")
        self._claim_began = float("-inf")
        self.on_reconnected: Callable[[], None] = lambda: None
        """Called when it has a connection again after it lost one, before it claims on it."""
        self.until_idle = False
        """Whether `run` returns when nothing is due, nothing runs, every end is written and passed on."""

    def hear(self, queues: Hints) -> None:
        """Poll now: a notification named these queues (None: any), which may have due jobs."""
        for queue in [None] if queues is None else queues:
            self.wake(queue)

    def wake(self, queue: str | None = None) -> None:
        """Poll now: something of this queue (None: of any) may be due."""
        if queue is None or whole(queue) in self._options.limits:
            self._was_notified = True
            self._awake_until = self._loop.time() + _AWAKE
            self._glance = _GLANCE
            self._woken.set()

    def look(self) -> None:
        """Poll once more before the next rest: this worker just put a job back, due sooner than it may know."""
        self._woken.set()

    def follow(self, job_id: Any) -> None:
        """Poll once more if a job that has just ended may let another start: of its ordering key, or under its limit."""
        part = self._freed.end(job_id)
        if part is not None:
            for partition in self._lanes.partitions.every:
                partition.full_until = float("-inf")
            self._lanes.follow(part, self._loop.time())
        if self._ordered or self._lanes.partitions.is_limited:
            self._woken.set()

    def ask_again(self, limits: Hints) -> None:
        """Poll now if this worker found no capacity under one of these limits, such as `queue mail`, that has some again."""
        if limits is None:
            self.look()
            return
        if self._freed_meanwhile is not None:
            self._freed_meanwhile.update(limits)
        for limit in limits:
            kind, _, name = limit.partition(" ")
            for partition in self._lanes.partitions.every:
                if partition.limits is not None and partition.limits.covers((kind == "type", name)):
                    was_full = partition.full_until > float("-inf") or partition.selection is not None
                    partition.full_until = float("-inf")
                    if was_full or self._lanes.follow(name, self._loop.time()):
                        self._woken.set()

    async def run(self) -> None:
        """Claim until cancelled, or until idle if so asked."""
        with self._freed.own_turn():
            await self._run()

    async def _run(self) -> None:
        # What is remembered of the database holds for one connection: the next one may lead to another server, or to the
        # same one restored from a dump, whose transactions and clock are not those that it was learnt from.
        self._lanes = self._new_lanes()
        async with self._engine.connect() as connection:
            if self._is_again:
                # A heartbeat on the connection before it may not have registered this worker where jobs are claimed now.
                self._connected_at = self._loop.time()
                self.on_reconnected()
            self._is_again = True
            await self.give_back_strays(connection)
            strays_at = self._loop.time() + _STRAYS_EVERY
            while True:
                if self._loop.time() >= strays_at:
                    await self.give_back_strays(connection)
                    strays_at = self._loop.time() + _STRAYS_EVERY
                if self._executor.free <= 0 or self._completer.backlog > 4 * self._options.completion_batch_size:
                    await self._wait_for_slot()
                    continue
                if not self._may_start(self._connected_at):
                    await asyncio.sleep(_HELD_OFF)
                    continue
                # Cleared before polling, so that a notification from here on ends the pause that may follow.
                self._woken.clear()
                self._executor.changed.clear()
                if await self.claim(connection) == 0:
                    if self.until_idle and self._executor.running == 0 and self._again_in() is None:
                        if await self._is_idle(connection):
                            return
                        continue
                    await self._rest()
                elif 0 < self._executor.free < self._executor.concurrency // 2:
                    await asyncio.sleep(_PACE)
                elif self._loop.time() < self._awake_until and not self._lanes.backlog.open:
                    await self._rest()

    async def _is_idle(self, connection: AsyncConnection) -> bool:
        """Return whether there is nothing left to do. Nothing runs, and only this claimer could start something.

        The last statement decides, by its own snapshot: every end is written by then, and what others committed before it is
        seen by it, whatever the claim before has missed.
        """
        await self._completer.drained()
        self._unblocker.search()
        await self._unblocker.drained()
        await self._lanes.arrivals.survey_all(connection)
        if await self.claim(connection) > 0 or self._again_in() is not None:
            return False
        if any(map(self._quarantine.resting, (RefusedWrite.UNBLOCK, RefusedWrite.START, RefusedWrite.CLAIM))):
            return True  # it would find what cannot be written
        # Of a queue with a selector nothing is asked: it may leave jobs that are due.
        lanes = [lane for partition, of in self._known_lanes().items() if partition.selection is None for lane in of]
        if await self._claims.remaining(connection, lanes, self._lanes.types):
            await asyncio.sleep(_HELD_OFF)
            return False
        return True

    async def give_back_strays(self, connection: AsyncConnection) -> int:
        """Release jobs that are leased by this worker in the database but unknown here; return how many.

        A claim whose response was lost leaves such jobs: no other worker may claim them while our heartbeats continue.
        """
        # Read before the query: a job that ends during it is no orphaned claim, and nothing is claimed meanwhile.
        known = self._executor.attempts | self._completer.attempts
        self._freed.keep({job_id for job_id, _ in known})
        rows = await self._held.execute(connection, {"worker_id": self._worker_id})
        strays = [job for job in (ClaimedJob(*row) for row in rows) if (job.id, job.attempt) not in known]
        for job in strays:
            self._completer.put(released(job))
        return len(strays)

    def _new_lanes(self) -> _Lanes:
        """Return the lanes of what is not paused, none of them known yet."""
        most = self._concurrency = self._executor.concurrency

        def binding(limit: int | None) -> int | None:
            return limit if limit is not None and limit < most else None

        limits = {queue: binding(n) for queue, n in self._options.limits.items() if not self._obeyed.queue(queue).is_paused}
        types = [name for name in self._types if not self._obeyed.type(name).is_paused]
        partitions = Partitions(
            limits,
            types,
            {name: n for name, n in self._slots.items() if binding(n) is not None},
            executor=self._executor,
            model=self._model,
            controls=self._obeyed,
            buckets=self._buckets,
            selectors=self._selectors,
        )
        return _Lanes(
            partitions,
            self._model,
            queues=list(limits),
            types=types,
            fair=self._options.fair,
            weight=lambda name: self._obeyed.queue(name).weight,
            clock=self._loop.time,
        )

    def _obey(self) -> None:
        """Apply settings that have changed since the last claim. Never during one: its cursors would be gone."""
        before, self._obeyed = self._obeyed, self._controls()
        self._buckets.update(self._obeyed)
        if _partitions_of(before) != _partitions_of(self._obeyed) or self._concurrency != self._executor.concurrency:
            self._lanes = self._new_lanes()
        else:
            self._lanes.planner.reweigh()

    async def claim(self, connection: AsyncConnection) -> int:
        """Claim for every partition with a free slot and start what came; return how many jobs."""
        self._claim_began = self._loop.time()
        if self._controls() is not self._obeyed or self._concurrency != self._executor.concurrency:
            self._obey()
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
            # Nothing is open: before that is taken for idleness, ask what has come. A survey is followed by a catch-up.
            is_last = not lanes.arrivals.is_surveying
            await lanes.arrivals.ask(connection)
            lanes.backlog.wake(self._loop.time())
            if lanes.backlog.open:
                started = await self._claim_all(connection)
            if is_last:
                break
        return started

    def _exclude(self) -> None:
        """Leave out the jobs and limits that rest in quarantine; survey all lanes when such a job is to be tried again."""
        before, self._claims.excluded = self._claims.excluded, self._quarantine.resting(RefusedWrite.START)
        if before and not set(before) <= set(self._claims.excluded):
            self._lanes.arrivals.survey_again()
        for partition in self._lanes.partitions.every:
            limits = partition.limits
            partition.is_refused = limits is not None and self._quarantine.is_resting(RefusedWrite.CLAIM, limits.name)

    def _known_lanes(self) -> dict[Partition, list[Lane]]:
        known: dict[Partition, list[Lane]] = {}
        for lane in self._lanes.cursors.of_lane:
            if (partition := self._lanes.partitions.of_lane(lane)) is not None:
                known.setdefault(partition, []).append(lane)
        return known

    async def _leave_out(self, connection: AsyncConnection, lanes: Mapping[Partition, Sequence[Lane]]) -> bool:
        """Put the jobs in quarantine that made a claim for these lanes fail; return whether there were any."""
        windows = [one.selection.window for one in lanes if one.selection is not None]
        refused = await self._claims.refused(connection, lanes, max([_MOST, *windows]))
        await self._quarantine.add(RefusedWrite.START, refused)
        before = len(self._claims.excluded)
        self._exclude()
        return len(self._claims.excluded) > before

    async def _claim_all(self, connection: AsyncConnection) -> int:
        is_again = False
        while True:
            known = self._lanes.left
            try:
                started = await self._claim_once(connection)
            except DBAPIError as error:
                if not is_of_a_row(error):
                    raise
                found = await self._leave_out(connection, self._known_lanes())
                # Once more where none is found: what was refused a moment ago may not be refused now.
                if is_again and not found:
                    raise
                is_again = not found
                continue
            # Lanes that turned out to be empty, and late arrivals that may not start now, made way for others.
            if started or not 0 < self._lanes.left < known:
                return started

    async def _claim_once(self, connection: AsyncConnection) -> int:
        """Divide the free slots; claim one by one for limits and selectors, then with one statement for all the rest.

        What the former leave is divided again among the others.
        """
        # No more than it had slots when its lanes were made: a limit that did not bind then may bind now.
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
                    self._count(started, await self._claim_apart(connection, partition, of, limit))
                tried.add(partition)
            plain = {one: of for one, of in shares.items() if one.is_plain}
            if plain and (limit := free - started.total()) > 0:
                self._count(started, await self._claim_together(connection, plain, limit))
            if not apart or started.total() - before >= left:
                break
        planner.charge_queues(started)
        return started.total()

    def _count(self, started: Counter[Queue], jobs: Sequence[ClaimedJob]) -> None:
        for (queue, type_name), count in Counter([(job.queue, job.type_name) for job in jobs]).items():
            started[queue, type_name if type_name in self._lanes.partitions.own_types else ""] += count

    async def _claim_together(
        self, connection: AsyncConnection, shares: Mapping[Partition, Sequence[Share]], limit: int
    ) -> list[ClaimedJob]:
        lanes = self._lanes
        plan = lanes.planner.plan(shares, limit)
        try:
            jobs, at = await self._claims.take(connection, lanes.cursors.parameters(plan, self._claims.excluded))
        except IntegrityError as error:
            return self._of_ordering(error)
        lanes.claimed(plan, shares, jobs, at)
        await self._start(jobs)
        return jobs

    def _of_ordering(self, error: IntegrityError) -> list[ClaimedJob]:
        """Return that no job was started, since another claim has just started one of the same ordering key."""
        if not is_of_ordering(error):
            raise error
        self.look()  # now it is visible
        return []

    async def _claim_apart(
        self, connection: AsyncConnection, partition: Partition, shares: Sequence[Share], limit: int
    ) -> list[ClaimedJob]:
        """Claim for one partition; where its limits cannot be read or written, leave it out for a while."""
        if partition.limits is None:
            return await self._claim_partition(connection, partition, shares, limit)
        name = partition.limits.name
        try:
            jobs = await self._claim_partition(connection, partition, shares, limit)
        except DBAPIError as error:
            if not is_of_a_row(error):
                raise
            if await self._leave_out(connection, {partition: self._known_lanes().get(partition, [])}):
                return await self._claim_apart(connection, partition, shares, limit)
            await self._quarantine.add(RefusedWrite.CLAIM, [(name, error)])
            partition.is_refused = True
            return []
        await self._quarantine.written(RefusedWrite.CLAIM, [name])
        return jobs

    async def _claim_partition(
        self, connection: AsyncConnection, partition: Partition, shares: Sequence[Share], limit: int
    ) -> list[ClaimedJob]:
        chosen: list[Any] | None = None
        if partition.selection is not None:
            chosen = await self._offer(connection, partition, partition.selection, shares, limit)
            if not chosen:
                return []
        try:
            if partition.limits is None:
                plan = self._plan(partition, shares, limit, chosen, {})
                jobs, at = await self._claims.take(connection, self._lanes.cursors.parameters(plan, self._claims.excluded))
                self._claimed(partition, plan, shares, jobs, at)
                await self._start(jobs)
                return jobs
            if self._freed.takes_all(partition.limits):
                partition.full_until = self._loop.time() + FULL
                return []
            while True:
                found = await self._claim_under(connection, partition, shares, limit, chosen)
                if found is not None:
                    return found
        except IntegrityError as error:
            return self._of_ordering(error)

    async def _claim_under(
        self,
        connection: AsyncConnection,
        partition: Partition,
        shares: Sequence[Share],
        limit: int,
        chosen: Sequence[Any] | None,
    ) -> list[ClaimedJob] | None:
        """Claim what limits across all workers let start; None where it is to be done again.

        What came weighed too much, and fewer may fit; or another claim was quicker. Nothing is started before the commit.
        """
        lanes, jobs, plan, limits = self._lanes, list[ClaimedJob](), None, partition.limits
        if limits is None:
            return []
        names = lanes.planner.names(shares) if chosen is None else sorted({one.part for one in chosen if one.fairness_key})
        at: Any = None
        try:
            async with transaction(connection):
                ended = self._freed.before(limits)
                heard = self._freed_meanwhile = set()
                try:
                    limit, rooms = await limits.room(connection, limit, names)
                finally:
                    self._freed_meanwhile = None
                now = self._loop.time()
                partition.full_until = now + limits.again_in if limits.again_in else float("-inf")
                if chosen is None:
                    lanes.put_off(rooms, now)
                self.ask_again(heard)  # it may have counted before there was room, and have found none
                if limit > 0:
                    rooms = {name: rooms.get(name, limit) for name in names}
                    plan = self._plan(partition, shares, limit, chosen, rooms)
                    jobs, at = await self._claims.take(connection, lanes.cursors.parameters(plan, self._claims.excluded))
                    await limits.rates.spend(connection, jobs)
        except (TooHeavyError, OutdatedError):  # the cursors have not moved
            return None
        self._freed.claimed(limits, ended, jobs)
        if plan is not None:
            self._claimed(partition, plan, shares, jobs, at)
        await self._start(jobs)
        return jobs

    def _plan(
        self,
        partition: Partition,
        shares: Sequence[Share],
        limit: int,
        chosen: Sequence[Any] | None,
        rooms: dict[str, int],
    ) -> Plan:
        """Return the plan for one partition: of its open lanes, or of what a selector has chosen, within `rooms`."""
        if chosen is None or partition.selection is None:
            return self._lanes.planner.plan({partition: shares}, limit, rooms)
        late: dict[Any, str] = {}
        for one in chosen:
            if rooms.get(one.part, 1) > 0 and one.id in partition.selection.held:
                if one.part in rooms:
                    rooms[one.part] -= 1
                late[one.id] = partition.selection.held[one.id][1]
        return Plan([Turn(partition.types, 0, [])], late, limit)

    def _claimed(self, partition: Partition, plan: Plan, shares: Sequence[Share], jobs: list[ClaimedJob], at: Any) -> None:
        if partition.selection is None:
            self._lanes.claimed(plan, {partition: shares}, jobs, at)
            return
        place = {job_id: place for place, job_id in enumerate(plan.late)}
        jobs.sort(key=lambda job: place[job.id])
        partition.selection.started(jobs)
        for share in shares:
            self._lanes.planner.keep(share.queue, bool(partition.selection.held))

    async def _offer(
        self,
        connection: AsyncConnection,
        partition: Partition,
        selection: Selection,
        shares: Sequence[Share],
        limit: int,
    ) -> list[Any]:
        """Read what is due of a queue with a selector, and return what that has chosen, best first."""
        lanes, room = self._lanes, selection.room
        wanted = [share._replace(quota=room) for share in shares]
        plan = lanes.planner.plan({partition: wanted}, room)
        new, at = await selection.read(
            connection, lanes.cursors.parameters(plan, self._claims.excluded), self._claims.excluded
        )
        lanes.claimed(plan, {partition: wanted}, new, at)
        for share in shares:
            lanes.planner.keep(share.queue, bool(selection.held))
        return await selection.choose(limit, self._loop.time())

    async def _start(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs if self._lanes.partitions.has_buckets else ():
            partition = self._lanes.partitions.of_lane(self._lanes.cursors.lane_of(job))
            for bucket in partition.buckets if partition is not None else ():
                bucket.spend([job])
        for job in jobs:
            self._ordered = self._ordered or job.ordering_key is not None
            self._executor.start(job)
        await self._quarantine.written(RefusedWrite.START, [job.id for job in jobs])

    async def _wait_for_slot(self) -> None:
        self._executor.changed.clear()
        if self._executor.free <= 0:
            await self._executor.changed.wait()
        else:
            await asyncio.sleep(_PACE)

    def _again_in(self) -> float | None:
        """Return in how many seconds a limit may leave capacity that left none to the last claim; None without such a limit.

        Zero where that time has passed since that claim began.
        """
        now, waits = self._loop.time(), []
        for partition in self._lanes.planner.waiting():
            if partition.full_until > self._claim_began and not partition.is_refused:
                waits.append(max(partition.full_until - now, 0.0))
            waits += [bucket.wait() for bucket in partition.buckets if bucket.was_empty]
        return min(waits, default=None)

    async def _rest(self) -> None:
        """Sleep until something may be due, or a slot that a limited queue needs becomes free."""
        now, lanes = self._loop.time(), self._lanes
        if now < self._awake_until:
            seconds, self._glance = self._glance, 2 * self._glance
        else:
            seconds = self._options.poll_interval.total_seconds()
        times = [self._again_in()]
        times += [self._quarantine.again_in(write, self._claim_began) for write in (RefusedWrite.START, RefusedWrite.CLAIM)]
        times.append(lanes.arrivals.survey_in())
        if (opens_at := lanes.backlog.next_at) is not None:
            times.append(max(opens_at - now, _PACE))
        if any(one.selection is not None and one.selection.held for one in lanes.partitions.every):
            times.append(_ASK_AGAIN)
        seconds = min([seconds, *(time for time in times if time is not None)])
        waits = [asyncio.ensure_future(self._woken.wait())]
        if self.until_idle or any(one.has_capacity_of_its_own for one in lanes.partitions.every):
            waits.append(asyncio.ensure_future(self._executor.changed.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _partitions_of(controls: Controls) -> tuple[Any, ...]:
    """Return the settings that decide over partitions and pauses."""
    return controls.paused_queues, controls.paused_types, controls.limited
