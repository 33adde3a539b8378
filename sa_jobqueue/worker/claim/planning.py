"""How many of the free slots each queue may fill next: weighted fair shares between queues. No clock, no I/O.

**Stride scheduling.** Each queue has a *pass*, which grows by `1 / weight` with every job that it starts; a free slot goes
to the queue whose pass is smallest. So over any stretch in which queues have jobs waiting, what they start is in proportion
to their weights, whatever the length of their backlogs. A queue that was empty comes back at the pass of those that were
not: it has no credit from its rest, and no debt.

A worker does not know what a queue holds before it claims. It believes that a queue is *busy* while its claims fill their
quota. The busy queues share the free slots; an idle one is asked first, for what would be its share if it were busy, so its
jobs start with the next claim; what it does not use goes to the last of the busy ones, in the same statement. Nothing is
shared between workers, so nothing is lost with one, and where each of them is fair, all of them are.

Source: C. A. Waldspurger, W. E. Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT, 1995.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MAX_WEIGHT: Final = 100
STRIDE: Final = 232_792_560
"""What a job costs at weight 1: divisible by every weight to 20, and so large that rounding never matters."""


class Share(NamedTuple):
    """What one queue, or one part of one, may start with the next claim."""

    queue: str
    quota: int


class Sharer(Protocol):
    """What has a pass and a weight: a queue, or a part of one."""

    @property
    def name(self) -> str:
        """Who it is."""

    @property
    def weight(self) -> int:
        """Its share against that of others."""

    @property
    def passed(self) -> int:
        """Its pass: the smallest is next."""


@dataclass(slots=True)
class _Queue:
    name: str
    weight: int = 1
    passed: int = 0
    busy: bool = True


class Planner:
    """Shares the free slots of one worker among its queues.

    `queues`: those it serves, in the order in which equals are asked. Each has weight 1 unless set otherwise.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = {name: _Queue(name) for name in queues}
        self._time = 0
        """The pass of the busy queue that is furthest behind, as far as it has come."""

    def reweigh(self, weights: Mapping[str, int]) -> None:
        """Take new weights, 1 to 100; a queue that is not named has weight 1. What was started before stays counted."""
        for name, queue in self._queues.items():
            queue.weight = weights.get(name, 1)

    def plan(self, free: int, rooms: Mapping[str, int] | None = None) -> list[Share]:
        """Return what each queue may start, in the order in which to ask them.

        `free`: slots to fill, above zero. `rooms`: how many more jobs a queue with a limit of its own may start; one
        without room is left out.
        The quotas together exceed `free`: who is asked last gets what is left, so no slot stays free that some queue has
        a job for. Cost: free * log(queues).
        """
        room = dict.fromkeys(self._queues, free) | {name: min(room, free) for name, room in (rooms or {}).items()}
        busy = sorted((queue for queue in self._queues.values() if queue.busy and room[queue.name] > 0), key=_pass)
        idle = sorted((queue for queue in self._queues.values() if not queue.busy and room[queue.name] > 0), key=_pass)
        weight = sum(queue.weight for queue in busy)
        shares = [Share(queue.name, min(beside(weight, queue, free), room[queue.name])) for queue in idle]
        quotas = strides(busy, free, room)
        served = [queue.name for queue in busy if quotas[queue.name]]
        shares += [Share(name, quotas[name]) for name in served[:-1]]
        rest = served[-1:] + [queue.name for queue in busy if not quotas[queue.name]]
        return shares + [Share(name, room[name]) for name in rest]

    def take(self, shares: Sequence[Share], started: Mapping[str, int], *, free: int) -> None:
        """Take in what a claim by these shares started, by queue; `free` is what it was allowed in all."""
        for name, count in started.items():
            queue = self._queues[name]
            if not queue.busy:
                queue.passed = max(queue.passed, self._time)
            queue.passed += count * STRIDE // queue.weight
        left = free
        for share in shares:
            if left <= 0:
                break  # not asked for this one
            got = started.get(share.queue, 0)
            left -= got
            self._queues[share.queue].busy = got >= share.quota or left <= 0
        if shares:
            asked = {share.queue for share in shares}
            for queue in self._queues.values():
                queue.busy = queue.busy and queue.name in asked  # without room it waits for that, not for the others
        # While no queue waits, what the others start takes nothing from it: no debt arises.
        busy = [queue.passed for queue in self._queues.values() if queue.busy]
        every = [queue.passed for queue in self._queues.values()]
        self._time = max(self._time, min(busy) if busy else max(every, default=0))


def _pass(queue: _Queue) -> int:
    return queue.passed


def beside(weight: int, queue: Sharer, free: int) -> int:
    """Return what a queue would get of `free` beside others that weigh so much together, rounded up."""
    return -(-free * queue.weight // (queue.weight + weight))


def strides(queues: Sequence[Sharer], free: int, room: Mapping[str, int]) -> dict[str, int]:
    """Give `free` slots away one by one, each to the queue whose pass is smallest; equals in their own order, by pass."""
    names = [queue.name for queue in queues]
    rooms = [room[name] for name in names]
    steps = [STRIDE // queue.weight for queue in queues]
    quotas = [0] * len(names)
    if names and len(set(steps)) == 1 and queues[-1].passed - queues[0].passed < steps[0]:
        # Of equal weight and in one round, as many keys are: round after round in their own order.
        each, more = divmod(free, len(names))
        if min(rooms) > each:
            return {name: each + (place < more) for place, name in enumerate(names)}
    heap = [(queue.passed, place) for place, queue in enumerate(queues)]
    while free > 0 and heap:
        passed, place = heap[0]
        quotas[place] += 1
        free -= 1
        if quotas[place] >= rooms[place]:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (passed + steps[place], place))
    return dict(zip(names, quotas, strict=True))


class Ageing:
    """Keeps low priorities from starving: a sixteenth of what is started goes to the lane whose first job waits longest.

    Only while claims come back full: one that does not has read every lane to its end, and nothing starves. So a job with
    `n` jobs of its queues due before it, of any priority, has started when about `16 * n` others have, and a second's more.
    Time is monotonic seconds, an argument.
    """

    SHARE: Final = 16
    EVERY: Final = 1.0
    """Seconds between two such claims at least: each costs a statement that finds the lane."""

    def __init__(self) -> None:
        self._started = 0
        self._at = 0.0

    def started(self, count: int, *, full: bool) -> None:
        """Take in how many jobs a claim started, and whether it may have left others."""
        self._started = self._started + count if full else 0

    def due(self, now: float) -> int:
        """Return how many jobs the longest waiting lane may start now; zero for none. What is returned counts as given."""
        owed = self._started // self.SHARE
        if owed == 0 or now < self._at + self.EVERY:
            return 0
        self._started, self._at = 0, now
        return owed
