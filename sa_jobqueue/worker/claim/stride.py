"""Weighted fair shares between queues, and between the fairness keys of a queue: stride scheduling. No clock, no I/O.

Each sharer has a *pass*, which grows by `1 / weight` with every job that it starts; a free slot goes to the sharer whose
pass is smallest. So while sharers have jobs waiting, what they start is in proportion to their weights, whatever the
length of their backlogs. A sharer that comes back begins at the pass of those that were waiting, with neither credit nor
debt but the slots beyond its share before it left; among equals, one that has started nothing yet goes first. So the
first job of a fairness key waits for no more than one job of each other key that has some waiting.

Nothing is shared between workers, so nothing is lost with one, and where each of them is fair, all of them are.

Source: C. A. Waldspurger, W. E. Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT, 1995.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

STRIDE: Final = 232_792_560
"""The cost of a job at weight 1: divisible by every weight to 20, and so large that rounding never matters."""
_NEW: Final = 2**62
_MOST_SAVED: Final = 128

NameT = TypeVar("NameT", bound=Hashable)


@dataclass(slots=True, eq=False)
class Sharer(Generic[NameT]):
    """A queue, or a fairness key of one, that has jobs waiting."""

    name: NameT
    weight: int
    pass_value: int
    order: int
    """Order among equal passes: negative for one that has started nothing yet."""
    lanes: dict[Any, None] = field(default_factory=dict)
    is_busy: bool = False
    """Whether it used its whole quota in the last claim."""


class Stride(Generic[NameT]):
    """Sharers that have jobs waiting, by pass. `weight`: returns the weight of a name, 1 to 100."""

    def __init__(self, weight: Callable[[NameT], int]) -> None:
        self._weight = weight
        self.sharers: dict[NameT, Sharer[NameT]] = {}
        self._heap: list[tuple[int, int, Sharer[NameT]]] = []
        self._named: list[Sharer[NameT]] = []
        self._saved_passes: dict[NameT, int] = {}
        self._last_order = 0
        self._time = 0
        """Virtual time: the smallest pass among the waiting sharers; it never decreases."""

    def open(self, name: NameT) -> Sharer[NameT]:
        """Return the sharer of a name, which has jobs waiting from now on."""
        if (sharer := self.sharers.get(name)) is None:
            self._last_order += 1
            pass_value = max(self._saved_passes.pop(name, 0), self._time)
            sharer = self.sharers[name] = Sharer(name, self._weight(name), pass_value, self._last_order - _NEW)
            heapq.heappush(self._heap, (sharer.pass_value, sharer.order, sharer))
        return sharer

    def close(self, name: NameT) -> None:
        """Remove a sharer that has no job waiting."""
        sharer = self.sharers.pop(name)
        if not self.sharers:  # no other sharer was waiting, so what it started took nothing from one
            self._time = max(self._time, sharer.pass_value)
            self._saved_passes.clear()
            self._heap.clear()
            self._named.clear()
        elif sharer.pass_value > self._time:
            self._saved_passes[name] = sharer.pass_value

    def next(self, most: int) -> list[Sharer[NameT]]:
        """Return up to `most` sharers by rising pass; the same ones until `charge`, unless they are closed."""
        self._named = [sharer for sharer in self._named if self.sharers.get(sharer.name) is sharer]
        while self._heap and len(self._named) < most:
            pass_value, order, sharer = heapq.heappop(self._heap)
            if self._is_current(pass_value, order, sharer):
                self._named.append(sharer)
        return self._named[:most]

    def charge(self, started: Mapping[NameT, int]) -> None:
        """Advance the passes by the starts of the sharers that `next` returned."""
        for sharer in self._named:
            if count := started.get(sharer.name):
                sharer.pass_value = max(sharer.pass_value, self._time) + count * STRIDE // sharer.weight
                self._last_order += 1
                sharer.order = self._last_order
            if self.sharers.get(sharer.name) is sharer:
                heapq.heappush(self._heap, (sharer.pass_value, sharer.order, sharer))
        self._named = []
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        if self._heap:
            self._time = max(self._time, self._heap[0][0])
        if len(self._saved_passes) > _MOST_SAVED:
            self._saved_passes = {
                name: pass_value for name, pass_value in self._saved_passes.items() if pass_value > self._time
            }

    def _is_current(self, pass_value: int, order: int, sharer: Sharer[NameT]) -> bool:
        return self.sharers.get(sharer.name) is sharer and (pass_value, order) == (sharer.pass_value, sharer.order)


def quotas(sharers: Sequence[Sharer[Any]], free: int, capacities: Sequence[int]) -> list[int]:
    """Divide `free` slots among sharers, given by rising pass: one by one, each to the one whose pass is smallest.

    `capacities`: the most that each may have. Cost: free * log(sharers).
    """
    steps = [STRIDE // sharer.weight for sharer in sharers]
    slot_counts = [0] * len(sharers)
    heap = [(sharer.pass_value, place) for place, sharer in enumerate(sharers) if capacities[place] > 0]
    while free > 0 and heap:
        pass_value, place = heap[0]
        slot_counts[place] += 1
        free -= 1
        if slot_counts[place] >= capacities[place]:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (pass_value + steps[place], place))
    return slot_counts


class Ageing:
    """Keeps low priorities from starving: a sixteenth of the starts goes to the lane that has waited longest.

    Only while claims come back full: one that does not has read every lane to its end. So a job with `n` jobs of its
    queue due before it, of any priority, has started when about `16 * n` others have.
    """

    SHARE: Final = 16

    def __init__(self) -> None:
        self._started = 0

    def started(self, count: int, *, full: bool) -> None:
        """Record how many jobs a claim started, and whether it may have left others."""
        self._started = self._started + count if full else 0

    def due(self) -> int:
        """Return how many jobs the longest waiting lane may start now; zero for none. Deducts them from the count."""
        due, self._started = divmod(self._started, self.SHARE)
        return due
