"""Deletes chains and dead letters whose retention period has ended, in every worker, without a leader."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.events import ChainsPruned
from sa_jobqueue.operations import PruneCursor
from sa_jobqueue.statements import minutes, retention, steps
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.shared import Part, Shared

_TO_THE_END: Final = timedelta(hours=6)
"""Minimum time between two walks that continue past jobs too young to be deleted."""
_DUTY: Final = 200
"""Such a walk may use 1 part in this many of the time."""
_IDLE: Final = timedelta(minutes=1)
"""Time without a job after which a worker prunes less often."""
_IDLE_INTERVAL: Final = timedelta(minutes=30)
"""Time between two walks of such a worker."""
_PATIENCE: Final = 2
"""Maximum seconds to wait for a lock on an application's row that refers to a job."""


_RECORDED: Final = {"transactions": 500_000, "limit": 50_000, "most": 100}
"""Bounds of the rows that the figures of a minute count."""
_EVENTS: Final = 1000
"""Expired events that one statement deletes at most."""


class Pruner(Part, Component):
    """Walks through the jobs by id, then the dead letters and the audit, and deletes expired rows, a page per transaction.

    Every worker runs one, less often while it is idle; any number may overlap: rows locked by one are skipped by the others.
    A crash rolls back one page and leaves the rest to the next walk of any worker. Woken by its timer only; after each page
    it rests for as long as the page took.

    Ids grow with time, with our factory and most others, so a walk ends at a page of jobs created too recently to have
    expired. If they do not, or a client's clock was wrong, an occasional walk to the end finds the rest.
    """

    name = "pruner"

    def __init__(self, shared: Shared, *, idle_for: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(shared)
        self._rules, self._idle_for = shared.jobs.retention_rules, idle_for
        self._full_walk_at = 0.0
        """When the next walk to the end is due, by the loop's clock."""

    async def run(self) -> None:
        """Walk until cancelled; without any retention period these are two small statements each time."""
        loop = asyncio.get_running_loop()
        # Workers are often restarted together: none starts with a walk to the end.
        self._full_walk_at = loop.time() + _TO_THE_END.total_seconds() * random.random()
        started = float("-inf")
        while True:
            await asyncio.sleep(self._options.prune_interval.total_seconds() * random.uniform(0.8, 1.2))
            is_idle = self._idle_for() > _IDLE.total_seconds() and loop.time() < started + _IDLE_INTERVAL.total_seconds()
            if is_idle and not self._quarantine.lapsed(RefusedWrite.PRUNE):
                continue
            started, began = loop.time(), time.monotonic()
            is_full = started >= self._full_walk_at
            await self.walk(to_the_end=is_full)
            await self.walk_events()
            await self.record_minutes()
            await self._quarantine.written(RefusedWrite.PRUNE, self._quarantine.lapsed(RefusedWrite.PRUNE, began))
            if is_full:
                spent = loop.time() - started
                self._full_walk_at = loop.time() + max(_TO_THE_END.total_seconds(), _DUTY * spent) * random.uniform(0.8, 1.2)

    async def walk(self, *, to_the_end: bool) -> None:
        """Walk once through the tables, one page per transaction, and report deletions."""
        loop = asyncio.get_running_loop()
        cursor: PruneCursor | None = PruneCursor()
        chains = jobs = dead_letters = 0

        while cursor is not None:
            started = loop.time()
            excluded = frozenset(self._quarantine.quarantined(RefusedWrite.PRUNE))
            async with AsyncSession(self._transactions) as session, session.begin():
                await session.execute(retention.bounded(), {"seconds": _PATIENCE})
                options: dict[str, Any] = {"to_the_end": to_the_end, "excluded": excluded, "model": self._model}
                page = await aio.prune(session, self._rules, cursor=cursor, **options)
            await self._quarantine.add(RefusedWrite.PRUNE, page.refused.items())
            chains, jobs = chains + sum(page.chains.values()), jobs + page.jobs
            dead_letters += page.dead_letters
            cursor = page.next
            if cursor is not None:
                await asyncio.sleep(loop.time() - started)
        if chains or dead_letters:
            self._events.emit(ChainsPruned(chains, jobs, dead_letters))

    async def walk_events(self) -> None:
        """Delete expired events."""
        deleted = _EVENTS
        while deleted == _EVENTS:
            async with self._transactions.begin() as connection:
                deleted = len((await connection.execute(steps.prune_events(self._model), {"limit": _EVENTS})).all())

    async def record_minutes(self) -> None:
        """Write the figures of the minutes that have ended, unless another worker has, and delete those past a day."""
        async with self._transactions.begin() as connection:
            for since, until in (await connection.execute(minutes.unrecorded(self._model))).all():
                await connection.execute(minutes.record(self._model), {"since": since, "until": until, **_RECORDED})
                await connection.execute(minutes.prune(self._model))
