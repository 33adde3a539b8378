"""Deletes chains and dead letters whose time is up, in every worker, without a leader."""

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
from sa_jobqueue.policies.retention import RetentionRules
from sa_jobqueue.statements import retention
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.quarantine import Quarantine

_TO_THE_END: Final = timedelta(hours=6)
"""How often a walk goes on where only young jobs follow, at least."""
_DUTY: Final = 200
"""Such a walk may cost one part in so many of the time."""
_PATIENCE: Final = 2
"""Seconds that a lock on a row of the application's may be waited for, which refers to a job."""


class Pruner(Component):
    """Walks through the jobs by id, then through the dead letters, and deletes what may go, a page a transaction.

    Every worker runs one; any number may overlap: what one has locked, the others pass over. A crash rolls one page back and
    leaves the rest to the next walk, of any worker. Woken by its rest alone; between pages it rests for as long as
    the last one took.

    Ids grow with time, with our factory and most others, so a walk ends where a whole page was created too lately to have
    ended long enough ago. Where they do not, or a client's clock was wrong, a walk that goes to the end finds what is left.
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
        # Each statement of a worker's own engine commits at once; here a lock must last from one to the next.
        self._engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._model = model
        self._events = events
        self._rules = rules
        self._interval = interval.total_seconds()
        self._quarantine = quarantine
        self._whole_at = 0.0
        """When the next walk to the end is due, by the loop's clock."""

    async def run(self) -> None:
        """Walk until cancelled; where nothing is ever to go, that is one small statement each time."""
        loop = asyncio.get_running_loop()
        # Workers are started together, and again and again: none begins with a walk to the end.
        self._whole_at = loop.time() + _TO_THE_END.total_seconds() * random.random()
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))
            started = loop.time()
            is_whole = started >= self._whole_at
            lapsed = self._quarantine.lapsed(RefusedWrite.PRUNE)
            await self.walk(to_the_end=is_whole)
            await self.walk_letters(to_the_end=is_whole)
            refused = set(self._quarantine.resting(RefusedWrite.PRUNE))
            await self._quarantine.written(RefusedWrite.PRUNE, [one for one in lapsed if one not in refused])
            if is_whole:
                spent = loop.time() - started
                self._whole_at = loop.time() + max(_TO_THE_END.total_seconds(), _DUTY * spent) * random.uniform(0.8, 1.2)

    async def walk(self, *, to_the_end: bool) -> None:
        """Go once through the jobs, and tell what went."""
        loop = asyncio.get_running_loop()
        chains = jobs = 0
        cursor: PruneCursor | None = PruneCursor(None)
        while cursor is not None:
            started = loop.time()
            pruned = await self.prune(cursor)
            chains, jobs = chains + sum(pruned.chains.values()), jobs + pruned.jobs
            cursor = pruned.next
            if pruned.is_young and not to_the_end and not (cursor and cursor.due):
                break
            await asyncio.sleep(loop.time() - started)
        if chains:
            self._events.emit(ChainsPruned(chains, jobs))

    async def walk_letters(self, *, to_the_end: bool) -> None:
        """Go once through the dead letters, after the chains: those of chains that went are resolved then."""
        loop = asyncio.get_running_loop()
        letters, after, is_last = 0, None, self._rules.shortest_of_letters is None
        while not is_last:
            started = loop.time()
            excluded = self._quarantine.resting(RefusedWrite.PRUNE)
            async with AsyncSession(self._engine) as session, session.begin():
                pruned = await aio.prune_dead_letters(
                    session, self._rules, after=after, excluded=excluded, model=self._model
                )
            await self._quarantine.add(RefusedWrite.PRUNE, pruned.refused.items())
            letters, after = letters + pruned.letters, pruned.next
            is_last = after is None or (pruned.is_young and not to_the_end)
            await asyncio.sleep(loop.time() - started)
        if letters:
            self._events.emit(DeadLettersPruned(letters))

    async def prune(self, cursor: PruneCursor) -> Pruned:
        """Do one page, and commit."""
        async with AsyncSession(self._engine) as session, session.begin():
            await session.execute(retention.bounded(), {"seconds": _PATIENCE})
            excluded = frozenset(self._quarantine.resting(RefusedWrite.PRUNE))
            pruned = await aio.prune(session, self._rules, cursor=cursor, excluded=excluded, model=self._model)
        await self._quarantine.add(RefusedWrite.PRUNE, pruned.refused.items())
        return pruned
