"""Groups of lanes with a common limit, from which claims take in turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import SEPARATOR, whole
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from sa_jobqueue.worker.background.settings import Controls
from sa_jobqueue.worker.claim.dividing import Bucket, Divided
from sa_jobqueue.worker.claim.floors import Floors, Lane, lanes_given
from sa_jobqueue.worker.claim.limits import SELDOM, Limits
from sa_jobqueue.worker.claim.parts import Parts
from sa_jobqueue.worker.claim.planning import Ageing, Planner, Share
from sa_jobqueue.worker.claim.readings import EVERY, Reading
from sa_jobqueue.worker.run.executor import Executor


class Group:
    """Lanes of some queues, for jobs of some types, with one limit and with floors of their own.

    `room`: how many of its jobs may be started beside those that run; None where only the free slots limit it.
    `limits`: those that hold across all workers, or None. `buckets`: this worker's parts of rates.
    `fair`: its queues share by weight; otherwise priorities go first, over all of them.
    """

    def __init__(
        self,
        queues: Sequence[str],
        types: Sequence[str],
        lowest_id: Any,
        *,
        room: Callable[[], int] | None,
        limits: Limits | None,
        fair: bool,
        paused: Iterable[str] = (),
        buckets: Sequence[Bucket] = (),
    ) -> None:
        self.queues = list(queues)
        self.types = list(types)
        self.room = room
        self.limits = limits
        self.buckets = buckets
        self.name = f"{','.join(queues)}/{','.join(types) if room else ''}"
        priorities = range(MAX_PRIORITY, MIN_PRIORITY - 1, -1)
        self.floors = Floors([Lane(queue, priority) for priority in priorities for queue in queues], lowest_id)
        self.parts = Parts(queues, self.floors, paused)
        """What is known of parts of its queues, by fairness keys; those that are `paused` are left out."""
        self.ageing = Ageing()
        self.planner = Planner(queues) if fair and len(self.queues) > 1 else None
        self.may_have_more = False
        """Whether the last claim may have left jobs that are due."""

    def plan(
        self, limit: int, rooms: Mapping[str, int] | None = None, *, now: float | None = None
    ) -> tuple[list[Share], Reading | None]:
        """Return how to read its lanes for so many jobs; no reading where the order of the lanes is all there is.

        `rooms`: how many jobs parts may start that have limits of their own, of those that `parts.names` has named.
        `now`: leaves out lanes that have just been empty (`sparing`), perhaps all of them; given, it does not look behind.
        """
        shares = self.planner.plan(limit) if self.planner is not None else []
        if self.parts.is_ready:
            divided = self.parts.divide(shares or [Share(queue, limit) for queue in self.queues], limit, rooms or {})
            return shares, self.floors.blocks(divided, now, limit)
        if shares:
            return shares, self.floors.blocks(shares, now, limit)
        return shares, None if now is None else self.floors.spared(limit, now)

    @property
    def has_more(self) -> bool:
        """Whether it is known to have had more jobs that are due than were taken."""
        sparing = self.floors.sparing
        if self.planner is None and sparing.has_more(EVERY):
            return True
        return self.is_ready or (self.planner is not None and any(map(sparing.has_more, self.queues)))

    @property
    def is_plain(self) -> bool:
        """Whether it may share a claim with others: it has no limit across workers, and no selector."""
        return self.limits is None

    def is_next(self, lane: Lane) -> bool:
        """Return whether the next claim begins with a lane, whatever else is planned."""
        return len(self.queues) == 1 and not self.is_ready and self.floors.sparing.first(EVERY) == self.floors.place_of(lane)

    def names(self) -> list[str]:
        """Return the parts whose limits are to be asked for, before a claim under limits."""
        return self.parts.names()

    def put_off(self, rooms: Mapping[str, int], now: float) -> None:
        """Take in how much room those parts have."""
        self.parts.put_off(rooms, now)

    @property
    def is_ready(self) -> bool:
        """Whether a part of its queues is believed to have a job that is due, for the next claim to find."""
        return self.parts.is_ready

    @property
    def again_in(self) -> float:
        """Seconds until it is worth asking again, though nothing happens; infinite where that is to be waited for."""
        return math.inf

    def follow(self, name: str, now: float) -> bool:
        """Ask for a part again that had no room; return whether there is such a part."""
        return self.parts.follow(name, now)

    @property
    def has_put_off(self) -> bool:
        """Whether it has jobs that are due, and had no room for them."""
        return self.parts.has_put_off

    def reweigh(self, weights: Mapping[str, int]) -> None:
        """Take the weights of queues and of parts."""
        self.parts.reweigh(weights)
        if self.planner is not None:
            self.planner.reweigh(weights)

    def take(self, shares: Sequence[Share], jobs: Sequence[ClaimedJob], limit: int) -> None:
        """Record what a claim with these shares has started; an unplanned claim has no shares."""
        full = len(jobs) >= limit
        by_name = Counter([job.part for job in jobs])
        if self.planner is not None:
            started = _by_queue(by_name)
            full = full or any(started[share.queue] >= share.quota for share in shares)
            self.planner.take(shares, started, free=limit)
        self.ageing.started(len(jobs), full=full)
        # What lies behind the floors fills at most half of a claim.
        self.may_have_more = full or 2 * len(jobs) >= limit
        self.parts.take(by_name)

    def take_aside(self, jobs: Sequence[ClaimedJob], limit: int) -> None:
        """Record what a claim has started of one lane, regardless of the shares."""
        by_name = Counter([job.part for job in jobs])
        if self.planner is not None:
            self.planner.take([], _by_queue(by_name), free=limit)
        self.parts.take(by_name)
        self.may_have_more = True


_FEW: Final = 64
"""So many lanes are read by every claim for one group, and half of it by one for several, of which each lane costs more."""
Quotas: TypeAlias = list[tuple[Group, int]]
"""Groups in the order in which to claim for them, and what each may start."""


class Makes(Protocol):
    """Makes groups of a kind of its own of some queues, and plain ones of the others."""

    @property
    def queues(self) -> Collection[str]:
        """Those queues."""

    def group(self, queues: Sequence[str], *given: Any, **more: Any) -> Group:
        """Return a group, made as `Group` is."""


class Groups:
    """The groups of one worker, and which is next: they share the slots as the queues within one do.

    What has a limit of its own is a group of its own, so that jobs are never skipped because of a temporary limit: the
    queues with a number in `limits`, the job types of `slots`, by name, and what `controls` limit across workers: each such
    type in each such queue and in the rest. So is a queue that has one of `selectors`.
    """

    def __init__(
        self,
        limits: Mapping[str, int | None],
        types: Sequence[str],
        slots: Mapping[str, int],
        *,
        executor: Executor,
        model: type[JobMixin[Any]],
        controls: Controls,
        divided: Divided,
        fair: bool,
        selectors: Makes | None = None,
    ) -> None:
        lowest = lowest_id(model.__jobqueue__)
        parts = [name for name, told in controls.queues.items() if told.is_limited and SEPARATOR in name]
        with_limits = {whole(name) for name in parts}
        with_limits |= {name for name in limits if (told := controls.queue(name)).is_limited or told.is_divided}
        chosen, make = (selectors.queues, selectors.group) if selectors is not None else ((), Group)
        limited = [queue for queue, limit in limits.items() if limit is not None or queue in with_limits or queue in chosen]
        of_types = {name for name in types if (told := controls.type(name)).is_limited or told.is_divided}
        apart = [name for name in types if name in slots or name in of_types]
        free = [queue for queue in limits if queue not in limited]
        rest = [name for name in types if name not in apart]
        self.fair = fair
        self.groups: list[Group] = []
        for queues, queue in [(free, None), *(([one], one) for one in limited)]:
            for names, type_name in [(rest, None), *(([one], one) for one in apart)]:
                if queues and names:
                    buckets = divided.of(queue, type_name)
                    given: dict[str, Any] = {
                        "room": _room(executor, queue, type_name, buckets),
                        "limits": _limits(
                            model, controls, queue, type_name, [name for name in parts if whole(name) == queue]
                        ),
                        "buckets": buckets,
                    }
                    paused = controls.paused_queues
                    self.groups.append(make(queues, names, lowest, fair=fair, paused=paused, **given))
        self._planner = Planner(group.name for group in self.groups)
        self._shares: list[Share] = []
        self.is_limited = any(group.limits is not None for group in self.groups)
        """Whether limits across all workers hold for any of them."""
        lanes = sum(len(group.floors.lanes) for group in self.groups)
        self._many = lanes > (_FEW if len(self.groups) == 1 else _FEW // 2)
        for group in self.groups:
            group.floors.pace(lanes)
        self.reweigh({})

    @property
    def is_wide(self) -> bool:
        """Whether lanes that have just been empty are left out: reading all of them would cost more than the jobs do."""
        return self._many or any(group.is_ready for group in self.groups)

    def stir(self, queue: str | None) -> None:
        """Have the next claim read all lanes of a queue; None: of all."""
        for group in self.groups:
            group.floors.stir(queue)

    def reset(self, now: float) -> None:
        """Have each lane scanned from its start by the next claim."""
        for group in self.groups:
            group.floors.reset(now)

    def reweigh(self, weights: Mapping[str, int]) -> None:
        """Take the weights of queues; those that are not named weigh 1."""
        for group in self.groups:
            group.reweigh(weights)
        whole = {group.name: sum(weights.get(queue, 1) for queue in group.queues) for group in self.groups}
        self._planner.reweigh(whole)

    def plan(self, free: int) -> Quotas:
        """Return the groups to claim for, in turn, and what each may start of `free` slots: together perhaps more."""
        if len(self.groups) == 1:
            group = self.groups[0]
            limit = free if group.room is None else min(free, group.room())
            return [(group, limit)] if limit > 0 else []
        rooms = {group.name: group.room() for group in self.groups if group.room is not None}
        if not self.fair:
            return [(group, room) for group in self.groups if (room := min(rooms.get(group.name, free), free)) > 0]
        named = {group.name: group for group in self.groups}
        self._shares = self._planner.plan(free, rooms)
        return [(named[share.queue], share.quota) for share in self._shares]

    @property
    def may_have_more(self) -> bool:
        """Whether the last claims may have left jobs that are due."""
        return any(group.may_have_more or group.is_ready for group in self.groups)

    def follow(self, queue: str | None, now: float) -> None:
        """Ask for a part again, if it is one and had no room, as one of its jobs has ended."""
        if queue is not None and SEPARATOR in queue:
            for group in self.groups:
                group.parts.follow(queue, now)

    @property
    def is_full(self) -> bool:
        """Whether none of them had room, for limits across all workers, when it last asked."""
        return all(group.limits is not None and group.limits.again_in > 0 for group in self.groups)

    def had_no_room(self, limit: str, now: float) -> bool:
        """Return whether a group waits for room under `queue mail` or `type report`; a part that does is asked for again."""
        kind, _, name = limit.partition(" ")
        key, waiting = (kind == "type", name), False
        for group in self.groups:
            if group.limits is not None and group.limits.covers(key):
                waiting = waiting or group.limits.again_in > 0 or group.follow(name, now)
        return waiting

    def again_in(self) -> float | None:
        """Return in how many seconds a limit that left no room may leave some; None where none stands in the way."""
        waits = [group.limits.again_in for group in self.groups if group.limits is not None and group.limits.again_in]
        waits += [SELDOM for group in self.groups if group.has_put_off]
        waits += [wait for group in self.groups for bucket in group.buckets if (wait := bucket.wait())]
        return min(waits, default=None)

    def lanes(self) -> dict[str, Any]:
        """Return its lanes and types as parameters of `claims.next_due`."""
        lanes = dict.fromkeys(lane for group in self.groups for lane in group.floors.lanes)
        types = sorted({name for group in self.groups for name in group.types})
        return lanes_given(lanes) | {"types": types}

    def parts_at(self) -> float:
        """Return when a part has a job, by the worker's clock: at once, where the last claim had no turn for one."""
        # A group without capacity is tried again when one of its jobs ends.
        asked = [group for group in self.groups if group.room is None or group.room() > 0]
        groups = [group for group in asked if group.limits is None or not group.limits.again_in]
        if any(group.is_ready for group in groups):
            return -math.inf
        return min((at for group in groups if (at := group.parts.next_at) is not None), default=math.inf)

    def take(self, started: Counter[str], free: int) -> None:
        """Take in what the claims of the last plan started, by the name of the group."""
        if len(self.groups) > 1 and self.fair:
            self._planner.take(self._shares, started, free=free)


