"""Rows that this worker failed to write: when each is tried again, and their records in the table `quarantine`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final, TypeVar

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.splitting import in_parts, is_of_a_row, sqlstate, summary
from sa_jobqueue.events import EventBus, WriteQuarantined
from sa_jobqueue.models import JobClass
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.statements import quarantine
from sa_jobqueue.types import RefusedWrite

T = TypeVar("T")
R = TypeVar("R")


PAUSES: Final = Backoff(base=timedelta(seconds=2), factor=4, cap=timedelta(minutes=5), jitter=False)
"""Delays before a row is tried again: 2 s, 8 s, 32 s, 128 s, then 5 min each time."""
FORGOTTEN: Final = 2 * PAUSES.cap
"""A row whose next try was due this long ago is gone, or was written by another worker."""
MOST: Final = 1000
"""Maximum number of rows that one worker quarantines. Failing rows beyond that hold up the others."""


@dataclass(slots=True)
class _Entry:
    failures: int
    until: float


class Quarantine:
    """Quarantine of rows, shared by the components of one worker. Nothing is written while no row fails.

    A record is written after the failure, in its own transaction; if that fails, it is omitted. A crash leaves records,
    which any worker deletes once they are older than `FORGOTTEN`.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        model: JobClass,
        worker_id: str,
        events: EventBus,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._put, self._drop, self._forget = quarantine.put(model), quarantine.drop(model), quarantine.forget(model)
        self._worker_id = worker_id
        self._events = events
        self._clock = clock
        self._entries: dict[tuple[RefusedWrite, Any], _Entry] = {}

    def quarantined(self, write: RefusedWrite) -> list[Any]:
        """Return the rows that this write must leave out for now, at most `MOST`."""
        now = self._clock()
        return [
            subject for (entry_write, subject), entry in self._entries.items() if entry_write is write and entry.until > now
        ]

    def lapsed(self, write: RefusedWrite, since: float | None = None) -> list[Any]:
        """Return the rows that are due to be tried again, or were due at `since` and have not failed after it."""
        now = self._clock() if since is None else since
        return [
            subject for (entry_write, subject), entry in self._entries.items() if entry_write is write and entry.until <= now
        ]

    def is_quarantined(self, write: RefusedWrite, subject: Any) -> bool:
        """Return whether a write must leave a row out for now."""
        entry = self._entries.get((write, subject))
        return entry is not None and entry.until > self._clock()

    @property
    def is_full(self) -> bool:
        """Whether more failing rows hold up the others."""
        return len(self._entries) >= MOST

    def retry_in(self, *writes: RefusedWrite, since: float | None = None) -> float | None:
        """Return the seconds until the first row is tried again that rested at `since`, by the monotonic clock, or now.

        None if no row did; zero for one whose pause has ended since then, which the write before has left out.
        """
        now = self._clock()
        ends = (
            entry.until
            for (entry_write, _), entry in self._entries.items()
            if entry_write in writes and entry.until > (since or now)
        )
        first = min(ends, default=None)
        return None if first is None else max(first - now, 0.0)

    async def add(self, write: RefusedWrite, refused: Iterable[tuple[Any, Exception]]) -> dict[Any, timedelta]:
        """Quarantine rows, each longer than the last time; record and report them. Return their delays."""
        records, pauses = [], {}
        for subject, error in refused:
            entry = self._entries.get((write, subject))
            if entry is None and len(self._entries) >= MOST:
                self._drop_old()
            failures = 1 if entry is None else entry.failures + 1
            pause = pauses[subject] = PAUSES(failures, error)
            if entry is not None or len(self._entries) < MOST:
                self._entries[write, subject] = _Entry(failures, self._clock() + pause.total_seconds())
            state = sqlstate(error)
            records.append(
                {
                    "subject": str(subject),
                    "statement": write.value,
                    "sqlstate": state,
                    "error": summary(error),
                    "worker_id": self._worker_id,
                    "pause": pause,
                }
            )
            self._events.emit(WriteQuarantined(write, str(subject), self._worker_id, error, state, failures, pause))
        if records:
            # Sorted by key, because every worker locks them in this order.
            await self._record(self._put, sorted(records, key=lambda record: (record["subject"], record["statement"])))
        return pauses

    async def written(self, write: RefusedWrite, subjects: Iterable[Any]) -> None:
        """Delete the records of rows that have been written, or that this worker no longer has to write."""
        if not self._entries:
            return
        released_subjects = [subject for subject in subjects if self._entries.pop((write, subject), None) is not None]
        if released_subjects:
            await self.erase(write, map(str, released_subjects))

    async def note(self, write: RefusedWrite, subject: str, error: Exception, message: str, *, pause: timedelta) -> None:
        """Record something that writes leave out on purpose. It is neither reported nor counted, and writes may include it.

        `pause`: how long the record is current.
        """
        parameters = {"subject": subject, "statement": write.value, "sqlstate": sqlstate(error), "error": message}
        await self._record(self._put, parameters | {"worker_id": self._worker_id, "pause": pause})

    async def erase(self, write: RefusedWrite, subjects: Iterable[str]) -> None:
        """Delete records."""
        await self._record(self._drop, {"statement": write.value, "subjects": sorted(subjects)})

    async def tidy(self) -> None:
        """Delete the records of rows that no worker has tried for a long time."""
        self._drop_old()
        await self._record(self._forget, {"forgotten_after": FORGOTTEN})

    async def write(
        self,
        write: RefusedWrite,
        items: Sequence[T],
        run: Callable[[Sequence[T]], Awaitable[R]],
        *,
        otherwise: tuple[Any, Exception] | None = None,
    ) -> list[R]:
        """Write items together; those that fail alone are quarantined. Return the results of the calls that succeeded.

        `otherwise`: the subject of the items and its error, to quarantine if none of them fails alone.
        """
        results, refused = await in_parts(items, run)
        await self.add(write, refused or ([otherwise] if otherwise is not None else []))
        return results

    async def select(
        self,
        write: RefusedWrite,
        run: Callable[[dict[str, Any]], Awaitable[Sequence[R]]],
        candidates: Executable,
        parameters: dict[str, Any],
        subject: Callable[[Any], Any] = itemgetter(0),
    ) -> list[R]:
        """Run a write that selects its rows itself; if one of them makes it fail, write the others by id. Return their rows.

        `run`: given the parameters, with the rows to leave out as `excluded`, and after a failure the only `ids` to write.
        `candidates`: with the same parameters, returns the ids that it would select. `subject`: returns the id of a row.
        """
        full_parameters = parameters | {"excluded": self.quarantined(write)}
        try:
            rows = list(await run(full_parameters))
        except Exception as error:
            if not is_of_a_row(error):
                raise
            async with self._engine.connect() as connection:
                ids = (await connection.scalars(candidates, full_parameters)).all()
            parts = await self.write(write, ids, lambda some: run(full_parameters | {"ids": list(some)}))
            rows = [row for part in parts for row in part]
        await self.written(write, map(subject, rows))
        return rows

    def _drop_old(self) -> None:
        old = self._clock() - FORGOTTEN.total_seconds()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.until > old}

    async def _record(self, statement: Any, parameters: Any) -> None:
        # The rows are already handled; those that cannot be recorded are still in the log and the metrics.
        with suppress(Exception):
            async with self._engine.begin() as connection:
                await connection.execute(statement, parameters)
