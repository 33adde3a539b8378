"""Where each lane's scan starts: the state that keeps a claim's cost flat, and why no job is passed over.

A **floor** is the last key `(scheduled_at, id)` of a lane behind which everything visible has been seen; a **baseline** is
the snapshot of the last claim that also looked behind the floors. The invariant after each such claim with snapshot S:
every job that is visible in S, pending, due, of a known type, not locked by another transaction, and at or behind the floor
of its lane, has been claimed. A job that becomes visible later was written by a transaction that was in flight in S
or began after it, and is stamped with that transaction's id: the next such claim finds it by that, wherever it lies.
The same finds the next job of an ordering key, which itself is not written: by the job that released the key.
Floors never pass the database's own `now()`, so what is scheduled for later lies ahead of them; where that clock was set
back, they are dropped. Late commits, past dates, retries and changed priorities are all covered.

Not covered is a row that was skipped because another claim held it, and that claim then rolled back. For those the
floors are dropped every few seconds: that bounds how long such a job can be overlooked (`SAFETY`).

Any failure is answered by dropping everything; the next claim then scans from the start, which is slower and never wrong.
Source: the keyset floor is this project's; the snapshot difference is PgQ's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from sa_jobqueue.policies.fairness import split
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.readings import EVERY, Reading
from sa_jobqueue.worker.claim.sparing import Sparing

SAFETY: Final = 5.0
"""Seconds between two scans from the start, at least; more when one takes long."""
_DUTY: Final = 200
"""A scan from the start may cost one part in so many of the time."""
_FULL_EVERY: Final = 0.05
"""Seconds between two looks behind the floors while there is plenty ahead of them, at least."""
_A_LANE: Final = 0.000125
"""The same for each lane that such a look reads: some 25 times what an empty one costs worker and server."""
_TOO_MANY_STRAYS: Final = 500
START: Final = datetime(1, 1, 1, tzinfo=UTC)
NO_TRANSACTION: Final = str(2**64 - 1)


class Lane(NamedTuple):
    """What one probe of a claim looks at: a priority in a queue, or in a part of it."""

    queue: str
    priority: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Its queue, fairness key and priority."""
        return *split(self.queue), self.priority


_Block: TypeAlias = tuple[str, int, Sequence[int]]
"""A queue, its quota, and places of its lanes."""


