"""Where each lane's scan starts, and which jobs arrived behind it: the state between a worker's claims.

A **cursor** is a key `(scheduled_at, id)` of a lane: nothing that the last claims saw lies unclaimed at or before it. The
**watermark** is the snapshot of the last catch-up. A **late arrival** is a job that became visible behind its lane's cursor.

Why no job is missed. Let a claim on snapshot C move a cursor past the place of job r, and let the transaction that makes r
claimable commit after C. That transaction was not visible in C, so it was not visible in any earlier watermark W: it
is in W's list of transactions in progress, or at or above W's xmax. The next catch-up after its commit compares with W and
returns r, provided that it knows the cursors *after* that claim. Hence claims and catch-ups of one worker do not overlap.

A late arrival stays here until a claim was given its id, even while its lane has no capacity. Not covered is a job that was
skipped because another claim held it and then rolled back: for those a full scan lowers the cursors every few seconds.

No clock and no I/O. Losing everything costs a scan from the start, which is slower and never wrong.
Source: the keyset cursor is this project's; the comparison of snapshots is PgQ's (M. Kreen et al., Skype, 2007).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from sa_jobqueue.worker.shared import version_parameters

START: Final = datetime(1, 1, 1, tzinfo=UTC)
FLOOD: Final = 500
"""Late arrivals of one lane that are kept by id; with more of them the cursor is lowered, and the lane is scanned."""

RECENT: Final = timedelta(milliseconds=100)
"""How far a cursor stays behind the clock at its lane's end, unless a later job was started. A job is due when its
transaction begins: one that commits within this time is usually ahead of the cursor, and needs no catch-up."""

Key: TypeAlias = tuple[datetime, Any]


class Lane(NamedTuple):
    """What one index probe of a claim scans: a priority of a fairness key, of all types that share their capacity."""

    queue: str
    fairness_key: str
    priority: int
    type_name: str = ""
    """The job type, if it has a separate capacity; empty for all other types together."""


class Segment(NamedTuple):
    """Lanes that share a quota, in the order in which to scan them, and the job types that may start."""

    lanes: Sequence[Lane]
    quota: int
    types: Sequence[str]


class Plan(NamedTuple):
    """What one claim scans, in this order, and the late arrivals that it takes first: by id, the transaction of each."""

    segments: Sequence[Segment]
    late: Mapping[Any, str]
    limit: int


class Snapshot(NamedTuple):
    """The transactions that a statement could not see, as texts: all transactions from `xmax` on, and those in progress."""

    xmax: str
    xip: Sequence[str]


class Arrival(NamedTuple):
    """A pending job that became visible since the last catch-up."""

    lane: Lane
    at: datetime
    id: Any
    xid: str


class Cursors:
    """Cursors, late arrivals and watermark of one worker.

    `own_types`: the job types with a separate capacity. `lowest_id`: an id that sorts before every other one.
    """

    def __init__(self, own_types: Collection[str], lowest_id: Any) -> None:
        self._own_types = frozenset(own_types)
        self.versions: Mapping[str, int] = {}
        """The latest version of the payload that the worker knows, by job type; of others, all."""
        self._lowest_id = lowest_id
        self._start: Key = (START, lowest_id)
        self.of_lane: dict[Lane, Key] = {}
        self.late: dict[Lane, dict[Any, str]] = {}
        self.watermark: Snapshot | None = None
        """None until the first full scan: no cursor may move without a watermark before it."""
        self._database_now = START

    def lane_of(self, job: Any) -> Lane:
        """Return the lane of a job that was claimed, or offered to a selector."""
        own_type = job.type_name if job.type_name in self._own_types else ""
        return Lane(job.queue, job.fairness_key, job.priority, own_type)

    def lower(self, lane: Lane, at: datetime) -> None:
        """Have a lane scanned from `at` on at the latest, since a job is there; makes the lane known."""
        key = (at, self._lowest_id)
        self.of_lane[lane] = min(self.of_lane.get(lane, key), key)

    def forget(self, lane: Lane) -> None:
        """Remove a lane that has no pending job, as of the watermark."""
        self.of_lane.pop(lane, None)

    def rewind(self) -> list[Lane]:
        """Have every lane scanned from its start; return the lanes."""
        self.of_lane = dict.fromkeys(self.of_lane, self._start)
        self.late.clear()
        return list(self.of_lane)

    def caught_up(self, arrivals: Iterable[Arrival], snapshot: Snapshot, now: datetime, *, is_cut: bool) -> bool:
        """Record a catch-up; return whether the lanes were rewound.

        They are where `is_cut`, since there was more than it returned, or where the database's clock `now` stepped back. A
        lane that was not known starts at its earliest arrival; a job after its lane's cursor is left to the lane's scan.
        """
        self.watermark = snapshot
        is_rewound = self._steps_back(now) or is_cut
        new: set[Lane] = set()
        for lane, at, job_id, xid in arrivals:
            if lane not in self.of_lane:
                new.add(lane)
            if lane in new:
                self.lower(lane, min(at, now))
            elif (at, job_id) <= self.of_lane[lane]:
                late = self.late.setdefault(lane, {})
                late[job_id] = xid
                if len(late) > FLOOD:
                    self.of_lane[lane] = self._start
                    del self.late[lane]
        if is_rewound:
            self.rewind()
        return is_rewound

    def claimed(self, plan: Plan, jobs: Sequence[Any], now: datetime) -> tuple[list[Lane], Counter[Lane]]:
        """Move the cursors after a claim of this plan that started `jobs`, at `now` by the database's clock.

        Returns the lanes that were read to their end, and how many jobs of each lane were started. `jobs` in any order; a
        claim that failed does not come here.
        """
        if plan.late:
            for lane in list(self.late):
                xid_by_id = {job_id: xid for job_id, xid in self.late[lane].items() if plan.late.get(job_id) != xid}
                if xid_by_id:
                    self.late[lane] = xid_by_id
                else:
                    del self.late[lane]
        if self._steps_back(now):
            # What this claim did not find due yet may lie behind the cursors.
            self.rewind()
            return [], Counter(map(self.lane_of, jobs))
        of_lane: dict[Lane, list[Any]] = {}
        late: dict[Lane, int] = {}
        for job in jobs:
            lane = self.lane_of(job)
            if job.id in plan.late:
                late[lane] = late.get(lane, 0) + 1
            elif lane in of_lane:
                of_lane[lane].append(job)
            else:
                of_lane[lane] = [job]
        started = Counter({lane: len(lane_jobs) for lane, lane_jobs in of_lane.items()})
        started.update(late)
        recent = (now - RECENT, self._lowest_id)
        ended: list[Lane] = []
        remaining_limit = plan.limit - sum(late.values())
        for lanes, quota, _ in plan.segments:
            if min(remaining_limit, quota) <= 0:
                continue  # not scanned
            gave, read = self._read(lanes, of_lane, min(remaining_limit, quota))
            for lane in lanes[:read]:
                self._advance(lane, of_lane.get(lane, ()), recent)
                ended.append(lane)
            if read < len(lanes):
                self._advance(lanes[read], of_lane[lanes[read]])
            remaining_limit -= gave
        return ended, started

    def _advance(self, lane: Lane, jobs: Iterable[Any], *keys: Key) -> None:
        self.of_lane[lane] = max(self.of_lane[lane], *keys, *((job.scheduled_at, job.id) for job in jobs))

    @staticmethod
    def _read(lanes: Sequence[Lane], jobs: Mapping[Lane, Sequence[Any]], allowed: int) -> tuple[int, int]:
        """Return how many jobs the lanes of a segment gave of those `allowed`, and how many lanes were read to their end."""
        gave = 0
        last = -1
        for place, lane in enumerate(lanes):
            if lane in jobs:
                gave += len(jobs[lane])
                last = place
        # Cut off in the last lane that gave a job, where there were enough.
        return gave, len(lanes) if gave < allowed else last

    def _steps_back(self, now: datetime) -> bool:
        before, self._database_now = self._database_now, now
        return now < before

    def parameters(self, plan: Plan, excluded: Collection[Any] = ()) -> dict[str, Any]:
        """Return a plan as parameters of `statements.claims.claim`, without the `excluded` ids."""
        lanes: list[Lane] = []
        types: list[str] = []
        places: dict[tuple[str, ...], tuple[int, int]] = {}
        segments: list[tuple[int, int, int, int, int]] = []
        for of_segment, quota, names in plan.segments:
            if (key := tuple(names)) not in places:
                places[key] = len(types) + 1, len(types) + len(key)
                types += key
            segments.append((len(lanes) + 1, len(lanes) + len(of_segment), quota, *places[key]))
            lanes += of_segment
        cursors = [self.of_lane[lane] for lane in lanes]
        late = [job_id for job_id in plan.late if job_id not in excluded] if excluded else list(plan.late)
        return {
            "queues": [lane.queue for lane in lanes],
            "fairness_keys": [lane.fairness_key for lane in lanes],
            "priorities": [lane.priority for lane in lanes],
            "cursor_at": [at for at, _ in cursors],
            "cursor_id": [job_id for _, job_id in cursors],
            "types": types,
            **(version_parameters(self.versions) if self.versions else {}),
            "late_ids": late,
            "late_xids": [plan.late[job_id] for job_id in late],
            "apart": list(excluded),
            "limit": plan.limit,
            "segment_first": [segment[0] for segment in segments],
            "segment_last": [segment[1] for segment in segments],
            "segment_quota": [segment[2] for segment in segments],
            "segment_first_type": [segment[3] for segment in segments],
            "segment_last_type": [segment[4] for segment in segments],
        }
