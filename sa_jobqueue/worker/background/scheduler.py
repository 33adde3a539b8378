"""Fires the schedules that are due, whichever worker comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.events import EventBus, ScheduleBroken, ScheduleFired, SchedulesUndeclared
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.firing import BATCH, correct_schedules
from sa_jobqueue.operations.schedules import SyncedSchedules
from sa_jobqueue.registry.schedules import Schedule, ScheduleRun
from sa_jobqueue.statements import schedules
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.quarantine import Quarantine

_REST: Final = 60.0
"""Seconds until it looks when the next schedule is due although nobody told it that anything changed."""
_CORRECT_EVERY: Final = 300.0
"""Seconds between two checks that none fires later than its expression says."""
_HELD_REST: Final = 0.2
"""Seconds until the next try when all that is due is held by somebody: another worker, that is about to commit."""
_LATE: Final = 0.005
"""Seconds after a schedule's time: a timer that is early by less would only look in vain."""


class Scheduler(Component):
    """Fires what is due, then sleeps until the next schedule is, which costs no statement.

    Every worker runs one. Any number may overlap: a schedule is fired under its row lock, by one of them, its job and its
    next time in one transaction; a crash before the commit leaves it to the others. Woken by the next schedule's time, by a
    notification that schedules or rules changed, and by its rest. First of all it writes what code declares. A schedule that
    cannot be written or fired is put in quarantine.
    """

    name = "scheduler"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        events: EventBus,
        *,
        declared: Sequence[Schedule],
        types: Sequence[str],
        quarantine: Quarantine,
    ) -> None:
        # Several statements in one transaction, so not on the AUTOCOMMIT connections of the others.
        self._engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._model = model
        self._events = events
        self._declared = declared
        self._types = frozenset(types)
        self._quarantine = quarantine
        self._next_due = schedules.next_due(model)
        self._due_names = schedules.due_names(model)
        self._woken = asyncio.Event()
        self._is_synchronised = False

    def wake(self) -> None:
        """Look when the next schedule is due: that may have changed."""
        self._woken.set()

    def synchronise_again(self) -> None:
        """Write what is declared once more, before anything is fired: this may be another database than before."""
        self._is_synchronised = False
        self._woken.set()

    async def run(self) -> None:
        """Fire until cancelled."""
        correct_at = 0.0
        while True:
            if not self._is_synchronised or self._quarantine.lapsed(RefusedWrite.DECLARE):
                self._is_synchronised = True
                correct_at = 0.0
                try:
                    await self.synchronise()
                except BaseException:
                    self._is_synchronised = False
                    raise
            if (now := asyncio.get_running_loop().time()) >= correct_at:
                await self.correct()
                correct_at = now + _CORRECT_EVERY
            self._woken.clear()  # before looking: what is told from here on ends the rest that follows
            seconds = await self.due_in()
            if seconds is not None and seconds <= 0:
                if await self.fire() == 0:
                    await asyncio.sleep(_HELD_REST)
                continue
            declare_in = self._quarantine.again_in(RefusedWrite.DECLARE)
            pauses = [pause + _LATE for pause in (seconds, declare_in) if pause is not None]
            with suppress(TimeoutError):
                async with asyncio.timeout(min([_REST, *pauses])):
                    await self._woken.wait()

    async def synchronise(self) -> None:
        """Write what is declared here; tell of what was once declared, of types that are handled here, and is no more.

        A schedule whose row cannot be written is put in quarantine; the others are written.
        """
        resting = self._quarantine.resting(RefusedWrite.DECLARE)
        declared = {one.name: one for one in self._declared if one.name not in resting}

        async def some(names: Sequence[str] | None) -> SyncedSchedules:
            new = declared.values() if names is None else [declared[name] for name in names]
            async with AsyncSession(self._engine) as session, session.begin():
                return await aio.sync_schedules(session, new, model=self._model)

        async def candidates() -> Sequence[str]:
            return list(declared)

        parts = await self._quarantine.select(RefusedWrite.DECLARE, some, candidates)
        written = [name for one in parts for name in (*one.created, *one.changed, *one.unchanged)]
        await self._quarantine.written(RefusedWrite.DECLARE, written)
        undeclared = {name: type_name for one in parts for name, type_name in one.undeclared.items()}
        known = {one.name for one in self._declared}
        left = tuple(name for name, of in undeclared.items() if of in self._types and name not in known)
        if left:
            self._events.emit(SchedulesUndeclared(left))

    async def correct(self) -> None:
        """Have schedules fire in time whose next time a clock that was ahead has written."""
        async with AsyncSession(self._engine) as session, session.begin():
            await session.run_sync(correct_schedules, model=self._model)

    async def due_in(self) -> float | None:
        """Return in how many seconds the next schedule is due; None when there is none."""
        async with self._engine.connect() as connection:
            given = {"excluded": self._quarantine.resting(RefusedWrite.FIRE)}
            found: float | None = (await connection.execute(self._next_due, given)).scalar_one()
        pauses = [seconds for seconds in (found, self._quarantine.again_in(RefusedWrite.FIRE)) if seconds is not None]
        return min(pauses, default=None)

    async def fire(self) -> int:
        """Fire one batch, commit and tell; return how many schedules. A failure has changed nothing and told nobody."""
        excluded = self._quarantine.resting(RefusedWrite.FIRE)

        async def some(names: Sequence[str] | None) -> list[ScheduleRun]:
            async with AsyncSession(self._engine) as session, session.begin():
                given: dict[str, Any] = {"names": names, "excluded": excluded}
                return await aio.fire_schedules(session, limit=BATCH, model=self._model, **given)

        async def candidates() -> Sequence[str]:
            async with self._engine.connect() as connection:
                found = await connection.execute(self._due_names, {"limit": BATCH, "excluded": excluded})
                return list(found.scalars())

        fired = [one for part in await self._quarantine.select(RefusedWrite.FIRE, some, candidates) for one in part]
        await self._quarantine.written(RefusedWrite.FIRE, [one.schedule for one in fired])
        for one in fired:
            if one.error is not None:
                self._events.emit(ScheduleBroken(one.schedule, one.error))
            else:
                self._events.emit(ScheduleFired(one.schedule, one.fire_times, one.job_ids, one.missed_since))
        return len(fired)
