"""Which lanes have jobs: the only cache of open and empty lanes. No clock, no I/O.

A lane is **open** while it is believed to have due jobs: claims scan open lanes only. One that a claim read to its end is
closed, and the next catch-up asks for its next job. If that is scheduled for later, the lane opens at that time. If it
has none, the lane stays in the cursors for a moment (`LINGER`): a worker that is woken scans the last few of these lanes at
once, before it asks which others have jobs. After that it is forgotten: a job that comes later is an arrival in a new lane.

So the cost of a claim depends neither on how many queues, types and fairness keys there are, nor on how many have jobs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from sa_jobqueue.worker.claim.cursors import Cursors, Lane

LINGER: Final = 2.0
"""Seconds for which a lane that became empty is scanned first by a worker that is woken."""
LINGERING: Final = 16
"""Maximum number of such lanes."""
_ASKED: Final = 256
"""Lanes that one catch-up asks for their next job."""


class Backlog:
    """The lanes that one worker knows of. `on_open`, `on_close`: called when claims start and stop scanning a lane.

    Times are monotonic seconds of this process.
    """

    def __init__(self, cursors: Cursors, on_open: Callable[[Lane], None], on_close: Callable[[Lane], None]) -> None:
        self._cursors = cursors
        self._on_open, self._on_close = on_open, on_close
        self.open: dict[Lane, None] = {}
        self._ended: dict[Lane, float] = {}
        """Closed lanes of which the next job is not known, and since when."""
        self._lingering: dict[Lane, float] = {}
        """Closed lanes without a job, and since when, oldest first."""
        self._opens_at: dict[Lane, float] = {}
        self._schedule: list[tuple[float, Lane]] = []

    def found(self, lane: Lane, at: float, now: float) -> None:
        """Record that a lane has a pending job that is due `at`."""
        if lane in self.open:
            return
        if at <= now:
            self._ended.pop(lane, None)
            self._lingering.pop(lane, None)
            self._opens_at.pop(lane, None)
            self.open[lane] = None
            self._on_open(lane)
        elif at < self._opens_at.get(lane, math.inf):
            self._lingering.pop(lane, None)
            self._opens_at[lane] = at
            heapq.heappush(self._schedule, (at, lane))

    def read_to_end(self, lanes: Iterable[Lane], now: float) -> None:
        """Close lanes that a claim has read to their end, except those with late arrivals that it was not given."""
        for lane in lanes:
            if lane in self._cursors.late:
                continue
            self._close(lane)
            self._lingering.pop(lane, None)
            self._ended[lane] = now

    def back_off(self, lanes: Iterable[Lane], until: float) -> None:
        """Close lanes without capacity until a time."""
        for lane in lanes:
            self._close(lane)
            self._opens_at[lane] = until
            heapq.heappush(self._schedule, (until, lane))

    def _close(self, lane: Lane) -> None:
        if lane in self.open:
            del self.open[lane]
            self._on_close(lane)

    def asks(self) -> list[Lane]:
        """Return lanes of which the next catch-up is to return the next job."""
        return list(islice(self._ended, _ASKED))

    def answered(self, lanes: Iterable[Lane]) -> None:
        """Record that a catch-up returned the next job of these lanes, or none: after `found` of its rows."""
        for lane in lanes:
            since = self._ended.pop(lane, None)
            if since is not None and lane not in self._opens_at:
                self._lingering[lane] = since

    def wake(self, now: float) -> None:
        """Open lanes whose next job is due, and forget those that have been empty for long enough."""
        while (at := self.next_at) is not None and at <= now:
            _, lane = heapq.heappop(self._schedule)
            self.found(lane, now, now)
        while self._lingering:
            lane, since = next(iter(self._lingering.items()))
            if since + LINGER > now and len(self._lingering) <= LINGERING:
                break
            del self._lingering[lane]
            self._cursors.forget(lane)

    @property
    def next_at(self) -> float | None:
        """When the next lane opens; None where nothing is scheduled."""
        while self._schedule and self._opens_at.get(self._schedule[0][1]) != self._schedule[0][0]:
            heapq.heappop(self._schedule)
        return self._schedule[0][0] if self._schedule else None

    def open_again(self, lanes: Collection[Lane], now: float) -> None:
        """Open lanes whose cursors were rewound."""
        for lane in lanes:
            self.found(lane, now, now)

    def open_lingering(self) -> bool:
        """Open the lanes that were empty a moment ago; return whether there are any."""
        lanes = [*self._lingering, *islice(self._ended, LINGERING)]
        for lane in lanes:
            self.found(lane, 0.0, 0.0)
        return bool(lanes)
