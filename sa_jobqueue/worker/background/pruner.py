"""Deletes chains and dead letters whose retention period has ended, in every worker, without a leader."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import DatabaseUnavailableError
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.events import ChainsPruned, ChainsReferenced, ComponentFailed
from sa_jobqueue.operations import PruneCursor
from sa_jobqueue.operations.pruning import PRUNED_TABLES, PrunedTable, prune_events
from sa_jobqueue.statements import minutes, retention
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.quarantine import PAUSES
from sa_jobqueue.worker.shared import Part, Shared

_TO_THE_END: Final = timedelta(hours=6)
"""Minimum time between two walks that continue past jobs too young to be deleted."""
_DUTY: Final = 200
"""Such a walk may use 1 part in this many of the time."""
_IDLE: Final = timedelta(minutes=1)
"""Time without a job after which a worker prunes less often."""
_IDLE_INTERVAL: Final = timedelta(minutes=30)
"""Time between two walks of such a worker."""
_LOCK_TIMEOUT_SECONDS: Final = 2
"""Maximum seconds to wait for a lock on an application's row that refers to a job."""


_RECORDED: Final = {"transactions": 500_000, "limit": 50_000, "most": 100}
"""Bounds of the rows that the figures of a minute count."""
_EVENTS: Final = 1000
"""Expired events that one transaction reads."""
_MAX_REFERENCED: Final = 10_000
"""Referenced chains that are not tried by every walk; more cost time only."""


@dataclass(slots=True)
class _Reference:
    """A chain that an application's foreign key keeps."""

    constraint: str
    error: Exception
    failures: int
    until: float
    """When the deletion is tried again, by the monotonic clock."""


