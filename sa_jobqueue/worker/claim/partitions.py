"""Partitions: queues and job types with a separate capacity, claimed with separate cursors.

A queue or job type with a limit, and each such type within each such queue, is a partition. All the rest is one more.
While a partition has no capacity, its lanes are not scanned. So a claim never skips a job for a reason that passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sa_jobqueue.models import JobClass
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.claim.cursors import Lane
from sa_jobqueue.worker.claim.limits import Limits
from sa_jobqueue.worker.claim.selectors import Selection
from sa_jobqueue.worker.run.executor import Executor

Queue: TypeAlias = tuple[str, str]
"""A member of the sharing by weight: a queue, and the type with a separate capacity, or empty."""


@dataclass(eq=False, slots=True, kw_only=True)
class Partition:
    """Queues and job types with one capacity."""

    types: Sequence[str]
    queue: str | None
    """Its queue, if that is apart from the others."""
    own_type: str | None
    """Its type, if that has a separate capacity."""
    executor: Executor
    limits: Limits | None
    """The limits that hold across all workers."""
    selection: Selection | None
    """Of a queue with a selector."""
    full_until: float = float("-inf")
    """Until when limits across workers are not asked for capacity again, by the worker's clock; -inf after capacity."""
    is_refused: bool = False
    """Whether it rests in quarantine, since its limits could not be read or written."""

    @property
    def is_plain(self) -> bool:
        """Whether it shares a claim with others: it has no limit across workers, and no selector."""
        return self.limits is None and self.selection is None

    @property
    def has_capacity_of_its_own(self) -> bool:
        """Whether other things than the worker's free slots limit it."""
        return self.queue is not None or self.own_type is not None

    def capacity(self, free: int) -> int:
        """Return how many of `free` slots its jobs may take."""
        if self.queue is not None:
            free = min(free, self.executor.free_in(self.queue))
        return free if self.own_type is None else min(free, self.executor.free_for(self.own_type))


class Partitions:
    """The partitions of one worker.

    `queues`: those it serves, each with its limit in this worker or None. `slots`: such limits of job types, by name.
    `selections`: of queues with a selector.
    """

    def __init__(
        self,
        queues: Mapping[str, int | None],
        types: Sequence[str],
        slots: Mapping[str, int],
        *,
        executor: Executor,
        model: JobClass,
        controls: Controls,
        selections: Mapping[str, Selection],
    ) -> None:
        keys = [name for name, set_ in controls.queues.items() if set_.is_limited and name.fairness_key]
        limited = {name.queue for name in keys} | {name for name in queues if controls.queue(name).is_limited}
        apart = {name for name, limit in queues.items() if limit is not None or name in limited or name in selections}
        self.queues, self.types = list(queues), list(types)
        self.own_types = {name for name in types if name in slots or controls.type(name).is_limited}
        self.shared_types = [name for name in types if name not in self.own_types]
        together = [name for name in queues if name not in apart]
        self._of: dict[Queue, Partition] = {}
        self.every: list[Partition] = []
        for of_queues, queue in [(together, None), *(([name], name) for name in queues if name in apart)]:
            for names, type_name in [
                (self.shared_types, None),
                *(([name], name) for name in types if name in self.own_types),
            ]:
                if not of_queues or not names:
                    continue
                partition = Partition(
                    types=names,
                    queue=queue,
                    own_type=type_name,
                    executor=executor,
                    limits=_limits(model, controls, queue, type_name, keys),
                    selection=None if queue is None else selections.get(queue),
                )
                self.every.append(partition)
                self._of |= {(name, type_name or ""): partition for name in of_queues}
        self._types_of: dict[str, list[str]] = {}
        for queue, type_name in self._of:
            self._types_of.setdefault(queue, []).append(type_name)
        self._controls, self.paused = controls, controls.paused_queues
        self.is_limited = any(partition.limits is not None for partition in self.every)
        """Whether limits across all workers hold for any of them."""

    def weight(self, queue_key: QueueKey) -> int:
        """Return the weight of a queue, or of a fairness key."""
        return self._controls.queue(*queue_key).weight

    def of(self, queue: Queue) -> Partition | None:
        """Return the partition of a queue and type; None where it is not served, or not now."""
        return self._of.get(queue)

    def lanes(self, queue: str, fairness_key: str, priority: int) -> list[Lane]:
        """Return the lanes, one for each partition of types, in which jobs of a queue are; none where it is not served."""
        if self.paused and QueueKey(queue, fairness_key) in self.paused:
            return []
        return [Lane(queue, fairness_key, priority, name) for name in self._types_of.get(queue, ())]

    def of_lane(self, lane: Lane) -> Partition | None:
        """Return the partition of a lane; None where it is not served, or paused."""
        if self.paused and QueueKey(lane.queue, lane.fairness_key) in self.paused:
            return None
        return self._of.get((lane.queue, lane.type_name))


def _limits(
    model: JobClass, controls: Controls, queue: str | None, type_name: str | None, keys: Sequence[QueueKey]
) -> Limits | None:
    of_queue = queue if queue is not None and controls.queue(queue).is_limited else None
    of_type = type_name if type_name is not None and controls.type(type_name).is_limited else None
    of_keys = [name for name in keys if name.queue == queue]
    return Limits(model, of_queue, of_type, of_keys) if of_queue is not None or of_type is not None or of_keys else None
