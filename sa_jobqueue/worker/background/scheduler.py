"""Fires due schedules, in whichever worker is first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import aio
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.events import ScheduleBroken, ScheduleFired, SchedulesChanged, SchedulesDiffer, SchedulesUndeclared
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.schedules import FIRE_BATCH, SyncedSchedules, correct_schedules, schedule_differences
from sa_jobqueue.registry.schedules import ScheduleRun
from sa_jobqueue.statements import schedules, workers
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.shared import Part, Shared
from sa_jobqueue.worker.signals import TickResult

_HELD_REST: Final = 0.2
"""Seconds until the next try when everything due is locked by another worker that is about to commit."""
_EARLIER: Final = 0.1
"""Seconds by which a schedule must be due before the time that is known: one computed by a tick varies with its duration."""
_LATE: Final = 0.005
"""Seconds added to a schedule's time, because a timer that is slightly early would find nothing due."""


class Scheduler(Part, Component):
    """Fires due schedules, then sleeps until the next schedule is due, which costs no statement.

    Every worker runs one. Any number may overlap: a schedule is fired under its row lock by one of them, its job and its
    next time in one transaction; a crash before the commit leaves it to the others. Woken by the next schedule's time,
    by a notification that schedules or rules changed, and by a tick that found an earlier time. It starts by writing the
    schedules declared in code; of all live workers that handle a schedule's type, the one that started last decides, and
    the others report that theirs differ. A schedule that cannot be written or fired is quarantined.
    """

    name = "scheduler"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._next_due = schedules.next_due(self._model)
        self._user = "".join(letter for letter in f"worker {self._worker_id}" if letter.isprintable())[:200]
        """As who it writes schedules, for the audit."""
        self._woken = asyncio.Event()
        self._is_synchronised = False
        self._is_corrected = False
        self._differences: dict[str, dict[str, tuple[Any, Any]]] = {}
        self._sleeps_until: float | None = None
        """By the loop's clock; None until woken."""

    def ticked(self, answer: TickResult) -> None:
        """Wake if a schedule is due earlier than known."""
        if answer.schedule_in is not None:
            due_at = asyncio.get_running_loop().time() + answer.schedule_in
            if self._sleeps_until is None or due_at < self._sleeps_until - _EARLIER:
                self._woken.set()

    def clock_set(self) -> None:
        """Correct the schedules whose next time another clock has written."""
        self._is_corrected = False
        self._woken.set()

    def wake(self) -> None:
        """Check when the next schedule is due: it may have changed."""
        self._woken.set()

    def synchronise_again(self) -> None:
        """Write the declared schedules again before anything is fired: this may be a different database."""
        self._is_synchronised = False
        self._woken.set()

    async def run(self) -> None:
        """Fire until cancelled."""
        while True:
            began = time.monotonic()
            if not self._is_synchronised or self._quarantine.lapsed(RefusedWrite.DECLARE):
                self._is_synchronised = True
                self._is_corrected = False
                try:
                    await self.synchronise()
                except BaseException:
                    self._is_synchronised = False
                    raise
            if not self._is_corrected:
                self._is_corrected = True
                await self.correct()
            self._woken.clear()  # before reading: a later change ends the sleep that follows
            await self.compare()
            seconds = await self.due_in()
            if seconds is not None and seconds <= 0:
                if await self.fire() == 0:
                    await asyncio.sleep(_HELD_REST)
                continue
            declare_in = self._quarantine.retry_in(RefusedWrite.DECLARE, since=began)
            pauses = [pause + _LATE for pause in (seconds, declare_in) if pause is not None]
            sleep_seconds = min(pauses, default=None)
            self._sleeps_until = None if sleep_seconds is None else asyncio.get_running_loop().time() + sleep_seconds
            await waited(self._woken, sleep_seconds)

    async def synchronise(self) -> None:
        """Write the declared schedules; report those of handled types that are no longer declared.

        A schedule whose row cannot be written is quarantined; the others are written.
        """
        quarantined = self._quarantine.quarantined(RefusedWrite.DECLARE)
        parameters = {
            "worker_id": self._worker_id,
            "types": [schedule.type_name for schedule in self._jobs.schedules],
            "ttl": self._options.heartbeat_timeout,
        }
        async with self._transactions.connect() as connection:
            later_types = set(await connection.scalars(workers.types_of_later(self._model), parameters))
        excluded = {schedule.name for schedule in self._jobs.schedules if schedule.type_name in later_types}
        excluded.update(map(str, quarantined))
        declared = {schedule.name: schedule for schedule in self._jobs.schedules if schedule.name not in excluded}

        async def some(names: Sequence[str]) -> SyncedSchedules:
            async with AsyncSession(self._transactions) as session, session.begin():
                synced = await aio.sync_schedules(session, [declared[name] for name in names], model=self._model)
                if synced.differences:
                    earlier = (await session.scalars(workers.earlier(self._model), parameters)).all()
                    replaced: dict[str, Any] = {"ids": synced.changed, "differences": synced.differences}
                    replaced |= {"replaced_those_of": earlier} if earlier else {}
                    await session.run_sync(
                        lambda sync_session: record(
                            sync_session, "sync_schedules", by=self._user, model=self._model, **replaced
                        )
                    )
                return synced

        parts = await self._quarantine.write(RefusedWrite.DECLARE, list(declared), some) or [await some([])]
        written_names = [name for synced in parts for name in (*synced.created, *synced.changed, *synced.unchanged)]
        await self._quarantine.written(RefusedWrite.DECLARE, written_names)
        if differences := {name: columns for synced in parts for name, columns in synced.differences.items()}:
            self._events.emit(SchedulesChanged(self._worker_id, differences))
        undeclared = {name: type_name for synced in parts for name, type_name in synced.undeclared.items()}
        declared_names = {schedule.name for schedule in self._jobs.schedules}
        undeclared_names = tuple(
            name
            for name, type_name in undeclared.items()
            if type_name in self._identity.job_types and name not in declared_names
        )
        if undeclared_names:
            self._events.emit(SchedulesUndeclared(undeclared_names))

    async def compare(self) -> None:
        """Report once that declared schedules have been replaced by another worker or `sync_schedules`."""
        if not self._jobs.schedules:
            return
        async with AsyncSession(self._transactions) as session:
            differences = await session.run_sync(schedule_differences, self._jobs.schedules, model=self._model)
        if differences and differences != self._differences:
            self._events.emit(SchedulesDiffer(self._worker_id, differences))
        self._differences = differences

    async def correct(self) -> None:
        """Correct schedules whose next time was written by a clock that was ahead."""
        async with AsyncSession(self._transactions) as session, session.begin():
            await session.run_sync(correct_schedules, model=self._model)

    async def due_in(self) -> float | None:
        """Return the seconds until the next schedule is due; None without schedules."""
        began = time.monotonic()
        async with self._transactions.connect() as connection:
            parameters = {"excluded": self._quarantine.quarantined(RefusedWrite.FIRE)}
            next_due_in: float | None = (await connection.execute(self._next_due, parameters)).scalar_one()
        pause = self._quarantine.retry_in(RefusedWrite.FIRE, since=began)
        return min((seconds for seconds in (next_due_in, pause) if seconds is not None), default=None)

    async def fire(self) -> int:
        """Fire one batch, commit and report; return the number of schedules. A failure has changed and reported nothing."""

        async def some(write_parameters: dict[str, Any]) -> list[ScheduleRun]:
            async with AsyncSession(self._transactions) as session, session.begin():
                selection: dict[str, Any] = {"names": write_parameters.get("ids"), "excluded": write_parameters["excluded"]}
                return await aio.fire_schedules(session, limit=FIRE_BATCH, model=self._model, **selection)

        due = schedules.due_names(self._model)
        fired = await self._quarantine.select(RefusedWrite.FIRE, some, due, {"limit": FIRE_BATCH}, attrgetter("schedule"))
        for schedule_run in fired:
            if schedule_run.error is not None:
                self._events.emit(ScheduleBroken(schedule_run.schedule, schedule_run.error))
            else:
                self._events.emit(
                    ScheduleFired(
                        schedule_run.schedule, schedule_run.fire_times, schedule_run.job_ids, schedule_run.missed_since
                    )
                )
        return len(fired)