class Pruner(Part, Component):
    """Walks through the jobs by id, then the dead letters and the audit, and deletes expired rows, a page per transaction.

    It also deletes expired events and records the figures of minutes. None of these depends on the success of another.
    Every worker runs one, less often while it is idle; any number may overlap: rows locked by one are skipped by the others.
    A crash rolls back one page and leaves the rest to the next walk of any worker. Woken by its timer only; after each page
    it rests for as long as the page took. A run that ends when it is idle walks once more at its end, without rests.

    Ids grow with time, with our factory and most others, so a walk ends at a page of jobs created too recently to have
    expired. If they do not, or a client's clock was wrong, an occasional walk to the end finds the rest.
    """

    name = "pruner"

    def __init__(self, shared: Shared, *, idle_for: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(shared)
        self._rules, self._idle_for = shared.jobs.retention_rules, idle_for
        # Kept when the supervisor restarts `run`: a failure must not postpone the walk to the end.
        self._started = float("-inf")
        self._full_walk_at: float | None = None
        """When the next walk to the end is due, by the loop's clock."""
        self._references: dict[Any, _Reference] = {}
        self._recorded_until: datetime | None = None
        """The end of the last recorded minute, by the database's clock; None if none could be recorded."""
        self._constraints: set[str] = set()
        """The foreign keys that kept chains in the last walk."""

    async def run(self) -> None:
        """Walk until cancelled; without any retention period these are two small statements each time."""
        loop = asyncio.get_running_loop()
        if self._full_walk_at is None:
            # Workers are often restarted together: none starts with a walk to the end.
            self._full_walk_at = loop.time() + _TO_THE_END.total_seconds() * random.random()
        while True:
            await asyncio.sleep(self._options.prune_interval.total_seconds() * random.uniform(0.8, 1.2))
            is_idle = (
                self._idle_for() > _IDLE.total_seconds() and loop.time() < self._started + _IDLE_INTERVAL.total_seconds()
            )
            if is_idle and not self._quarantine.lapsed(RefusedWrite.PRUNE):
                continue
            self._started = loop.time()
            is_full = self._started >= self._full_walk_at
            if is_full:
                self._full_walk_at = loop.time() + _TO_THE_END.total_seconds() * random.uniform(0.8, 1.2)
            await self.prune(to_the_end=is_full)
            if is_full:
                spent = loop.time() - self._started
                self._full_walk_at += max(0.0, _DUTY * spent - _TO_THE_END.total_seconds())

    async def prune(self, *, to_the_end: bool = False, rests: bool = True) -> None:
        """Record minutes, then do all walks once, each even if others fail. Raises: the first error, after the last walk.

        Without `rests`, chains are deleted even if the figures of their last minute cannot be recorded yet: no later walk
        may follow.
        """
        began = time.monotonic()
        self._recorded_until = None
        walk = partial(self.walk, to_the_end=to_the_end, rests=rests)
        await self._each(self.record_minutes, walk, self.walk_events)
        await self._quarantine.written(RefusedWrite.PRUNE, self._quarantine.lapsed(RefusedWrite.PRUNE, began))

    async def _each(self, *calls: Callable[[], Awaitable[object]]) -> None:
        """Await each call, even if another one failed; then raise the first error. The others are reported."""
        errors: list[Exception] = []
        for call in calls:
            try:
                await call()
            except Exception as error:  # of one walk, as of one row: the others go on
                if isinstance(error, DatabaseUnavailableError) or _is_of_the_connection(error):
                    raise
                errors.append(error)
        for later_error in errors[1:]:
            self._events.emit(ComponentFailed(self.name, later_error, timedelta(0)))
        if errors:
            raise errors[0]

    async def walk(self, *, to_the_end: bool, rests: bool = True) -> None:
        """Walk once through the tables, one page per transaction, and report deletions."""
        deleted = Counter[str]()
        try:
            await self._each(*(partial(self._walk_table, table, deleted, to_the_end, rests) for table in PRUNED_TABLES))
        finally:
            if deleted["chains"] or deleted["dead_letters"]:
                self._events.emit(ChainsPruned(deleted["chains"], deleted["jobs"], deleted["dead_letters"]))

    async def _walk_table(self, table: PrunedTable, deleted: Counter[str], to_the_end: bool, rests: bool) -> None:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        cursor: PruneCursor | None = PruneCursor(table)
        while cursor is not None and cursor.table == table:
            started = loop.time()
            excluded = frozenset([*self._quarantine.quarantined(RefusedWrite.PRUNE), *self._referenced_until(began)])
            async with AsyncSession(self._transactions) as session, session.begin():
                await session.execute(retention.bounded(), {"seconds": _LOCK_TIMEOUT_SECONDS})
                options: dict[str, Any] = {"to_the_end": to_the_end, "excluded": excluded, "model": self._model}
                ended_before = self._recorded_until if rests else None
                page = await aio.prune(session, self._rules, cursor=cursor, ended_before=ended_before, **options)
            deleted.update(chains=sum(page.chains.values()), jobs=page.jobs, dead_letters=page.dead_letters)
            self._add_references(page.referenced)
            await self._quarantine.add(RefusedWrite.PRUNE, page.refused.items())
            cursor = page.next
            if cursor is not None and rests:
                await asyncio.sleep(loop.time() - started)
        if table == PRUNED_TABLES[0]:
            await self._report_references(began)

    def _referenced_until(self, now: float) -> list[Any]:
        return [row_id for row_id, reference in self._references.items() if reference.until > now]

    def _add_references(self, referenced: Mapping[Any, Exception]) -> None:
        """Remember chains that the application refers to: each is tried again after a growing pause."""
        for row_id, error in referenced.items():
            before = self._references.get(row_id)
            if before is None and len(self._references) >= _MAX_REFERENCED:
                continue
            failures = 1 if before is None else before.failures + 1
            until = time.monotonic() + PAUSES(failures, error).total_seconds()
            constraint = diagnose(error).constraint if isinstance(error, DBAPIError) else None
            self._references[row_id] = _Reference(constraint or "a foreign key", error, failures, until)

    async def _report_references(self, began: float) -> None:
        """Name the foreign keys that keep chains: in the log when they begin to, and in the table `quarantine`."""
        # Those whose pause had ended and that were not kept again are deleted.
        self._references = {row_id: reference for row_id, reference in self._references.items() if reference.until > began}
        ids_by_constraint: dict[str, list[Any]] = {}
        for row_id, reference in self._references.items():
            ids_by_constraint.setdefault(reference.constraint, []).append(row_id)
        for constraint, row_ids in ids_by_constraint.items():
            error = self._references[row_ids[0]].error
            if constraint not in self._constraints:
                self._events.emit(ChainsReferenced(constraint, len(row_ids), row_ids[0], error))
            message = f"{len(row_ids):,} chains past their retention are kept, such as {row_ids[0]}: {summary(error)}"
            await self._quarantine.note(RefusedWrite.PRUNE, constraint, error, message, pause=2 * _IDLE_INTERVAL)
        if gone := self._constraints - ids_by_constraint.keys():
            await self._quarantine.erase(RefusedWrite.PRUNE, gone)
        self._constraints = set(ids_by_constraint)

    async def walk_events(self) -> None:
        """Delete expired events."""
        read = _EVENTS
        refused: set[str] = set(map(str, self._quarantine.quarantined(RefusedWrite.PRUNE)))
        while read == _EVENTS:
            async with AsyncSession(self._transactions) as session, session.begin():
                read, deleted, failed = await session.run_sync(
                    prune_events, limit=_EVENTS, excluded=refused, model=self._model
                )
            refused |= failed.keys()
            await self._quarantine.add(RefusedWrite.PRUNE, failed.items())
            if not (deleted or failed):  # the rest is locked
                break

    async def record_minutes(self) -> None:
        """Write the figures of the minutes that have ended, unless another worker has, and delete those past a day."""
        async with self._transactions.begin() as connection:
            for since, until in (await connection.execute(minutes.unrecorded(self._model))).all():
                await connection.execute(minutes.record(self._model), {"since": since, "until": until, **_RECORDED})
                await connection.execute(minutes.prune(self._model))
            self._recorded_until = await connection.scalar(minutes.recorded_until(self._model))


def _is_of_the_connection(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and (error.connection_invalidated or diagnose(error).sqlstate is None)
