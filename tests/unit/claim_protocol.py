"""Where each lane's scan starts, and which jobs arrived behind it: the state between a worker's claims.

A **cursor** is a key `(scheduled_at, id)` of a lane: nothing that the last claims saw lies unclaimed at or before it. The
**watermark** is the snapshot of the last catch-up. A **late arrival** is a job that became visible behind its lane's cursor.

Why no job is missed. Let a claim on snapshot C move a cursor past the place of job r, and let the transaction that makes r
claimable commit after C. That transaction was not visible in C, so it was not visible in any earlier watermark W: it
is in W's list of transactions in progress, or at or above W's xmax. The next catch-up after its commit compares with W and
returns r, provided that it is given the cursors *after* that claim. Hence two rules of order: claims and catch-ups of one
worker do not overlap, and where both are sent in one round trip the catch-up goes first.

A late arrival stays here until a claim was given its id, also while its lane is paused or has no capacity. Not covered is a
job that was skipped because another claim held it and then rolled back: the cursors are reset every few seconds for those.

The worker does not use it yet: `worker/claim/floors.py` has what it is to replace, with fewer statements and concepts.

No clock and no I/O. Any failure is answered by `reset`: the next claim scans from the start, slower and never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

START: Final = datetime(1, 1, 1, tzinfo=UTC)
NO_TRANSACTION: Final = 2**64 - 1

Key: TypeAlias = tuple[datetime, Any]


class Lane(NamedTuple):
    """What one index probe of a claim scans."""

    queue: str
    fairness_key: str
    priority: int


class Segment(NamedTuple):
    """Lanes of a plan that share a quota, in the order in which to scan them."""

    lanes: Sequence[Lane]
    quota: int


class Snapshot(NamedTuple):
    """What a statement could not see: transactions in progress, and all from `xmax` on."""

    xmax: int
    in_progress: frozenset[int]


class Found(NamedTuple):
    """A job that a claim started or a catch-up returned."""

    lane: Lane
    at: datetime
    id: Any

    @property
    def key(self) -> Key:
        """Its place in its lane."""
        return (self.at, self.id)


NOTHING_SEEN: Final = Snapshot(NO_TRANSACTION, frozenset())
"""The watermark before the first catch-up, which only takes a snapshot: no cursor has moved yet."""


class Cursors:
    """The cursors of one worker's lanes, its late arrivals and its watermark."""

    def __init__(self, lanes: Iterable[Lane], lowest_id: Any) -> None:
        self._start: Key = (START, lowest_id)
        self._lowest_id = lowest_id
        self.of_lane: dict[Lane, Key] = dict.fromkeys(lanes, self._start)
        self._late: dict[Lane, dict[Any, None]] = {}
        self.watermark = NOTHING_SEEN
        self._database_now = START

    @property
    def needs_catch_up(self) -> bool:
        """Whether a catch-up must precede the next claim: a cursor may not move without a watermark before it."""
        return self.watermark is NOTHING_SEEN

    def reset(self) -> None:
        """Have every lane scanned from its start, after the next catch-up."""
        self._rewind()
        self.watermark = NOTHING_SEEN

    def add(self, lanes: Iterable[Lane]) -> None:
        """Add lanes, to be scanned from their start."""
        for lane in lanes:
            self.of_lane.setdefault(lane, self._start)

    def late(self, lanes: Iterable[Lane], limit: int) -> list[Any]:
        """Return the ids of up to `limit` late arrivals of these lanes, for the next claim."""
        ids = [job_id for lane in lanes for job_id in self._late.get(lane, ())]
        return ids[:limit]

    def caught_up(self, found: Iterable[Found], *, is_cut: bool, now: datetime, snapshot: Snapshot) -> None:
        """Record a catch-up. `is_cut`: it returned as many rows as it may, so there can be more; lanes are scanned instead.

        A job that is not of a known lane makes its lane known; a job ahead of its cursor is left to the lane's scan.
        """
        self.watermark = snapshot
        if is_cut or self._stepped_back(now):
            self._rewind()
        for lane, at, job_id in found:
            if lane not in self.of_lane:
                self.of_lane[lane] = self._start
            elif (at, job_id) <= self.of_lane[lane]:
                self._late.setdefault(lane, {})[job_id] = None

    def claimed(
        self, jobs: Sequence[Found], segments: Sequence[Segment], late: Iterable[Any], *, limit: int, now: datetime
    ) -> None:
        """Move the cursors after a claim that was given these segments, late arrivals and limit, and started `jobs`."""
        given = set(late)
        for lane in list(self._late):
            self._late[lane] = {job_id: None for job_id in self._late[lane] if job_id not in given}
            if not self._late[lane]:
                del self._late[lane]
        if self._stepped_back(now):
            # What this claim did not find due yet may lie behind the cursors.
            self._rewind()
            return
        in_order: dict[Lane, list[Key]] = {}
        for job in jobs:
            if job.id not in given:
                in_order.setdefault(job.lane, []).append(job.key)
        left = limit - sum(job.id in given for job in jobs)
        for segment in segments:
            if left <= 0:
                return  # not scanned
            left -= self._advance(segment, in_order, min(left, segment.quota), (now, self._lowest_id))

    def _advance(self, segment: Segment, in_order: Mapping[Lane, Sequence[Key]], allowed: int, end: Key) -> int:
        """Move the cursors of a segment's lanes; return how many jobs it gave."""
        gave = sum(len(in_order.get(lane, ())) for lane in segment.lanes)
        left = gave
        for lane in segment.lanes:
            if allowed <= 0:
                break
            keys = in_order.get(lane, ())
            left -= len(keys)
            if gave < allowed or left > 0:  # scanned to its end
                self.of_lane[lane] = max(self.of_lane[lane], end)
            else:  # cut off in this lane, the last that gave a job
                self.of_lane[lane] = max(keys)
                break
        return gave

    def _stepped_back(self, now: datetime) -> bool:
        before, self._database_now = self._database_now, now
        return now < before

    def _rewind(self) -> None:
        self.of_lane = dict.fromkeys(self.of_lane, self._start)
        self._late.clear()
