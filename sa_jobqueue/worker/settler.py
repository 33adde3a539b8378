"""Passes the end of chains on to whoever waits for them, beside the completions that ended them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.events import EventBus, JobDied, JobUnblocked
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.enqueueing import QUIET
from sa_jobqueue.operations.settling import Moved, settle
from sa_jobqueue.statements import blockers, notifications
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import DeadReason, JobId, JobStatus
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.limits import Key, Limits

_HELD_REST = 0.02
"""Seconds until the next try when all that is left is held by others; twice as many each time, up to `_LONGEST_REST`."""
_LONGEST_REST = 0.32
"""Seconds that pass at most from when a lock is free that was held for longer."""


class Settler(Component):
    """Takes chains that have ended and are awaited, many in a transaction, and wakes whoever has something to do now.

    A crash loses what is queued here, not the record of it in the database: the next sweep, of any worker, finds it.
    Two may overlap: a chain is settled under its root's lock, by one of them. Woken by whoever ends a chain.
    """

    name = "settler"

    def __init__(
        self, engine: AsyncEngine, model: type[JobMixin[Any]], events: EventBus, *, on_due: Callable[[str | None], None]
    ) -> None:
        # Several statements in one transaction, so not on the AUTOCOMMIT connections of the others.
        self._engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._model = model
        self._events = events
        self._on_due = on_due
        self._chains: dict[JobId, JobId | None] = {}
        self._due: set[str] = set()
        self._told: dict[str, float] = {}
        self._freed: dict[Key, None] = {}
        self._recounts: dict[Limits, Counter[Key]] = {}
        self._unsettled = blockers.unsettled(model)
        self._looks = self._notifies = False
        self._held_rest = _HELD_REST
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, chain_id: JobId) -> None:
        """Settle a chain soon."""
        self._chains.setdefault(chain_id)
        self._empty.clear()
        self._arrived.set()

    def tell_due(self, queue: str) -> None:
        """Wake this worker, and others, for a job that this worker has just made due."""
        self._on_due(queue)
        if time.monotonic() - self._told.get(queue, 0.0) > QUIET.total_seconds():
            self._told[queue] = time.monotonic()
            self._due.add(queue)
            self._empty.clear()
            self._arrived.set()

    def tell_freed(self, limits: Iterable[Key]) -> None:
        """Wake other workers that found no room under limits that now have some."""
        self._freed |= dict.fromkeys(limits)
        self._empty.clear()
        self._arrived.set()

    def recount_freed(self, limits: Limits, ended: Counter[Key]) -> None:
        """Do so where a count shows that there was none until so many of their jobs had ended."""
        self._recounts.setdefault(limits, Counter()).update(ended)
        self._empty.clear()
        self._arrived.set()

    def notify_workers(self) -> None:
        """Have other workers look for what they can start: this one gave something back, or leaves it to them."""
        self._notifies = True
        self._empty.clear()
        self._arrived.set()

    def look(self) -> None:
        """Find chains soon that have ended and whose end was not passed on: no worker completed them, or it died."""
        self._looks = True
        self._empty.clear()
        self._arrived.set()

    @property
    def backlog(self) -> int:
        """How many chains are to be settled."""
        return len(self._chains)

    async def drained(self) -> None:
        """Wait until everything put here is settled."""
        await self._empty.wait()

    async def run(self) -> None:
        """Settle whatever arrives until cancelled."""
        while True:
            if not (self._chains or self._due or self._freed or self._recounts or self._looks or self._notifies):
                self._empty.set()
                self._arrived.clear()
                await self._arrived.wait()
            if self._freed or self._recounts or self._notifies:
                await self._flush_freed()
            if self._looks:
                await self._find()
            if self._chains or self._due:
                await self.flush()

    async def _find(self) -> None:
        self._looks = False
        try:
            async with self._engine.begin() as connection:
                page = found = list(await connection.scalars(self._unsettled, {"limit": BATCH}))
                while len(page) == BATCH:
                    page = list(await connection.scalars(self._unsettled, {"limit": BATCH, "after": page[-1]}))
                    found += page
        except BaseException:
            self._looks = True
            raise
        for chain_id in found:
            self._chains.setdefault(chain_id)

    async def _flush_freed(self) -> None:
        """Tell of limits that have room again. What fails is not told: other workers look again when they poll."""
        freed, self._freed = self._freed, {}
        recounts, self._recounts = self._recounts, {}
        notifies, self._notifies = self._notifies, False
        async with self._engine.begin() as connection:
            if notifies:
                await connection.execute(notifications.notify_unblock(self._model))
            for limits, ended in recounts.items():
                freed |= dict.fromkeys(await limits.recount(connection, ended))
            if freed:
                told = [f"{'type' if is_type else 'queue'} {name}" for is_type, name in freed]
                await connection.execute(notifications.notify_each(self._model, "freed"), {"ids": told})

    async def flush(self) -> None:
        """Settle one batch and tell what came of it. One that fails stays queued."""
        batch = {chain_id: self._chains[chain_id] for chain_id in list(self._chains)[:BATCH]}
        due = list(self._due)
        async with self._engine.begin() as connection:
            for queue in due:
                await connection.execute(notifications.notify_due(self._model), {"queue": queue})
            done = await connection.run_sync(settle, self._model, batch) if batch else None
        self._due.difference_update(due)
        if done is None:
            return
        for chain_id in batch:
            del self._chains[chain_id]
        for chain_id, after in done.left.items():
            self._chains.setdefault(chain_id, after)
        for moved in done.moved:
            self._tell(moved)
        if done.moved or done.settled:
            self._held_rest = _HELD_REST
        elif self._chains:
            await self._rest()

    async def _rest(self) -> None:
        """Wait until something arrives, or until those who hold what is left may have let it go."""
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._held_rest):
                await self._arrived.wait()
        self._held_rest = min(2 * self._held_rest, _LONGEST_REST)

    def _tell(self, moved: Moved) -> None:
        if moved.status is JobStatus.DEAD:
            self._events.emit(JobDied(moved.job_id, moved.type_name, moved.attempt, DeadReason.BLOCKER_FAILED, None))
        else:
            self._events.emit(JobUnblocked(moved.job_id, moved.type_name, moved.attempt))
            self._on_due(moved.queue)
