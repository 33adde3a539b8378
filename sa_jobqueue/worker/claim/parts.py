"""Which parts of its queues a worker believes to have jobs, and what each of them may start next. No clock, no I/O.

A part is the jobs of one fairness key in a queue. Its lanes are read like all others, from floors of their
own, but only while something is known to be in them: a part is *ready* while one of its lanes has jobs that are due, and
forgotten when none has any. So what a claim costs depends neither on how many keys there have ever been, nor on how many
have jobs: it names the `MOST` that have had least for their weight, more of them after a claim that found little.

Within a queue the parts share by stride scheduling, as queues do (`planning`), and jobs without a key are one more of them.
A part that comes back has neither credit nor debt but for what it had before its share; among equals, one that has started
nothing yet goes first. So the first job of a key waits for no more than one job of each other key that has some waiting,
whatever their number: with fewer of those keys than free slots, it starts with the next claim.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sa_jobqueue.policies.fairness import whole
from sa_jobqueue.worker.claim.floors import Floors, Lane
from sa_jobqueue.worker.claim.planning import STRIDE, Share, beside, strides

MOST: Final = 64
"""Parts of a queue that one claim names at most: most have more than one job, so fewer fill it than there are slots."""
AFTER_FEW: Final = 256
"""The most of those after a claim that they did not fill: as many as would have filled it, had they as much to give."""
FULL: Final = 0.02
"""Seconds until a part that had no room is asked for again, then twice as many each time."""
SELDOM: Final = 0.5
"""The most of those; at once, where a job of it ends in this worker."""
_NEW: Final = 2**62
_ASKED: Final = 256
"""Drained lanes per query for their next due time."""


@dataclass(slots=True)
class _Part:
    name: str
    weight: int
    passed: int = 0
    turn: int = 0
    """Among equals: below zero for one that has started nothing yet."""
    lanes: set[int] = field(default_factory=set)
    """The priorities that have jobs."""


class _Sharing:
    """One queue: its parts that are ready, in the order of their passes, and its jobs without a key."""

    def __init__(self, queue: str) -> None:
        self.ready: dict[str, _Part] = {}
        self._own = _Part(queue, 1)
        self._own_is_busy = True
        self._own_quota = 0
        self._wanted = 0
        self._most = MOST
        self._heap: list[tuple[int, int, _Part]] = []
        self._named: list[_Part] = []
        self._debts: dict[str, int] = {}
        self._turn = 0
        self._time = 0

    @property
    def is_shared(self) -> bool:
        """Whether fairness keys have jobs, or debts: otherwise there is nothing to share."""
        return bool(self.ready or self._named or self._debts)

    def add(self, name: str, priority: int, weight: int) -> None:
        part = self.ready.get(name)
        if part is None:
            part = self.ready[name] = _Part(name, weight, max(self._debts.pop(name, 0), self._time))
            self._queue(part, new=True)
        part.lanes.add(priority)

    def rest(self, name: str, priority: int) -> None:
        part = self.ready.get(name)
        if part is not None:
            part.lanes.discard(priority)

    def name(self, most: int = MOST) -> list[_Part]:
        """Return the fairness keys that are next, in order."""
        self._return_named()
        while self._heap and len(self._named) < most:
            part = heapq.heappop(self._heap)[2]
            if part.lanes:
                self._named.append(part)
            else:
                self._forget(part)
        return self._named

    def divide(self, quota: int, limit: int, rooms: Mapping[str, int]) -> tuple[list[Share], list[Share]]:
        """Return what its parts may start of its own share, and then of what others leave of `limit`."""
        own = self._own
        # Under limits those that were asked for: others in the place of one without room would start as if they had none.
        busy = [part for part in self._named or self.name(self._most) if part.lanes]
        if self._own_is_busy:
            own.passed = max(own.passed, self._time)
            busy = sorted([*busy, own], key=lambda part: part.passed)
        room = dict.fromkeys([part.name for part in busy], limit)
        for name in rooms.keys() & room.keys():
            room[name] = min(rooms[name], limit)
        quotas = strides(busy, quota, room)
        served = [Share(name, given) for name, given in quotas.items() if given]
        others = [Share(name, room[name]) for name, given in quotas.items() if not given]
        if quota >= limit and served:  # asked last: the last of them gets what is left
            last = served.pop().queue
            others.insert(0, Share(last, room[last]))
        self._wanted = quota
        self._own_quota = quotas.get(own.name, 0)
        if not self._own_is_busy:
            # Idle: asked first, for what would be its share.
            self._own_quota = beside(sum(part.weight for part in busy), own, quota)
            served.insert(0, Share(own.name, self._own_quota))
        return served, others

    def take(self, started: Mapping[str, int]) -> None:
        if self._own_quota:
            self._own_is_busy = started.get(self._own.name, 0) >= self._own_quota
        found = 0
        for part in (self._own, *self._named):
            if count := started.get(part.name):
                found += count
                part.passed = max(part.passed, self._time) + count * STRIDE // part.weight
                self._turn += 1
                part.turn = self._turn
        self._most = MOST if found >= self._wanted else min(MOST * self._wanted // max(found, 1), AFTER_FEW)
        furthest = max([part.passed for part in (self._own, *self._named)])
        self._return_named()
        passes = [self._heap[0][0]] if self._heap else []
        if self._own_is_busy:
            passes.append(self._own.passed)
        self._time = max(self._time, min(passes, default=furthest))
        if not passes:
            self._debts.clear()  # no key was waiting, so what the others started took nothing from it
        if len(self._debts) > 2 * MOST:
            self._debts = {name: passed for name, passed in self._debts.items() if passed > self._time}

    def put_off(self, name: str) -> list[Lane]:
        part = self.ready[name]
        lanes = [Lane(name, priority) for priority in part.lanes]
        part.lanes.clear()
        return lanes

    def reweigh(self, weights: Mapping[str, int]) -> None:
        for part in self.ready.values():
            part.weight = weights.get(part.name, 1)

    def _queue(self, part: _Part, *, new: bool) -> None:
        if new:
            self._turn += 1
            part.turn = self._turn - _NEW
        heapq.heappush(self._heap, (part.passed, part.turn, part))

    def _return_named(self) -> None:
        for part in self._named:
            if part.lanes:
                self._queue(part, new=False)
            else:
                self._forget(part)
        self._named = []

    def _forget(self, part: _Part) -> None:
        del self.ready[part.name]
        if part.passed > self._time:
            self._debts[part.name] = part.passed


class Parts:
    """The parts of some queues, for the group whose `floors` they are read from; without those that are `paused`."""

    def __init__(self, queues: Iterable[str], floors: Floors, paused: Iterable[str] = ()) -> None:
        self.floors = floors
        self.queues = frozenset(queues)
        self.paused = frozenset(paused)
        self._sharing = {queue: _Sharing(queue) for queue in self.queues}
        self._weights: Mapping[str, int] = {}
        self._waiting: list[tuple[float, str, int]] = []
        self._due: dict[tuple[str, int], float] = {}
        self._spent: dict[tuple[str, int], None] = {}
        self._put_off: dict[str, tuple[float, list[Lane]]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether any part is believed to have a job that is due."""
        # No generator: it is asked several times a claim, of each group.
        for sharing in self._sharing.values():  # noqa: SIM110
            if sharing.ready:
                return True
        return False

    @property
    def next_at(self) -> float | None:
        """When the next one will have, by the worker's clock; None for none that is known."""
        while self._waiting and self._due.get(self._waiting[0][1:]) != self._waiting[0][0]:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    @property
    def spent(self) -> list[Lane]:
        """Drained lanes for which it is unknown whether anything is scheduled in them."""
        return [Lane(*key) for key in list(self._spent)[:_ASKED]]

    def reweigh(self, weights: Mapping[str, int]) -> None:
        """Take new weights, of parts by their names; one that is not named has weight 1."""
        self._weights = weights
        for sharing in self._sharing.values():
            sharing.reweigh(weights)

    def learn(self, lane: Lane, at: float) -> None:
        """Take in that a lane, whose floor is set, has a job that is due `at`, by the worker's clock."""
        key = lane.queue, lane.priority
        self._spent.pop(key, None)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._waiting, (at, *key))

    def forget(self, lanes: Iterable[Lane]) -> None:
        """Take in that nothing is left in lanes that were read to their end."""
        for lane in lanes:
            key = lane.queue, lane.priority
            if self._spent.pop(key, 0) is None and key not in self._due:
                self.floors.forget(lane)
                self._put_off.pop(lane.queue, None)

    def wake(self, now: float) -> None:
        """Make ready what is due by now."""
        while (at := self.next_at) is not None and at <= now:
            _, name, priority = heapq.heappop(self._waiting)
            del self._due[name, priority]
            self._spent.pop((name, priority), None)
            self.floors.open(Lane(name, priority))
            self._sharing[whole(name)].add(name, priority, self._weights.get(name, 1))

    def names(self) -> list[str]:
        """Return the parts that the next claim may name."""
        return [part.name for sharing in self._sharing.values() for part in sharing.name()]

    def divide(self, shares: Sequence[Share], limit: int, rooms: Mapping[str, int] = {}) -> list[Share]:
        """Return the shares of queues as those of their parts; what a part leaves of its own, others may take at the end.

        `rooms`: how many jobs parts may start, of those that have limits; at least one each.
        """
        first: list[Share] = []
        last: list[Share] = []
        left: list[Share] = []
        for share in shares:
            sharing = self._sharing[share.queue]
            served, others = sharing.divide(share.quota, limit, rooms) if sharing.ready else ([share], [])
            if share.quota < limit:
                first += served
                left += others
            else:
                last += served + others
        return first + last + left

    def take(self, started: Mapping[str, int]) -> None:
        """Take in what a claim started, by part, after the floors have moved."""
        for lane in self.floors.read_to_end():
            self._spent[lane.queue, lane.priority] = None
            self._sharing[whole(lane.queue)].rest(lane.queue, lane.priority)
        for sharing in self._sharing.values():
            if sharing.is_shared:
                sharing.take(started)
        for name in started.keys() & self._put_off.keys():
            del self._put_off[name]

    def put_off(self, rooms: Mapping[str, int], now: float) -> None:
        """Ask no more, for a while, for parts that have no room: they would stand before those that have."""
        for name, room in rooms.items():
            if room > 0:
                continue
            seconds = min(2 * self._put_off[name][0], SELDOM) if name in self._put_off else FULL
            lanes = self._sharing[whole(name)].put_off(name)
            self._put_off[name] = seconds, lanes
            for lane in lanes:
                self.floors.close(lane)
                self.learn(lane, now + seconds)

    def follow(self, name: str, now: float) -> bool:
        """Ask for a part again that had no room, as one of its jobs has ended; return whether there is such a part."""
        lanes = [lane for lane in self._put_off.pop(name, (0.0, []))[1] if (lane.queue, lane.priority) in self._due]
        for lane in lanes:
            self.learn(lane, now)
        return bool(lanes)

    @property
    def has_put_off(self) -> bool:
        """Whether a part has jobs that are due, and had no room."""
        return any((lane.queue, lane.priority) in self._due for _, lanes in self._put_off.values() for lane in lanes)