class Floors:
    """Floors and baseline of a fixed list of lanes, for one worker, and floors of lanes that come and go (`worker.parts`).

    Those have no baseline: `worker.parts` lowers their floors when something was written behind them. They are read by
    `blocks` alone, while they are open.

    `lowest_id`: an id that sorts before every other of the queue's id type. The clock is an argument everywhere:
    monotonic seconds of this process, used for pacing alone.
    """

    def __init__(self, lanes: Sequence[Lane], lowest_id: Any) -> None:
        self.lanes = list(lanes)
        self._place = {(lane.queue, lane.priority): index for index, lane in enumerate(self.lanes)}
        self._lowest_id = lowest_id
        given = lanes_given(self.lanes)
        self._queues, self._fairness_keys, self._priorities = given.values()
        self._fixed = len(self.lanes)
        self._whole = range(self._fixed)
        self._look_every = _FULL_EVERY
        self._all = list(self.lanes)
        self._given = {
            "queues": list(self._queues),
            "fairness_keys": list(self._fairness_keys),
            "priorities": list(self._priorities),
        }
        self._unused: list[int] = []
        self._ended: dict[int, None] = {}
        self._floors: list[tuple[datetime, Any]] = [(START, lowest_id)] * self._fixed
        self._of_queue: dict[str, list[int]] = {}
        self.sparing = Sparing()
        for index, lane in enumerate(self.lanes):
            self._of_queue.setdefault(lane.queue, []).append(index)
        self._safety = SAFETY
        self._database_now = START
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Forget everything: the next claim scans each lane of the list from its start."""
        self._floors[: self._fixed] = [(START, self._lowest_id)] * self._fixed
        self._xmax = NO_TRANSACTION
        self._xip: list[str] = []
        self.sparing.forget()
        self._cold = True
        self._strays = 0
        self._reset_at = now
        self._full_at = now - 2 * self._look_every

    @property
    def known(self) -> Sequence[Lane]:
        """The lanes of the list, and those that have come since."""
        return self._all

    def pace(self, lanes: int) -> None:
        """Look behind the floors as seldom as is due to a worker whose looks read so many lanes."""
        self._look_every = max(_FULL_EVERY, _A_LANE * lanes)
        self.sparing.fresh_for = 2 * self._look_every

    @property
    def is_cold(self) -> bool:
        """Whether the next claim reads each lane of the list from its start."""
        return self._cold

    def prepare(self, now: float, *, idle: bool) -> bool:
        """Return whether the next claim must look behind the floors, dropping them first when that is due.

        `idle`: nothing is known to be ahead, as before going to sleep: always look then.
        """
        if not self._cold and now - self._reset_at >= self._safety:
            self.reset(now)
        return self._cold or idle or now - self._full_at >= self._look_every

    def blocks(self, shares: Sequence[Share], now: float | None = None, limit: int = 0) -> Reading:
        """Return the reading of queue after queue, each by falling priority and up to its quota.

        `now`: leaves out what `sparing` knows to be empty, for a claim of `limit` that does not look behind the floors.
        """
        of_queue, fixed = self._of_queue, self._fixed
        blocks: list[_Block] = [(queue, quota, of_queue[queue]) for queue, quota in shares]
        if now is not None:
            return self._spared(blocks, now, limit)
        # Those with a baseline first: nothing else is looked for behind its floor, past its quota.
        behind = sum([len(places) for _, _, places in blocks if places[0] < fixed])
        lanes: list[int] = [lane for _, _, places in blocks if places[0] < fixed for lane in places]
        lanes += [lane for _, _, places in blocks if places[0] >= fixed for lane in places]
        firsts, lasts, of_list, tracked = [], [], 0, behind
        for _, _, places in blocks:
            if places[0] < fixed:
                firsts.append(of_list + 1)
                of_list += len(places)
                lasts.append(of_list)
            else:
                firsts.append(tracked + 1)
                tracked += len(places)
                lasts.append(tracked)
        quotas, names = [quota for _, quota, _ in blocks], [queue for queue, _, _ in blocks]
        return Reading(lanes, firsts, lasts, quotas, names, behind or len(lanes))

    def _spared(self, blocks: Sequence[_Block], now: float, limit: int) -> Reading:
        fixed, sparing = self._fixed, self.sparing
        lanes: list[int] = []
        firsts: list[int] = []
        lasts: list[int] = []
        quotas: list[int] = []
        names: list[str] = []
        for queue, quota, every in blocks:
            places: Sequence[int] = every
            if every[0] < fixed:
                # Where those before it fill the claim, it is there in case they do not: what it is known to have will do.
                places = sparing.lanes(queue, every, now if limit > 0 else -math.inf)
                if not places:
                    continue
                if sparing.has_more(queue):
                    limit -= quota
            names.append(queue)
            quotas.append(quota)
            firsts.append(len(lanes) + 1)
            lanes += places
            lasts.append(len(lanes))
        return Reading(lanes, firsts, lasts, quotas, names, 0)

    def spared(self, quota: int, now: float) -> Reading | None:
        """Return the reading of the list without what `sparing` knows to be empty, as one block; None where it is whole."""
        places = self.sparing.lanes(EVERY, self._whole, now)
        if len(places) == self._fixed:
            return None
        return Reading(places, [1], [len(places)], [quota], [EVERY], len(places))

    def stir(self, queue: str | None) -> None:
        """Leave nothing of a queue out of the next claim; None: of any."""
        if queue is None or queue in self._of_queue:
            self.sparing.stir([EVERY, *(self._of_queue if queue is None else [queue])])

    def track(self, lane: Lane, at: datetime) -> None:
        """Have a lane beside the list whose jobs before `at` are known to be gone; one that is there, read it from there."""
        place = self._place.get((lane.queue, lane.priority))
        if place is not None:
            self._floors[place] = min(self._floors[place], (at, self._lowest_id))
            return
        if self._unused:
            place = self._unused.pop()
            self._all[place] = lane
            self._queues[place], self._fairness_keys[place], self._priorities[place] = lane.key
            self._floors[place] = (at, self._lowest_id)
        else:
            place = len(self._all)
            self._all.append(lane)
            queue, fairness_key, priority = lane.key
            self._queues.append(queue)
            self._fairness_keys.append(fairness_key)
            self._priorities.append(priority)
            self._floors.append((at, self._lowest_id))
        self._place[lane.queue, lane.priority] = place

    def open(self, lane: Lane) -> None:
        """Read a tracked lane with its queue, until it is read to its end."""
        places = self._of_queue.setdefault(lane.queue, [])
        if (place := self._place[lane.queue, lane.priority]) not in places:
            places.append(place)
            places.sort(key=lambda place: -self._priorities[place])

    def close(self, lane: Lane) -> None:
        """Read it no more, until it is opened again."""
        self._of_queue[lane.queue].remove(self._place[lane.queue, lane.priority])

    def read_to_end(self) -> list[Lane]:
        """Return the tracked lanes that claims have read to their end since this was last asked; they are closed."""
        ended, self._ended = self._ended, {}
        for place in ended:
            self._of_queue[self._all[place].queue].remove(place)
        return [self._all[place] for place in ended]

    def forget(self, lane: Lane) -> None:
        """Have a tracked lane no more, after it was read to its end."""
        self._unused.append(self._place.pop((lane.queue, lane.priority)))
        if not self._of_queue.get(lane.queue, [0]):
            del self._of_queue[lane.queue]

    def place_of(self, lane: Lane) -> int:
        """Return where in its lists a lane is."""
        return self._place[lane.queue, lane.priority]

    def floor_of(self, lane: Lane) -> tuple[datetime, Any]:
        """Return the key up to which a tracked lane has been read."""
        return self._floors[self._place[lane.queue, lane.priority]]

    def whole(self, quota: int) -> Reading:
        """Return the reading of all the lanes of the list, in their order, as one block."""
        return Reading(self._whole, [1], [self._fixed], [quota], [EVERY], self._fixed)

    def single(self, lane: Lane, quota: int) -> Reading:
        """Return the reading of one lane alone."""
        return Reading([self._place[lane.queue, lane.priority]], [1], [1], [quota], [None], 1)

    def parameters(self, *, changed: bool, reading: Reading | None = None) -> dict[str, Any]:
        """Return the claim's parameters for where to scan; without a `reading` for one that is not shared."""
        given: dict[str, Any]
        if reading is None:
            floors = self._floors[: self._fixed]
            given = self._given | {
                "floor_at": [at for at, _ in floors],
                "floor_id": [job_id for _, job_id in floors],
            }
        else:
            floors = [self._floors[lane] for lane in reading.lanes]
            given = {
                "queues": [self._queues[lane] for lane in reading.lanes],
                "fairness_keys": [self._fairness_keys[lane] for lane in reading.lanes],
                "priorities": [self._priorities[lane] for lane in reading.lanes],
                "floor_at": [at for at, _ in floors],
                "floor_id": [job_id for _, job_id in floors],
                "firsts": reading.firsts,
                "lasts": reading.lasts,
                "quotas": reading.quotas,
            }
        if changed:
            looked_at = floors
            if reading is not None:
                given["lanes_behind"] = reading.behind
                looked_at = floors[: reading.behind]
            given |= {"xmax": self._xmax, "xip": self._xip, "highest_floor": max([at for at, _ in looked_at])}
        return given

    def advance(
        self,
        claimed: Sequence[tuple[str, int, datetime, Any]],
        *,
        limit: int,
        changed: bool,
        database_now: datetime,
        snapshot: tuple[str, list[str]],
        started: float,
        now: float,
        reading: Reading | None = None,
    ) -> None:
        """Take in what a claim returned: `(part, priority, scheduled_at, id)` a job, in any order.

        `limit`: what the claim was allowed to take. `snapshot`: its `xmax` and `xip`. `started`, `now`: when it was
        sent and when it had answered. `reading`: that of its parameters; with `changed` one of all the lanes.
        """
        stepped_back, self._database_now = database_now < self._database_now, database_now
        if stepped_back:
            # What was not due yet to this claim may lie behind the floors; the baseline would never come back to it.
            self.reset(now)
            return
        top = (database_now, self._lowest_id)
        if reading is not None:
            strays = self._advance_blocks(reading, claimed, limit, top, started)
        else:
            ahead: dict[int, list[tuple[datetime, Any]]] = {}
            strays = 0
            for queue, priority, at, job_id in claimed:
                lane, key = self._place[queue, priority], (at, job_id)
                if changed and key <= self._floors[lane]:
                    strays += 1
                else:
                    ahead.setdefault(lane, []).append(key)
            if len(claimed) < limit:
                # Every lane was read to its end.
                self._floors[: self._fixed] = [max(floor, top) for floor in self._floors[: self._fixed]]
                self.sparing.learn(EVERY, self._whole, self._fixed, is_whole=True, now=started)
            elif ahead:
                # Cut off in the last lane that gave anything; those before it were read to their end.
                last_lane = max(ahead)
                for lane in range(last_lane):
                    self._floors[lane] = max(self._floors[lane], top)
                self._floors[last_lane] = max(ahead[last_lane])
                self.sparing.learn(EVERY, self._whole, last_lane, is_whole=True, now=started)
        if changed:
            if strays >= (limit if reading is None else most_behind(limit)):
                # Cut off behind the floors: there may be more, so the old baseline stands and the next claim looks again.
                self._strays += strays
                if self._strays > _TOO_MANY_STRAYS:
                    self.reset(now)
                return
            self._strays = 0
            self._xmax, self._xip = snapshot
            self._full_at = now
        if self._cold:
            self._cold = False
            self._reset_at = now
            self._safety = max(SAFETY, _DUTY * (now - started))

    def _advance_blocks(
        self,
        reading: Reading,
        claimed: Sequence[tuple[str, int, datetime, Any]],
        limit: int,
        top: tuple[datetime, Any],
        started: float,
    ) -> int:
        """Move the floors after a claim that read blocks; return how many jobs lay behind them."""
        floors, place = self._floors, self._place
        last_keys: dict[int, tuple[datetime, Any]] = {}
        ahead: dict[int, int] = {}
        for queue, priority, at, job_id in claimed:
            lane, key = place[queue, priority], (at, job_id)
            if key > floors[lane]:
                count = ahead.get(lane, 0)
                ahead[lane] = count + 1
                if not count or key > last_keys[lane]:
                    last_keys[lane] = key
        strays = len(claimed) - sum(ahead.values())
        left = limit - strays
        for name, first, last, quota in zip(reading.names, reading.firsts, reading.lasts, reading.quotas, strict=True):
            if first == last:  # as most are
                lane = reading.lanes[first - 1]
                taken = ahead.get(lane, 0)
                left -= taken
                is_read = left > 0 and taken < quota
                if is_read:
                    floors[lane] = max(floors[lane], top)
                    if lane >= self._fixed:
                        self._ended[lane] = None
                elif taken:
                    floors[lane] = last_keys[lane]
                if is_read and lane < self._fixed and name is not None:
                    self._learn(name, [lane], 1, started)
                if left <= 0:
                    break
                continue
            block = reading.lanes[first - 1 : last]
            gave = [index for index, lane in enumerate(block) if lane in ahead]
            taken = sum([ahead[block[index]] for index in gave])
            left -= taken
            # Cut off in the last lane that gave anything; those before it, or all, were read to their end.
            cut = len(block) if left > 0 and taken < quota else gave[-1] if gave else 0
            for lane in block[:cut]:
                floors[lane] = max(floors[lane], top)
                if lane >= self._fixed:
                    self._ended[lane] = None
            if cut < len(block) and gave:
                floors[block[cut]] = last_keys[block[cut]]
            if name is not None and block[0] < self._fixed and (cut or gave):
                self._learn(name, block, cut, started)
            if left <= 0:
                break
        return strays

    def _learn(self, name: str, block: Sequence[int], cut: int, started: float) -> None:
        whole = self._fixed if name == EVERY else len(self._of_queue[name])
        self.sparing.learn(name, block, cut, is_whole=len(block) == whole, now=started)


def most_behind(limit: int) -> int:
    """Return how many of a shared claim's jobs may lie behind the floors: half, so that no flood there starves a queue."""
    return (limit + 1) // 2


def lanes_given(lanes: Iterable[Lane]) -> dict[str, list[Any]]:
    """Return lanes as parameters of a statement."""
    keys = [lane.key for lane in lanes]
    return {
        "queues": [queue for queue, _, _ in keys],
        "fairness_keys": [fairness_key for _, fairness_key, _ in keys],
        "priorities": [priority for _, _, priority in keys],
    }
