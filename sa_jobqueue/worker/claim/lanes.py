"""The lanes of one worker: their state, and the claims that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled, plain
from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.selectors import Candidate
from sa_jobqueue.statements import claims
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Plan, Segment
from sa_jobqueue.worker.claim.limits import FULL, transaction
from sa_jobqueue.worker.claim.partitions import Partition, Partitions
from sa_jobqueue.worker.claim.planner import Planner, Shares
from sa_jobqueue.worker.claim.rates import RolledBackError
from sa_jobqueue.worker.shared import Part, Shared

MOST_TRIED: Final = 5000
"""Jobs that are tried to find the ones that cannot be started."""
_CHECK_NOW: Final = plain("SET CONSTRAINTS ALL IMMEDIATE")

_SELECT_AGAIN: Final = 0.5
"""Seconds until a selector that rejected candidates is called again: its reasons may have changed."""
_SOON: Final = 0.004
"""Minimum seconds until a lane that opens is claimed: lanes that open together share a claim."""


class Lanes(Part):
    """State of one worker's lanes; valid while its settings and its connection stay the same."""

    def __init__(self, shared: Shared, partitions: Partitions, clock: Callable[[], float]) -> None:
        super().__init__(shared)
        self.partitions = partitions
        self.clock = clock
        self.cursors = Cursors(partitions.own_types, lowest_id(self._model.__jobqueue__))
        self.cursors.versions = shared.identity.type_versions
        self.planner = Planner(partitions, self.cursors, fair=self._options.fair, weight=partitions.weight)
        self.backlog = Backlog(self.cursors, self.planner.open, self.planner.close)
        self.arrivals = Arrivals(self._model, partitions, self.cursors, self.backlog, clock=clock)
        self._claim = compiled(claims.claim, self._model)
        self._backing_off: dict[QueueKey, list[Lane]] = {}
        """Fairness keys without capacity, with their lanes."""
        self.excluded: Collection[Any] = ()
        """Ids of jobs that are left as they are, since the database refuses to start them."""

    async def take(self, connection: AsyncConnection, plan: Plan) -> tuple[list[ClaimedJob], datetime]:
        """Start the jobs of a plan; return them, and the database's `now()`. Cursors have not moved: see `claimed`."""
        return await self._take(connection, self.cursors.parameters(plan, self.excluded))

    async def _take(self, connection: AsyncConnection, parameters: dict[str, Any]) -> tuple[list[ClaimedJob], datetime]:
        worker = {"worker_id": self._worker_id, "grace": self._options.heartbeat_timeout}
        rows = await self._claim.execute(connection, parameters | worker)
        # By position: what follows the claim's own column is CLAIMED, the fields of ClaimedJob in order.
        return [ClaimedJob._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    async def refused(self, connection: AsyncConnection, partitions: Shares, most: int) -> list[tuple[Any, Exception]]:
        """Return jobs that the database refuses to start, of up to `most` due ones of each lane, each with its error.

        To find them they are started, in parts, in transactions that are rolled back. Those excluded already are left out.
        Locks: the jobs, while they are tried. At most `MOST_TRIED` are.
        """
        from_start = Cursors((), lowest_id(self._model.__jobqueue__))
        from_start.versions = self.cursors.versions
        segments: list[Segment] = []
        for lane in self.cursors.of_lane:
            partition = self.partitions.of_lane(lane)
            if partition is not None and partition in partitions:
                from_start.lower(lane, START)
                window = 0 if partition.selection is None else partition.selection.window
                segments.append(Segment([lane], max(most, window) + len(self.excluded), partition.types))
        parameters = from_start.parameters(Plan(segments, {}, MOST_TRIED), self.excluded)
        rows = await compiled(claims.candidates, self._model, inputs=False).execute(connection, parameters)
        xids = {row[2]: row[1] for row in rows if row[2] is not None}
        types = sorted({name for partition in partitions for name in partition.types})

        async def try_to_start(ids: Sequence[Any]) -> None:
            by_id = Plan([Segment([], 0, types)], {job_id: xids[job_id] for job_id in ids}, len(ids))
            with suppress(RolledBackError):
                async with transaction(connection):
                    try:
                        await self._take(connection, from_start.parameters(by_id))
                        await _CHECK_NOW.execute(connection, {})
                    except Exception as error:
                        if not is_of_ordering(error):
                            raise
                    raise RolledBackError

        _, refused = await in_parts(list(xids), try_to_start)
        return refused

    def claimed(self, plan: Plan, shares: Shares, jobs: Sequence[Any], at: Any) -> None:
        """Record which jobs a claim of this plan returned, at `at` by the database's clock."""
        ended, started = self.cursors.claimed(plan, jobs, at)
        self.planner.charge(shares, started)
        self.backlog.read_to_end(ended, self.clock())
        self.arrivals.claimed()

    def offered(self, plan: Plan, candidates: Sequence[tuple[Candidate, str]], at: Any) -> None:
        """Record the jobs that a selector is offered, each with the transaction that changed it last."""
        ended, _ = self.cursors.claimed(plan, [candidate for candidate, _ in candidates], at)
        for candidate, xid in candidates:
            lane = self.cursors.lane_of(candidate)
            if (candidate.scheduled_at, candidate.id) <= self.cursors.of_lane[lane]:  # not where lanes were rewound
                self.cursors.late.setdefault(lane, {})[candidate.id] = xid
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
    def size(self) -> int:
        """Number of open lanes and late arrivals."""
        return len(self.backlog.open) + sum(map(len, self.cursors.late.values()))

    def waits(self) -> list[float]:
        """Return the seconds until a full scan is due, until a lane opens, and until a selector is called again."""
        seconds = [self.arrivals.full_scan_in()]
        if (opens_at := self.backlog.next_at) is not None:
            seconds.append(max(opens_at - self.clock(), _SOON))
        if any(partition.selection is not None and any(self.late(partition)) for partition in self.partitions.every):
            seconds.append(_SELECT_AGAIN)
        return seconds

    def capacity_in(self, since: float) -> float | None:
        """Return in how many seconds a limit may have capacity that a claim since then found reached; None without one.

        Zero if that time has already passed.
        """
        waiting = (partition for partition in self.planner.waiting() if not partition.is_refused)
        ends = [partition.full_until for partition in waiting if partition.full_until > since]
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


def is_of_ordering(error: Exception) -> bool:
    """Return whether another claim has just started a job of the same ordering key, which this one could not see."""
    return isinstance(error, IntegrityError) and (diagnose(error).constraint or "").endswith("uq_job_ordering")
