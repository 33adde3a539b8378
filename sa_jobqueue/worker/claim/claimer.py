"""Claims due jobs for the free slots, and decides how long to sleep when there are none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.splitting import is_of_a_row
from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import whole
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements import leases
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.background.listener import Hints, Listener
from sa_jobqueue.worker.background.settings import Controls
from sa_jobqueue.worker.claim.claims import Claims, is_of_ordering
from sa_jobqueue.worker.claim.dividing import Divided
from sa_jobqueue.worker.claim.freed import Freed
from sa_jobqueue.worker.claim.groups import Group, Groups, Quotas
from sa_jobqueue.worker.claim.limits import FULL, Limits, transaction
from sa_jobqueue.worker.claim.next_due import NextDue
from sa_jobqueue.worker.claim.rates import OutdatedError, TooHeavyError
from sa_jobqueue.worker.claim.scout import Scout
from sa_jobqueue.worker.claim.selectors import ChosenGroup, Selectors
from sa_jobqueue.worker.claim.turns import Turn, asked_of, looking_of, turn_of
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
"""Seconds a woken worker keeps looking: longer than the silence a producer keeps after waking it."""
_GLANCE: Final = 0.005
"""Seconds until a woken worker's next look, then twice as many each time: what came within the silence is found at once."""
_HELD_OFF: Final = 0.02
"""Seconds until a worker that may not start anything now asks again."""
_MOST: Final = 500
"""Most jobs of one claim."""
_STRAYS_EVERY: Final = 60.0
"""Seconds between two checks that every job we hold is one we know of."""


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
        self._claims = Claims(model, worker_id=worker_id, grace=options.heartbeat_timeout, clock=self._loop.time)
        self._next_due = NextDue(model)
        self._held = compiled(leases.held, model)
        self._model = model
        self._ordered = False
        self._freed = Freed(tell=unblocker.notify_freed, recount=unblocker.recount_freed)
        self._controls = controls
        self._obeyed = Controls()
        self._divided = Divided()
        self._slots = {kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None}
        self._scout = Scout(model, self._types)
        self._selectors = Selectors(jobs.selectors, model, worker_id=worker_id, events=events)
        self._plan = self._planned()
        self._woken = asyncio.Event()
        self._awake_until = 0.0
        self._glance = _GLANCE
        self._rested = self._spared = False
        self._freed_meanwhile: set[str] | None = None
        """Limits that notifications have named since a count began; None while nothing is counted."""
        self._is_again = False
        self._connected_at = float("-inf")
        self.on_reconnected: Callable[[], None] = lambda: None
        """Called when it has a connection again after it lost one, before it claims on it."""
        self.until_idle = False
        """Whether `run` returns when nothing is due, nothing runs, every end is written and passed on."""

    def hear(self, queues: Hints) -> None:
        """Poll now: a notification named these queues (None: any), which may have due jobs."""
        for queue in [None] if queues is None else queues:
            self.wake(queue)

    def wake(self, queue: str | None = None) -> None:
        """Look now: something of this queue (None: of any) may be due."""
        if queue is None or whole(queue) in self._options.limits:
            self._scout.hint(queue)
            self._plan.stir(queue)
            self._awake_until = self._loop.time() + _AWAKE
            self._glance = _GLANCE
            self._next_due.forget()
            self._woken.set()

    def listen_by(self, listener: Listener) -> None:
        """Query the next due time less often while `listener` is listening."""
        self._next_due.is_told = listener.listening.is_set

    def look(self) -> None:
        """Look once more before the next rest: this worker just put a job back, due sooner than it may know."""
        self._scout.hint(None)
        self._next_due.forget()
        self._woken.set()

    def follow(self, job_id: Any) -> None:
        """Look once more if a job that has just ended may let another start: of its ordering key, or under its limit."""
        self._plan.follow(self._freed.end(job_id), self._loop.time())
        if self._ordered or self._plan.is_limited:
            self._woken.set()

    def ask_again(self, limits: Hints) -> None:
        """Look now if this worker found no room under one of these limits, such as `queue mail`, that has some again."""
        if limits is None:
            self.look()
            return
        if self._freed_meanwhile is not None:
            self._freed_meanwhile.update(limits)
        for limit in limits:
            if self._plan.had_no_room(limit, self._loop.time()):
                self._woken.set()

    async def run(self) -> None:
        """Claim until cancelled, or until idle if so asked."""
        with self._freed.own_turn():
            await self._run()

    async def _run(self) -> None:
        # What is remembered of the database holds for one connection: the next one may lead to another server, or to the
        # same one restored from a dump, whose transactions and clock are not those that it was learnt from.
        self._plan = self._planned()
        self._next_due.forget()
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
                    if self.until_idle and self._executor.running == 0 and self._plan.again_in() is None:
                        if await self._is_idle(connection):
                            return
                        continue
                    await self._rest(connection)
                elif 0 < self._executor.free < self._executor.concurrency // 2:
                    await asyncio.sleep(_PACE)
                elif self._loop.time() < self._awake_until and not (self._plan.may_have_more or self._spared):
                    await self._rest(connection)

    async def _is_idle(self, connection: AsyncConnection) -> bool:
        """Return whether there is nothing left to do. Nothing runs, and only this claimer could start something.

        The last statement decides, by its own snapshot: every end is written by then, and what others committed before it is
        seen by it, whatever the claim before has missed.
        """
        await self._completer.drained()
        self._unblocker.search()
        await self._unblocker.drained()
        self._plan.reset(self._loop.time())
        if await self.claim(connection) > 0 or self._plan.again_in() is not None:
            return False
        if any(map(self._quarantine.resting, (RefusedWrite.UNBLOCK, RefusedWrite.START, RefusedWrite.CLAIM))):
            return True  # it would find what cannot be written
        if await self._claims.remaining(connection, self._plan.groups):
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

    def _planned(self) -> Groups:
        """Return the lanes of what is not paused, each scanned from its start."""
        limits = {queue: limit for queue, limit in self._options.limits.items() if not self._obeyed.queue(queue).is_paused}
        types = [name for name in self._types if not self._obeyed.type(name).is_paused]
        plan = Groups(
            limits,
            types,
            self._slots,
            executor=self._executor,
            model=self._model,
            controls=self._obeyed,
            divided=self._divided,
            fair=self._options.fair,
            selectors=self._selectors,
        )
        plan.reweigh({queue: told.weight for queue, told in self._obeyed.queues.items()})
        plan.reset(self._loop.time())
        self._scout.reset()
        return plan

    def _obey(self) -> None:
        """Take in what was said since the last claim. Never during one: it moves the floors it was given."""
        before, self._obeyed = self._obeyed, self._controls()
        self._divided.tell(self._obeyed)
        self._next_due.forget()
        if _lanes_of(before) != _lanes_of(self._obeyed):
            # Fresh floors: what came to a lane or of a type that was left out may lie behind the old ones.
            self._plan = self._planned()
        else:
            self._plan.reweigh({queue: told.weight for queue, told in self._obeyed.queues.items()})

    async def claim(self, connection: AsyncConnection) -> int:
        """Claim for every group with a free slot and start what came; return how many jobs."""
        if self._controls() is not self._obeyed:
            self._obey()
        self._exclude()
        await self._look(connection, idle=False)
        started = await self._claim_all(connection)
        # Where a limit left no room, there may be plenty: what is not known of need not be looked for.
        if started == 0 and not self._plan.is_full and await self._look(connection, idle=True):
            started = await self._claim_all(connection)
        self._rested = False
        return started

    async def _look(self, connection: AsyncConnection, *, idle: bool) -> bool:
        """Look for parts of our queues, where that is due; return whether any has a job that is."""
        groups, now = self._plan.groups, self._loop.time()
        asleep = idle and (now >= self._awake_until or self.until_idle)
        if self._scout.is_due(now, idle=idle, asleep=asleep, told=self._next_due.is_told()):
            await self._scout.look(connection, groups, now, self._loop.time, asleep=asleep)
        for group in groups:
            group.parts.wake(now)
        return any(group.is_ready for group in groups)

    def _exclude(self) -> None:
        """Leave out the jobs that rest in quarantine, and read all lanes again when one of them is to be tried again."""
        before, self._claims.excluded = self._claims.excluded, self._quarantine.resting(RefusedWrite.START)
        if before and not set(before) <= set(self._claims.excluded):
            self._read_again()

    def _read_again(self) -> None:
        self._plan.reset(self._loop.time())
        self._scout.reset()

    async def _leave_out(self, connection: AsyncConnection, groups: Sequence[Group], error: DBAPIError) -> bool:
        """Put the jobs in quarantine that made a claim for these groups fail; return whether there were any."""
        if not is_of_a_row(error):
            return False
        self._read_again()  # what the claim has read of lanes and parts, and could not commit
        refused = await self._claims.refused(connection, groups, _MOST)
        await self._quarantine.add(RefusedWrite.START, refused)
        before = len(self._claims.excluded)
        self._exclude()
        return len(self._claims.excluded) > before

    async def _claim_all(self, connection: AsyncConnection) -> int:
        is_again = False
        while True:
            try:
                return await self._claim_turns(connection)
            except DBAPIError as error:
                found = await self._leave_out(connection, self._plan.groups, error)
                # Once more where none is found: what was refused a moment ago may not be refused now.
                if not is_of_a_row(error) or (is_again and not found):
                    raise
                is_again = not found

    async def _claim_turns(self, connection: AsyncConnection) -> int:
        self._claims.began_at = None
        free = min(self._executor.free, _MOST)
        started: Counter[str] = Counter()
        for is_plain, run in groupby(self._plan.plan(free), key=lambda turn: turn[0].is_plain):
            claim = self._claim_together if is_plain else self._claim_apart
            if (left := free - started.total()) > 0:
                started += await claim(connection, list(run), left)
        self._plan.take(started, free)
        return started.total()

    async def _claim_together(self, connection: AsyncConnection, turns: Quotas, free: int) -> Counter[str]:
        """Claim for groups with one statement, in turn, as if each had claimed what those before it left."""
        now, started = self._loop.time(), Counter[str]()
        looking = looking_of(turns, now, idle=self._rested, alike=not self._plan.is_wide)
        for group, quota in turns:
            if group.name not in looking and (owed := min(group.ageing.due(now), quota, free - started.total())):
                started[group.name] += await self._claim_longest_waiting(connection, group, owed)
        others = [turn for turn in turns if not started[turn[0].name]]
        spare = now if self._plan.is_wide and not self._spared else None
        while others and (left := free - started.total()) > 0:
            asked, others = asked_of(others, looking, left, spare)
            started += await self._take(connection, asked, left) if asked else Counter()
        # What was left out has its turn where others leave a slot free.
        self._spared = spare is not None and len(looking) < len(turns) and started.total() < free
        if not started.total() and len(looking) < len(turns):
            # Nothing ahead of any: before that is taken for idleness, look behind the floors as well.
            looking = looking_of(turns, self._loop.time(), idle=True)
            started += await self._take(connection, asked_of(turns, looking, free, None)[0], free)
        return started

    async def _take(self, connection: AsyncConnection, asked: Sequence[Turn], free: int) -> Counter[str]:
        try:
            taken = await self._claims.take(connection, asked, free)
        except IntegrityError as error:
            if not is_of_ordering(error):
                raise
            self.look()  # now it is visible
            return Counter()
        started: Counter[str] = Counter()
        for turn, (allowed, jobs) in zip(asked, taken, strict=False):
            await self._start(turn.group, jobs)
            turn.group.take(turn.shares, jobs, allowed)
            started[turn.group.name] = len(jobs)
        return started

    async def _claim_apart(self, connection: AsyncConnection, turns: Quotas, free: int) -> Counter[str]:
        """Claim for groups one by one: those under limits across workers, and those with a selector."""
        started: Counter[str] = Counter()
        for group, quota in turns:
            if (limit := min(quota, free - started.total())) > 0:
                started[group.name] = await self._claim_limited(connection, group, limit)
        return started

    async def _claim_limited(self, connection: AsyncConnection, group: Group, limit: int) -> int:
        """Claim for one group; where its limits cannot be read or written, leave it out for a while."""
        if group.limits is None:
            return await self._claim_group(connection, group, limit)
        name = group.limits.name
        if self._quarantine.is_resting(RefusedWrite.CLAIM, name):
            return 0
        try:
            started = await self._claim_group(connection, group, limit)
        except DBAPIError as error:
            if not is_of_a_row(error):
                raise
            group.limits.again_in = 0.0
            if await self._leave_out(connection, [group], error):
                return await self._claim_limited(connection, group, limit)
            await self._quarantine.add(RefusedWrite.CLAIM, [(name, error)])
            return 0
        await self._quarantine.written(RefusedWrite.CLAIM, [name])
        return started

    async def _claim_group(self, connection: AsyncConnection, group: Group, limit: int) -> int:
        behind = True
        if isinstance(group, ChosenGroup):
            read_at = await group.offer(connection, limit, self._loop.time, self._claims.excluded)
            self._claims.began_at = self._claims.began_at or read_at
        else:
            behind = group.floors.prepare(self._loop.time(), idle=self._rested)
        try:
            taken = await self._claim_planned(connection, group, limit, behind=behind)
        except IntegrityError as error:  # as above
            if not is_of_ordering(error):
                raise
            self.look()
            return 0
        if taken == 0 and not behind and not (group.limits is not None and group.limits.again_in):
            # Nothing ahead: before that is taken for idleness, look behind the floors as well.
            group.floors.prepare(self._loop.time(), idle=True)
            taken = await self._claim_planned(connection, group, limit, behind=True)
        return taken

    async def _claim_planned(self, connection: AsyncConnection, group: Group, limit: int, *, behind: bool) -> int:
        if group.limits is not None:
            if self._freed.takes_all(group.limits):
                group.limits.again_in = FULL
                return 0
            while (taken := await self._claim_under(group.limits, connection, group, limit, behind=behind)) is None:
                continue
            return taken
        return (await self._take(connection, [turn_of(group, limit, looks=behind)], limit)).total()

    async def _claim_under(
        self, limits: Limits, connection: AsyncConnection, group: Group, limit: int, *, behind: bool
    ) -> int | None:
        """Claim what limits across all workers let start; None where it is to be done again.

        What came weighed too much, and fewer may fit; or another claim was quicker. Nothing is started before the commit.
        """
        jobs: list[ClaimedJob] = []
        try:
            async with transaction(connection):
                ended = self._freed.before(limits)
                heard = self._freed_meanwhile = set()
                try:
                    limit, rooms = await limits.room(connection, limit, group.names())
                finally:
                    self._freed_meanwhile = None
                group.put_off(rooms, self._loop.time())
                self.ask_again(heard)  # it may have counted before there was room, and have found none
                turn = turn_of(group, limit, rooms, looks=behind) if limit > 0 else None
                if turn is not None:
                    ((_, jobs),) = await self._claims.take(connection, [turn], limit)
        except (TooHeavyError, OutdatedError):  # raised before the floors have moved
            return None
        except BaseException:
            group.floors.reset(self._loop.time())
            raise
        self._freed.claimed(limits, ended, jobs)
        await self._start(group, jobs)
        if turn is not None:
            group.take(turn.shares, jobs, limit)
        return len(jobs)

    async def _start(self, group: Group, jobs: list[ClaimedJob]) -> None:
        for bucket in group.buckets:
            bucket.spend(jobs)
        for job in jobs:
            self._ordered = self._ordered or job.ordering_key is not None
            self._executor.start(job)
        await self._quarantine.written(RefusedWrite.START, [job.id for job in jobs])

    async def _claim_longest_waiting(self, connection: AsyncConnection, group: Group, limit: int) -> int:
        if (turn := await self._claims.longest_waiting(connection, group, limit)) is None:
            return 0  # it has its turn beside the others
        ((_, jobs),) = await self._claims.take(connection, [turn], limit)
        await self._start(group, jobs)
        group.take_aside(jobs, limit)
        return len(jobs)

    async def _wait_for_slot(self) -> None:
        self._executor.changed.clear()
        if self._executor.free <= 0:
            await self._executor.changed.wait()
        else:
            await asyncio.sleep(_PACE)

    async def _rest(self, connection: AsyncConnection) -> None:
        """Sleep until something may be due, or a slot that a limited queue needs becomes free."""
        now, again_in = self._loop.time(), self._plan.again_in()
        if now < self._awake_until:
            seconds, self._glance = self._glance, 2 * self._glance
        elif again_in is not None and again_in <= FULL:
            seconds = again_in  # too short to ask what is due meanwhile
        else:
            due_in = await self._next_due.seconds(connection, self._plan.lanes(), self._claims.began_at)
            seconds = min(self._options.poll_interval.total_seconds(), due_in)
        if again_in is not None:
            seconds = min(seconds, again_in)
        if (retry_in := self._quarantine.again_in(RefusedWrite.START)) is not None:
            seconds = min(seconds, retry_in)
        seconds = min(seconds, max(self._plan.parts_at() - now, _PACE), *(group.again_in for group in self._plan.groups))
        waits = [asyncio.ensure_future(self._woken.wait())]
        if self.until_idle or any(group.room is not None for group in self._plan.groups):
            waits.append(asyncio.ensure_future(self._executor.changed.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            # There was nothing ahead: what has come meanwhile is as likely behind the floors, and one claim looks for both.
            self._rested = again_in is None
        finally:
            for wait in waits:
                wait.cancel()


def _lanes_of(told: Controls) -> tuple[Any, ...]:
    """Return what of the controls decides over lanes and groups."""
    return told.paused_queues, told.paused_types, told.limited
