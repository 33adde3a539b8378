"""The lanes of one worker: their state, and the claims that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobClass
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.selectors import Candidate
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import Cursors, Lane, Plan
from sa_jobqueue.worker.claim.limits import FULL
from sa_jobqueue.worker.claim.partitions import Partition, Partitions
from sa_jobqueue.worker.claim.planner import Planner, Shares

_SELECT_AGAIN: Final = 0.5
"""Seconds until a selector that rejected candidates is called again: its reasons may have changed."""
_SOON: Final = 0.004
"""Minimum seconds until a lane that opens is claimed: lanes that open together share a claim."""


class Lanes:
    """State of one worker's lanes; valid while its partitions and its connection stay the same."""

    def __init__(
        self,
        partitions: Partitions,
        model: JobClass,
        *,
        queues: list[str],
        types: list[str],
        fair: bool,
        weight: Callable[[QueueKey], int],
        clock: Callable[[], float],
    ) -> None:
        self.partitions = partitions
        self.clock = clock
        self.cursors = Cursors(partitions.own_types, lowest_id(model.__jobqueue__))
        self.planner = Planner(partitions, self.cursors, fair=fair, weight=weight)
        self.backlog = Backlog(self.cursors, self.planner.open, self.planner.close)
        self.arrivals = Arrivals(model, partitions, self.cursors, self.backlog, queues=queues, types=types, clock=clock)
        self._backing_off: dict[QueueKey, list[Lane]] = {}
        """Fairness keys without capacity, with their lanes."""

    def claimed(self, plan: Plan, shares: Shares, jobs: Sequence[Any], at: Any) -> None:
        """Record which jobs a claim of this plan returned, at `at` by the database's clock."""
        ended, started = self.cursors.claimed(plan, jobs, at)
        self.planner.charge(shares, started)
        self.backlog.read_to_end(ended, self.clock())
        self.arrivals.claimed()

    def offered(self, plan: Plan, found: Sequence[tuple[Candidate, str]], at: Any) -> None:
        """Record the jobs that a selector is offered, each with the transaction that changed it last."""
        ended, _ = self.cursors.claimed(plan, [one for one, _ in found], at)
        for one, xid in found:
            lane = self.cursors.lane_of(one)
            if (one.scheduled_at, one.id) <= self.cursors.of_lane[lane]:  # not where lanes were rewound
                self.cursors.late.setdefault(lane, {})[one.id] = xid
        self.backlog.read_to_end(ended, self.clock())
        self.arrivals.claimed()

    def chosen(self, shares: Shares, jobs: Sequence[ClaimedJob]) -> None:
        """Record which of the jobs that a selector was offered were started."""
        started = Counter(map(self.cursors.lane_of, jobs))
        self.planner.charge(shares, started)
        for job in jobs:
            self.cursors.late.get(self.cursors.lane_of(job), {}).pop(job.id, None)
        for lane in started:
            if not self.cursors.late.get(lane, True):
                del self.cursors.late[lane]

    def late(self, partition: Partition) -> Iterator[tuple[Any, str]]:
        """Return the late arrivals of a partition, those of higher priorities first."""
        for lane in sorted(self.cursors.late, key=lambda lane: -lane.priority):
            if self.partitions.of_lane(lane) is partition:
                yield from self.cursors.late[lane].items()

    @property
    def left(self) -> int:
        """Number of open lanes and late arrivals."""
        return len(self.backlog.open) + sum(map(len, self.cursors.late.values()))

    def known(self, partitions: Shares) -> dict[Partition, list[Lane]]:
        """Return the known lanes of some partitions."""
        found: dict[Partition, list[Lane]] = {}
        for lane in self.cursors.of_lane:
            partition = self.partitions.of_lane(lane)
            if partition is not None and partition in partitions:
                found.setdefault(partition, []).append(lane)
        return found

    def waits(self) -> list[float]:
        """Return the seconds until a full scan is due, until a lane opens, and until a selector is called again."""
        seconds = [self.arrivals.full_scan_in()]
        if (opens_at := self.backlog.next_at) is not None:
            seconds.append(max(opens_at - self.clock(), _SOON))
        if any(one.selection is not None and any(self.late(one)) for one in self.partitions.every):
            seconds.append(_SELECT_AGAIN)
        return seconds

    def capacity_in(self, since: float) -> float | None:
        """Return in how many seconds a limit may have capacity that a claim since then found reached; None without one.

        Zero if that time has already passed.
        """
        waiting = (one for one in self.planner.waiting() if not one.is_refused)
        ends = [one.full_until for one in waiting if one.full_until > since]
        return max(min(ends) - self.clock(), 0.0) if ends else None

    def back_off(self, capacities: Mapping[QueueKey, int]) -> None:
        """Leave fairness keys without capacity out of plans for a while: they would displace those that have some."""
        for queue_key, capacity in capacities.items():
            if capacity > 0:
                self._backing_off.pop(queue_key, None)
                continue
            lanes = self._backing_off[queue_key] = self.planner.lanes_of_key(queue_key)
            self.backlog.back_off(lanes, self.clock() + FULL)

    def count_again(self, queue_keys: Sequence[QueueKey]) -> None:
        """Count at the next claim what limits leave: jobs of these queue keys have ended."""
        if queue_keys:
            for partition in self.partitions.every:
                partition.full_until = float("-inf")
        now = self.clock()
        for queue_key in queue_keys:
            for lane in self._backing_off.pop(queue_key, []):
                self.backlog.found(lane, now, now)