def _by_queue(counts: Counter[str]) -> Counter[str]:
    """Return counts by queue of counts by queue and part."""
    if not any(SEPARATOR in name for name in counts):
        return counts
    wholes = Counter[str]()
    for name, count in counts.items():
        wholes[whole(name)] += count
    return wholes


def _limits(
    model: type[JobMixin[Any]], controls: Controls, queue: str | None, type_name: str | None, parts: Sequence[str]
) -> Limits | None:
    of_queue = queue if queue is not None and controls.queue(queue).is_limited else None
    of_type = type_name if type_name is not None and controls.type(type_name).is_limited else None
    return Limits(model, of_queue, of_type, parts) if of_queue is not None or of_type is not None or parts else None


def _room(
    executor: Executor, queue: str | None, type_name: str | None, buckets: Sequence[Bucket]
) -> Callable[[], int] | None:
    slots = _slots(executor, queue, type_name)
    return slots if slots is None or not buckets else lambda: min(slots(), *(bucket.room() for bucket in buckets))


def _slots(executor: Executor, queue: str | None, type_name: str | None) -> Callable[[], int] | None:
    if queue is not None and type_name is not None:
        return lambda: min(executor.free_in(queue), executor.free_for(type_name))
    if queue is not None:
        return lambda: executor.free_in(queue)
    if type_name is not None:
        return lambda: executor.free_for(type_name)
    return None
