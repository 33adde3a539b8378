"""Deletes chains and dead letters whose retention period has ended, in every worker, without a leader."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.events import ChainsPruned, DeadLettersPruned
from sa_jobqueue.operations import PruneCursor, Pruned, PrunedDeadLetters
from sa_jobqueue.policies.retention import FOREVER
from sa_jobqueue.statements import minutes, retention, steps
from sa_jobqueue.types import JobId, RefusedWrite
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

P = TypeVar("P", Pruned, PrunedDeadLetters)


class Pruner(Part, Component):
    """Walks through the jobs by id, then through the dead letters, and deletes expired ones, one page per transaction.

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
            if self._idle_for() > _IDLE.total_seconds() and loop.time() < started + _IDLE_INTERVAL.total_seconds():
                continue
            started, began = loop.time(), time.monotonic()
            is_full = started >= self._full_walk_at
            await self.walk(to_the_end=is_full)
            await self.prune_dead_letter_rows(to_the_end=is_full)
            await self.walk_audit()
            await self.walk_events()
            await self.record_minutes()
            await self._quarantine.written(RefusedWrite.PRUNE, self._quarantine.lapsed(RefusedWrite.PRUNE, began))
            if is_full:
                spent = loop.time() - started
                self._full_walk_at = loop.time() + max(_TO_THE_END.total_seconds(), _DUTY * spent) * random.uniform(0.8, 1.2)

    async def walk(self, *, to_the_end: bool) -> None:
        """Walk once through the jobs, and report deletions."""
        chains = jobs = 0
        async for page in self._pages(self._prune, to_the_end=to_the_end):
            chains, jobs = chains + sum(page.chains.values()), jobs + page.jobs
        if chains:
            self._events.emit(ChainsPruned(chains, jobs))

    async def prune_dead_letter_rows(self, *, to_the_end: bool) -> None:
        """Walk once through the dead letters, after the chains: those of deleted chains are resolved by then."""
        if self._rules.shortest_of_dead_letters is None:
            return
        pages = self._pages(self._prune_dead_letters, to_the_end=to_the_end)
        dead_letters = sum([page.dead_letters async for page in pages])
        if dead_letters:
            self._events.emit(DeadLettersPruned(dead_letters))

    async def _pages(
        self, prune: Callable[[AsyncSession, Any, frozenset[JobId]], Awaitable[P]], *, to_the_end: bool
    ) -> AsyncIterator[P]:
        """Delete page by page, each in one transaction: to the end, or to a page of rows that are too young."""
        loop, is_last = asyncio.get_running_loop(), False
        after: Any = None

        async def commit(excluded: frozenset[JobId]) -> P:
            async with AsyncSession(self._transactions) as session, session.begin():
                return await prune(session, after, excluded)

        while not is_last:
            started = loop.time()
            page = await self._quarantine.page(RefusedWrite.PRUNE, commit)
            after = page.next
            is_last = after is None or (page.is_young and not to_the_end and not getattr(after, "due", ()))
            yield page
            if not is_last:
                await asyncio.sleep(loop.time() - started)

    async def _prune(self, session: AsyncSession, after: PruneCursor | None, excluded: frozenset[JobId]) -> Pruned:
        await session.execute(retention.bounded(), {"seconds": _PATIENCE})
        return await aio.prune(session, self._rules, cursor=after, excluded=excluded, model=self._model)

    async def _prune_dead_letters(
        self, session: AsyncSession, after: JobId | None, excluded: frozenset[JobId]
    ) -> PrunedDeadLetters:
        return await aio.prune_dead_letters(session, self._rules, after=after, excluded=excluded, model=self._model)

    async def walk_audit(self) -> None:
        """Delete the audit's records that are past their retention, the oldest first."""
        age = self._rules.default.audit
        if age is None or age >= FOREVER:
            return
        deleted = 1
        while deleted:
            async with AsyncSession(self._transactions) as session, session.begin():
                deleted = await aio.prune_audit(session, age, model=self._model)

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
