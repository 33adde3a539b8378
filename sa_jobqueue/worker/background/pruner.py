"""Deletes chains and dead letters whose retention period has ended, in every worker, without a leader."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.events import ChainsPruned, DeadLettersPruned, EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations import PruneCursor, Pruned
from sa_jobqueue.policies.retention import FOREVER, RetentionRules
from sa_jobqueue.statements import minutes, retention, steps
from sa_jobqueue.types import JobId, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.quarantine import Quarantine

_TO_THE_END: Final = timedelta(hours=6)
"""Minimum time between two walks that continue past jobs too young to be deleted."""
_DUTY: Final = 200
"""Such a walk may use 1 part in this many of the time."""
_PATIENCE: Final = 2
"""Maximum seconds to wait for a lock on an application's row that refers to a job."""


_RECORDED: Final = {"transactions": 500_000, "limit": 50_000, "most": 100}
"""Bounds of what the figures of a minute are counted from."""
_EVENTS: Final = 1000
"""Expired events that one statement deletes at most."""


class Pruner(Component):
    """Walks through the jobs by id, then through the dead letters, and deletes expired ones, one page per transaction.

    Every worker runs one; any number may overlap: rows locked by one are skipped by the others. A crash rolls back one page
    and leaves the rest to the next walk of any worker. Woken by its timer only; after each page it rests for as long as the
    page took.

    Ids grow with time, with our factory and most others, so a walk ends at a page of jobs created too recently to have
    expired. If they do not, or a client's clock was wrong, an occasional walk to the end finds the rest.
    """

    name = "pruner"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        events: EventBus,
        rules: RetentionRules,
        *,
        interval: timedelta,
        quarantine: Quarantine,
    ) -> None:
        # The worker's engine commits each statement; here a lock must last over several.
        self._engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._model = model
        self._events = events
        self._rules = rules
        self._interval = interval.total_seconds()
        self._quarantine = quarantine
        self._full_walk_at = 0.0
        """When the next walk to the end is due, by the loop's clock."""

    async def run(self) -> None:
        """Walk until cancelled; without any retention period these are two small statements each time."""
        loop = asyncio.get_running_loop()
        # Workers are often restarted together: none starts with a walk to the end.
        self._full_walk_at = loop.time() + _TO_THE_END.total_seconds() * random.random()
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))
            started = loop.time()
            is_full = started >= self._full_walk_at
            lapsed = self._quarantine.lapsed(RefusedWrite.PRUNE)
            refused = await self.walk(to_the_end=is_full)
            refused |= await self.prune_dead_letter_rows(to_the_end=is_full)
            await self.walk_audit()
            await self.walk_events()
            await self.record_minutes()
            await self._quarantine.written(RefusedWrite.PRUNE, [one for one in lapsed if one not in refused])
            if is_full:
                spent = loop.time() - started
                self._full_walk_at = loop.time() + max(_TO_THE_END.total_seconds(), _DUTY * spent) * random.uniform(0.8, 1.2)

    async def walk(self, *, to_the_end: bool) -> set[JobId]:
        """Walk once through the jobs, and report what was deleted. Return the chains that could not be."""
        loop = asyncio.get_running_loop()
        chains = jobs = 0
        refused: set[JobId] = set()
        cursor: PruneCursor | None = PruneCursor(None)
        while cursor is not None:
            started = loop.time()
            pruned = await self.prune(cursor)
            chains, jobs = chains + sum(pruned.chains.values()), jobs + pruned.jobs
            refused |= set(pruned.refused)
            cursor = pruned.next
            if pruned.is_young and not to_the_end and not (cursor and cursor.due):
                break
            await asyncio.sleep(loop.time() - started)
        if chains:
            self._events.emit(ChainsPruned(chains, jobs))
        return refused

    async def prune_dead_letter_rows(self, *, to_the_end: bool) -> set[JobId]:
        """Walk once through the dead letters, after the chains: those of deleted chains are resolved by then.

        Return the dead letters that could not be deleted.
        """
        loop = asyncio.get_running_loop()
        dead_letters, after, is_last = 0, None, self._rules.shortest_of_dead_letters is None
        refused: set[JobId] = set()
        while not is_last:
            started = loop.time()
            excluded = self._quarantine.quarantined(RefusedWrite.PRUNE)
            async with AsyncSession(self._engine) as session, session.begin():
                pruned = await aio.prune_dead_letters(
                    session, self._rules, after=after, excluded=excluded, model=self._model
                )
            await self._quarantine.add(RefusedWrite.PRUNE, pruned.refused.items())
            dead_letters, after = dead_letters + pruned.dead_letters, pruned.next
            refused |= set(pruned.refused)
            is_last = after is None or (pruned.is_young and not to_the_end)
            await asyncio.sleep(loop.time() - started)
        if dead_letters:
            self._events.emit(DeadLettersPruned(dead_letters))
        return refused

    async def walk_audit(self) -> None:
        """Delete the audit's records that are past their retention, the oldest first."""
        age = self._rules.default.audit
        if age is None or age >= FOREVER:
            return
        deleted = 1
        while deleted:
            async with AsyncSession(self._engine) as session, session.begin():
                deleted = await aio.prune_audit(session, age, model=self._model)

    async def walk_events(self) -> None:
        """Delete expired events."""
        deleted = _EVENTS
        while deleted == _EVENTS:
            async with self._engine.begin() as connection:
                deleted = len((await connection.execute(steps.prune_events(self._model), {"limit": _EVENTS})).all())

    async def record_minutes(self) -> None:
        """Write the figures of the minutes that have ended, unless another worker has, and delete those past a day."""
        async with self._engine.begin() as connection:
            for since, until in (await connection.execute(minutes.unrecorded(self._model))).all():
                await connection.execute(minutes.record(self._model), {"since": since, "until": until, **_RECORDED})
                await connection.execute(minutes.prune(self._model))

    async def prune(self, cursor: PruneCursor) -> Pruned:
        """Process one page, and commit."""
        async with AsyncSession(self._engine) as session, session.begin():
            await session.execute(retention.bounded(), {"seconds": _PATIENCE})
            excluded = frozenset(self._quarantine.quarantined(RefusedWrite.PRUNE))
            pruned = await aio.prune(session, self._rules, cursor=cursor, excluded=excluded, model=self._model)
        await self._quarantine.add(RefusedWrite.PRUNE, pruned.refused.items())
        return pruned
