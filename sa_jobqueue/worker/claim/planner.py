"""What to claim next: which lanes, in what order, and how many jobs of each. No clock, no I/O.

Two levels of stride scheduling (`stride`): queues share the free slots, and the fairness keys of a queue share its slots.
Within a fairness key, higher priorities go first, but a sixteenth goes to the lane that has waited longest (`Ageing`). Only
open lanes are planned (`backlog`), and only while their partition has capacity (`partitions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.worker.claim.cursors import Cursors, Lane, Plan, Segment
from sa_jobqueue.worker.claim.partitions import Partition, Partitions, Queue
from sa_jobqueue.worker.claim.stride import Ageing, Sharer, Stride, quotas

MOST_KEYS: Final = 64
"""Maximum number of fairness keys of a queue that one claim names: most keys have more than one job."""


Shares: TypeAlias = Mapping[Partition, Mapping[Queue, int]]
"""How many jobs each queue of some partitions may start with the next claim, in the order to claim in."""


class _QueueLanes:
    """The open lanes of one queue, by fairness key."""

    def __init__(self, weight: Callable[[str], int]) -> None:
        self.keys: Stride[str] = Stride(weight)
        self.ageing = Ageing()


class Planner:
    """Plans claims over the open lanes of one worker.

    `fair`: queues share by weight; otherwise higher priorities go first, over all queues. `weight`: of a queue, or of a
    fairness key.
    """

    def __init__(self, partitions: Partitions, cursors: Cursors, *, fair: bool, weight: Callable[[QueueKey], int]) -> None:
        self._partitions = partitions
        self._cursors = cursors
        self._fair = fair
        self._weight = weight
        self._queues: Stride[Queue] = Stride(lambda queue: weight(QueueKey(queue[0])))
        self._queue_lanes: dict[Queue, _QueueLanes] = {}

    def open(self, lane: Lane) -> None:
        """Add a lane to the plans that follow."""
        queue = (lane.queue, lane.type_name)
        self._queues.open(queue)
        queue_lanes = self._queue_lanes.get(queue)
        if queue_lanes is None:
            queue_lanes = self._queue_lanes[queue] = _QueueLanes(lambda key: self._weight(QueueKey(lane.queue, key)))
        queue_lanes.keys.open(lane.fairness_key).lanes[lane] = None

    def close(self, lane: Lane) -> None:
        """Remove a lane from the plans that follow."""
        queue = (lane.queue, lane.type_name)
        keys = self._queue_lanes[queue].keys
        sharer = keys.sharers[lane.fairness_key]
        del sharer.lanes[lane]
        if not sharer.lanes:
            keys.close(lane.fairness_key)
            if not keys.sharers:
                self._queues.close(queue)

    def waiting(self) -> set[Partition]:
        """Return the partitions that have jobs waiting."""
        return {partition for queue in self._queues.sharers if (partition := self._partitions.of(queue)) is not None}

    def share(self, free: int, now: float, without: Collection[Partition] = ()) -> dict[Partition, dict[Queue, int]]:
        """Divide `free` slots among the queues that have open lanes and capacity, by partition, in the order to claim in."""
        waiting = self._queues.next(len(self._queues.sharers))
        capacities = [
            0 if self._partitions.of(sharer.name) in without else self._capacity(sharer.name, free, now)
            for sharer in waiting
        ]
        sharer_quotas = quotas(waiting, free, capacities) if self._fair else capacities
        planned = [(sharer, quota) for sharer, quota in zip(waiting, sharer_quotas, strict=True) if quota > 0]
        if self._fair:
            # The one that used its whole quota comes last: it may use what the others leave.
            planned.sort(key=lambda sharer_quota: sharer_quota[0].is_busy)
        shares: dict[Partition, dict[Queue, int]] = {}
        for sharer, quota in planned:
            if (partition := self._partitions.of(sharer.name)) is not None:
                shares.setdefault(partition, {})[sharer.name] = quota
        return shares

    def _capacity(self, queue: Queue, free: int, now: float) -> int:
        partition = self._partitions.of(queue)
        if partition is None or partition.is_refused or partition.full_until > now:
            return 0
        return partition.capacity(free)

    def names(self, shares: Shares) -> list[QueueKey]:
        """Return the fairness keys that a plan of these shares names."""
        return [
            QueueKey(queue[0], sharer.name)
            for queue_shares in shares.values()
            for queue in queue_shares
            for sharer in self._queue_lanes[queue].keys.next(MOST_KEYS)
            if sharer.name
        ]

    def plan(self, shares: Shares, limit: int, capacities: Mapping[QueueKey, int] | None = None) -> Plan:
        """Return the plan of one claim of up to `limit` jobs for these partitions.

        `capacities`: how many jobs fairness keys with separate limits may start, of those that `names` returned.
        """
        late: dict[Any, str] = {}
        segments: list[Segment] = []
        slots_by_type: dict[str, int] = {}
        # A selector is offered more than may start.
        capacity_by_partition = {
            partition: partition.capacity(limit) if partition.selection is None else limit for partition in shares
        }
        limit = min(limit, sum(capacity_by_partition.values()))
        for partition, queue_quotas in shares.items():
            capacity = capacity_by_partition[partition]
            if partition.own_type is not None:
                # Other partitions of the type, with limits of their queues, take from the same slots.
                type_slots = slots_by_type.get(partition.own_type, capacity)
                capacity = max(min(capacity, type_slots), 0)
                slots_by_type[partition.own_type] = type_slots - sum(queue_quotas.values())
            late_before = len(late)
            uncapped_segments = self._segments_of(
                partition, queue_quotas, limit=limit, capacity=capacity, key_capacities=capacities or {}, late=late
            )
            free_slots = max(capacity - (len(late) - late_before), 0)
            # Where a claim may take no more than the partition has, the limit of the claim is enough.
            segments += _capped(uncapped_segments, free_slots, share_slots=capacity < limit)
        if segments and not capacities and capacity == limit:
            segments[-1] = segments[-1]._replace(quota=free_slots)  # it may use all slots that others leave
        return Plan(segments, late, limit)

    def _segments_of(
        self,
        partition: Partition,
        queue_quotas: Mapping[Queue, int],
        *,
        limit: int,
        capacity: int,
        key_capacities: Mapping[QueueKey, int],
        late: dict[Any, str],
    ) -> list[Segment]:
        """Return the segments that the queues of a partition want, at least one; take their late arrivals into `late`."""
        segments: list[Segment] = []
        for queue, quota in queue_quotas.items():
            late_of_queue = late if partition.selection is None else None
            segments += self._segments_of_queue(queue, min(quota, limit), key_capacities, late_of_queue, partition.types)
        lanes = [lane for segment in segments for lane in segment.lanes]
        if not self._fair and not any(lane.fairness_key for lane in lanes):
            return [Segment(sorted(lanes, key=_by_falling_priority), capacity, partition.types)]
        return segments or [Segment([], 0, partition.types)]

    def _segments_of_queue(
        self, queue: Queue, quota: int, capacities: Mapping[QueueKey, int], late: dict[Any, str] | None, types: Sequence[str]
    ) -> list[Segment]:
        queue_lanes = self._queue_lanes[queue]
        sharers = queue_lanes.keys.next(MOST_KEYS)
        # Only keys that were asked for have a known capacity.
        key_capacities = [
            capacities.get(QueueKey(queue[0], sharer.name), 0 if capacities and sharer.name else quota) for sharer in sharers
        ]
        key_quotas = quotas(sharers, quota, [min(capacity, quota) for capacity in key_capacities])
        aged = self._longest_waiting(queue_lanes, sharers, quota)
        segments: list[Segment] = []
        for sharer, key_quota in zip(sharers, key_quotas, strict=True):
            if not key_quota:
                continue
            lanes = sorted(sharer.lanes, key=_by_falling_priority)
            slots = key_quota
            if self._cursors.late and late is not None:
                slots -= self._take_late(lanes, (key_quota + 1) // 2, late)
            if aged is not None and aged[0] in sharer.lanes and lanes[0] != aged[0]:
                aged_lane, aged_slots = aged[0], min(aged[1], slots)
                lanes.remove(aged_lane)
                segments.insert(0, Segment([aged_lane], aged_slots, types))
                slots -= aged_slots
            segments.append(Segment(lanes, slots, types))
        return [segment for segment in segments if segment.quota > 0]

    def _take_late(self, lanes: Iterable[Lane], most: int, late: dict[Any, str]) -> int:
        """Add up to `most` late arrivals of these lanes, to be claimed by id: at most half of the quota."""
        before = len(late)
        for lane in lanes:
            for job_id, xid in self._cursors.late.get(lane, {}).items():
                if len(late) - before >= most:
                    return most
                late[job_id] = xid
        return len(late) - before

    def _longest_waiting(
        self, queue_lanes: _QueueLanes, sharers: Sequence[Sharer[str]], quota: int
    ) -> tuple[Lane, int] | None:
        """Return the lane whose cursor is the oldest, so whose next job may have waited longest, and its share."""
        due = min(queue_lanes.ageing.due(), quota) if sharers else 0
        if not due:
            return None
        return min((lane for sharer in sharers for lane in sharer.lanes), key=self._cursors.of_lane.__getitem__), due

    def charge(self, shares: Shares, started_of: Mapping[Lane, int]) -> None:
        """Charge fairness keys for the starts of a claim with these shares; `charge_queues` charges the queues."""
        keys: dict[Queue, Counter[str]] = {}
        for lane, count in started_of.items():
            keys.setdefault((lane.queue, lane.type_name), Counter())[lane.fairness_key] += count
        for of_partition in shares.values():
            for queue, quota in of_partition.items():
                counts = keys.get(queue, Counter[str]())
                queue_lanes, started = self._queue_lanes[queue], counts.total()
                queue_lanes.keys.charge(counts)
                queue_lanes.ageing.started(started, full=started >= quota)
                if (sharer := self._queues.sharers.get(queue)) is not None:
                    sharer.is_busy = started >= quota

    def charge_queues(self, started: Mapping[Queue, int]) -> None:
        """Charge queues for the jobs that claims started since `share`."""
        self._queues.charge(started)

    def lanes_of_key(self, queue_key: QueueKey) -> list[Lane]:
        """Return the open lanes of a fairness key, in all types."""
        queue, key = queue_key
        sharers = [
            queue_lanes.keys.sharers.get(key) for (name, _), queue_lanes in self._queue_lanes.items() if name == queue
        ]
        return [lane for sharer in sharers if sharer is not None for lane in sharer.lanes]


def _capped(segments: Iterable[Segment], free_slots: int, *, share_slots: bool) -> Iterator[Segment]:
    """Yield segments that take at most `free_slots`, each of them or, with `share_slots`, all of them together."""
    for segment in segments:
        quota = min(segment.quota, free_slots)
        yield segment._replace(quota=quota)
        if share_slots:
            free_slots -= quota


def _by_falling_priority(lane: Lane) -> int:
    return -lane.priority
