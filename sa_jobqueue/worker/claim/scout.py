"""Finds the parts of queues that have jobs: by a survey at first, then by what was written since.

What is known after each look with snapshot S: every part that had a pending job of our queues in S, or the survey under way
finds it. A job that becomes visible later was written by a transaction that S did not see, and is stamped with its id: the
next look finds it by that and lowers the floor of its lane to it, wherever it lies. A lane is forgotten when it was read to
its end and a look found nothing behind that; so whatever comes into it afterwards is news.

Not covered is a job that was skipped because another claim held it, and that claim then rolled back; nor one of a type that
its lane was first seen without. For those the survey is repeated (`SAFETY`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import SEPARATOR, part_of, whole
from sa_jobqueue.statements import parts
from sa_jobqueue.worker.claim.floors import Lane, lanes_given
from sa_jobqueue.worker.claim.groups import Group

OFTEN: Final = 0.05
"""Seconds between two looks while there are parts: a new one is known that much later at most, notification or not."""
SELDOM: Final = 1.0
"""The same while there has been none for a minute; a notification that names one is answered at once."""
UNTOLD: Final = 20.0
"""The same for a worker that is listening and was not notified since: for jobs that were inserted without a notification."""
SAFETY: Final = 5.0
"""Seconds between two surveys while there are parts, at least; a minute while there are none."""
_DUTY: Final = 200
"""A survey may cost one part in so many of the time."""
_KEYED_FOR: Final = 60.0
_START: Final = ("", "", -1000)
_PAGE: Final = 1000
"""Lanes of one page of a survey."""
_NEWS: Final = 2000
"""Rows that one look reads at most; where more were written, a survey tells the same for less."""


class Scout:
    """What one worker knows of parts, for its groups. The clock, monotonic seconds, is an argument everywhere."""

    def __init__(self, model: type[JobMixin[Any]], types: Sequence[str]) -> None:
        self._survey = compiled(parts.survey, model)
        self._news = compiled(parts.news, model)
        self._types = list(types)
        self.reset()

    def reset(self) -> None:
        """Know of nothing: the next look begins a survey."""
        self._seen: tuple[str, list[str]] | None = None
        self._after: tuple[str, str, int] | None = _START
        self._survey_at = self._looked_at = 0.0
        self._survey_began = self._spent_on_survey = 0.0
        self._keyed_until = float("-inf")
        self._hinted = False
        self._stirred = True

    def hint(self, queue: str | None) -> None:
        """Take in that something came, by a notification. It may name one queue for several."""
        self._stirred = True
        self._hinted = self._hinted or (queue is not None and SEPARATOR in queue)

    def is_due(self, now: float, *, idle: bool, asleep: bool, told: bool) -> bool:
        """Return whether to look before the next claim.

        `idle`: nothing else is due; `asleep`: nor does this worker poll again soon; `told`: it is notified of new jobs.
        """
        if (asleep and (self._stirred or not told)) or self._after is not None or self._hinted or now >= self._survey_at:
            return True
        is_keyed = now < self._keyed_until
        often = OFTEN if is_keyed else (UNTOLD if told and not self._stirred else SELDOM)
        return (idle and is_keyed) or now - self._looked_at >= often

    async def look(
        self,
        connection: AsyncConnection,
        groups: Sequence[Group],
        now: float,
        clock: Callable[[], float],
        *,
        asleep: bool = True,
    ) -> None:
        """Look once, and tell the groups what was found. One page of a survey, where one is due."""
        self._hinted = False
        # Kept by a poll while awake: a producer suppresses notifications for a while after one, so jobs may follow
        # unannounced.
        self._stirred = self._stirred and not asleep
        self._looked_at = now
        queues = sorted({queue for group in groups for queue in group.parts.queues})
        if self._seen is not None:
            await self._hear(connection, groups, queues, self._seen, now)
        if self._after is None and now >= self._survey_at:
            self._after = _START
        if self._after is not None:
            await self._look_over(connection, groups, self._after, now, clock)

    async def _hear(
        self,
        connection: AsyncConnection,
        groups: Sequence[Group],
        queues: list[str],
        seen: tuple[str, list[str]],
        now: float,
    ) -> None:
        asked = [(group, lane) for group in groups for lane in group.parts.spent]
        lanes = list(dict.fromkeys([lane for _, lane in asked]))
        given = {
            "queues": queues,
            "xmax": seen[0],
            "xip": seen[1],
            "most": _NEWS,
            **{f"lane_{name}": values for name, values in lanes_given(lanes).items()},
            "read_to": min([group.floors.floor_of(lane)[0] for group, lane in asked], default=None),
            "types": self._types,
        }
        rows = await self._news.execute(connection, given)
        found = [
            (is_news, Lane(part_of(queue, fairness_key), priority), at, wait)
            for *_, is_news, queue, fairness_key, priority, at, wait in rows
            if queue
        ]
        left = {lane: wait for is_news, lane, _, wait in found if not is_news}
        for group, lane in asked:
            if lane in left:
                group.parts.learn(lane, now + left[lane])
        for group in groups:
            group.parts.forget([lane for other, lane in asked if other is group and lane not in left])
        for is_news, lane, at, wait in found:
            if is_news:
                self._tell(groups, lane, at, now + wait, now)
        if rows[0][3]:
            self._survey_at = min(self._survey_at, self._survey_began + _DUTY / 10 * self._spent_on_survey)
        else:
            self._seen = rows[0][1], rows[0][2]

    async def _look_over(
        self,
        connection: AsyncConnection,
        groups: Sequence[Group],
        after: tuple[str, str, int],
        now: float,
        clock: Callable[[], float],
    ) -> None:
        queues = {queue for group in groups for queue in group.parts.queues}
        began = clock()
        names = ("after_queue", "after_fairness_key", "after_priority")
        given = dict(zip(names, after, strict=True)) | {"most": _PAGE}
        rows = await self._survey.execute(connection, given)
        if not after[0]:
            self._survey_began, self._spent_on_survey = began, 0.0
            self._seen = rows[0][1], rows[0][2]
        self._spent_on_survey += clock() - began
        for *_, queue, fairness_key, priority, at, wait in rows:
            if fairness_key and queue in queues:
                self._tell(groups, Lane(part_of(queue, fairness_key), priority), at, now + wait, now)
        if len(rows) < _PAGE:
            self._after = None
            every = SAFETY if now < self._keyed_until else _KEYED_FOR
            self._survey_at = self._survey_began + max(every, _DUTY * self._spent_on_survey)
        else:
            queue, fairness_key, priority = rows[-1][3:6]
            self._after = queue, fairness_key, priority if fairness_key else 1000

    def _tell(self, groups: Sequence[Group], lane: Lane, at: datetime, due: float, now: float) -> None:
        self._keyed_until = now + _KEYED_FOR
        for group in groups:
            if whole(lane.queue) in group.parts.queues and lane.queue not in group.parts.paused:
                group.floors.track(lane, at)
                group.parts.learn(lane, due)
