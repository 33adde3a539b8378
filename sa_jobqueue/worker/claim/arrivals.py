"""Learns which lanes have jobs and which jobs arrived behind cursors: by a full scan at first, then by catch-ups.

After each catch-up with snapshot S, every lane that has a pending job of the worker's queues in S is known, or the full scan
under way finds it: it began after the watermark was taken, and what became visible since is returned by a catch-up.
Full scans are repeated for what neither of them covers, jobs that were skipped because another claim held them and then
rolled back: that bounds how long such a job can be overlooked (`FULL_SCAN_EVERY`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobClass
from sa_jobqueue.statements import arrivals
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import Arrival, Cursors, Lane, Snapshot
from sa_jobqueue.worker.claim.partitions import Partitions
from sa_jobqueue.worker.shared import version_parameters

CATCH_UP_EVERY: Final = 0.05
"""Seconds between two catch-ups of a busy worker, at least; more where one takes long."""
FULL_SCAN_EVERY: Final = 5.0
"""Seconds from a full scan to the next one of a worker that has claimed since, at least; more where one takes long."""
FULL_SCAN_IDLE: Final = 600.0
"""The same for one that has not."""
_SHARE_OF_CATCH_UPS: Final = 20
_SHARE_OF_FULL_SCANS: Final = 200
"""Catch-ups, and full scans, may take one part in so many of the time."""
_AFTER_A_CUT: Final = 20
_ARRIVALS: Final = 2000
_READ: Final = 20_000
"""Rows that one catch-up returns and reads at most; where there are more, the lanes are scanned in full instead. Reading the
second number takes about 20 ms."""
_KNOWN: Final = 64
"""Lanes with a backlog that one catch-up names, so that it does not return what their scans find."""
_PAGE: Final = 1000
"""Lanes of one page of a full scan."""
_FIRST_LANE: Final = ("", "", -1000)


class Arrivals:
    """Runs catch-ups and full scans for one worker. `clock`: monotonic seconds."""

    def __init__(
        self,
        model: JobClass,
        partitions: Partitions,
        cursors: Cursors,
        backlog: Backlog,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._catch_up = compiled(arrivals.catch_up, model)
        self._full_scan = compiled(arrivals.full_scan, model)
        self._partitions, self._cursors, self._backlog = partitions, cursors, backlog
        self._clock = clock
        self._catch_up_at = 0.0
        self._after: tuple[str, str, int] | None = _FIRST_LANE
        """Where the next page of the full scan that is under way begins."""
        self._full_scan_began = self._full_scan_took = 0.0
        self._full_scan_at = 0.0
        self._claimed = True

    def claimed(self) -> None:
        """Record that a claim ran: it may have skipped rows that others held."""
        self._claimed = True

    def request_full_scan(self) -> None:
        """Begin a full scan next."""
        self._full_scan_at = float("-inf")

    @property
    def is_scanning(self) -> bool:
        """Whether lanes may have jobs that are not known yet."""
        return self._after is not None

    @property
    def may_have_news(self) -> bool:
        """Whether to ask before going to sleep: no lane is open, or the last catch-up was a while ago."""
        return not self._backlog.open or self._after is not None or self._clock() >= self._catch_up_at

    def full_scan_in(self) -> float:
        """Return in how many seconds a full scan is due."""
        return max(self._next_full_scan() - self._clock(), 0.0)

    async def keep_up(self, connection: AsyncConnection) -> None:
        """Scan in full where that is due, a page at a time; catch up where lanes are open, for others may have come."""
        now = self._clock()
        if self._after is None and now >= self._next_full_scan():
            self._after = _FIRST_LANE
        if self._after is not None:
            await self._read_page(connection, self._after)
        if self._backlog.open and now >= self._catch_up_at:
            await self.catch_up(connection)

    async def ask(self, connection: AsyncConnection) -> None:
        """Read the next page of a full scan that is under way; otherwise catch up."""
        if self._after is not None:
            await self._read_page(connection, self._after)
        else:
            await self.catch_up(connection)

    def _next_full_scan(self) -> float:
        every = FULL_SCAN_EVERY if self._claimed else FULL_SCAN_IDLE
        return min(self._full_scan_at, self._full_scan_began + max(every, _SHARE_OF_FULL_SCANS * self._full_scan_took))

    async def catch_up(self, connection: AsyncConnection) -> None:
        """Ask what became visible since the last catch-up, and for the next job of lanes that were read to their end."""
        cursors, backlog = self._cursors, self._backlog
        if cursors.watermark is None:
            await self._read_page(connection, self._after or _FIRST_LANE)
            return
        began = self._clock()
        open_lanes = [lane for lane, _ in zip(backlog.open, range(_KNOWN), strict=False)]
        asked_lanes = backlog.asks()
        rows = await self._catch_up.execute(
            connection,
            {
                "queues": self._partitions.queues,
                "types": self._partitions.types,
                "shared_types": self._partitions.shared_types,
                **version_parameters(cursors.versions),
                "xmax": cursors.watermark.xmax,
                "xip": cursors.watermark.xip,
                "most": _ARRIVALS,
                "most_read": _READ,
                "paused_keys": [key.text for key in self._partitions.paused if key.fairness_key],
                **_lane_parameters("known", open_lanes),
                "known_at": [cursors.of_lane[lane][0] for lane in open_lanes],
                "known_id": [cursors.of_lane[lane][1] for lane in open_lanes],
                **_lane_parameters("ended", asked_lanes),
                "read_to": min([cursors.of_lane[lane][0] for lane in asked_lanes], default=None),
            },
        )
        now = self._clock()
        self._catch_up_at = now + max(CATCH_UP_EVERY, _SHARE_OF_CATCH_UPS * (now - began))
        database_now, xmax, xip, is_cut = rows[0][:4]
        arrivals: list[Arrival] = []
        due: list[tuple[Lane, float]] = []
        own_types = self._partitions.own_types
        for _, _, _, _, job_id, queue, fairness_key, priority, type_name, at, xid, wait in rows:
            if queue is None:  # there was nothing
                continue
            own_type = type_name if job_id is None or type_name in own_types else ""
            lane = Lane(queue, fairness_key, priority, own_type)
            if self._partitions.of_lane(lane) is None:
                continue
            due.append((lane, now + wait))
            if job_id is not None:
                arrivals.append(Arrival(lane, at, job_id, xid))
        rewound = cursors.caught_up(arrivals, Snapshot(xmax, xip), database_now, is_cut=is_cut)
        for lane, at in due:
            backlog.found(lane, at, now)
        backlog.answered(asked_lanes)
        if rewound:
            backlog.open_again(cursors.of_lane, now)
            self._full_scan_at = min(self._full_scan_at, self._full_scan_began + _AFTER_A_CUT * self._full_scan_took)

    async def _read_page(self, connection: AsyncConnection, after: tuple[str, str, int]) -> None:
        """Read one page of a full scan."""
        began = self._clock()
        names = ("after_queue", "after_fairness_key", "after_priority")
        parameters = dict(zip(names, after, strict=True)) | {"served_queues": self._partitions.queues, "most": _PAGE}
        rows = await self._full_scan.execute(connection, parameters)
        now = self._clock()
        if after == _FIRST_LANE:
            self._full_scan_began, self._full_scan_took = began, 0.0
            self._full_scan_at, self._claimed = float("inf"), False
            if self._cursors.watermark is None:
                self._cursors.watermark = Snapshot(rows[0][1], rows[0][2])
        self._full_scan_took += now - began
        for *_, queue, fairness_key, priority, at, wait in rows:
            if queue is None:
                continue
            for lane in self._partitions.lanes(queue, fairness_key, priority):
                self._cursors.late.pop(lane, None)  # found again by the scan, in their order
                self._cursors.lower(lane, min(at, rows[0][0]))
                self._backlog.found(lane, now + wait, now)
        self._after = tuple(rows[-1][3:6]) if len(rows) >= _PAGE else None

    async def scan_all(self, connection: AsyncConnection) -> None:
        """Perform a full scan, after a catch-up."""
        await self._read_page(connection, _FIRST_LANE)
        while self.is_scanning:
            await self.ask(connection)
        await self.catch_up(connection)


def _lane_parameters(name: str, lanes: list[Lane]) -> dict[str, list[Any]]:
    return {
        f"{name}_queues": [lane.queue for lane in lanes],
        f"{name}_fairness_keys": [lane.fairness_key for lane in lanes],
        f"{name}_priorities": [lane.priority for lane in lanes],
        f"{name}_types": [lane.type_name for lane in lanes],
    }
