"""Writes the results of attempts, many per statement, without delaying a single one."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.splitting import cause_of, in_parts
from sa_jobqueue.events import AttemptLost, EventBus, JobCancelled, JobCompleted, JobDied, JobRescheduled
from sa_jobqueue.layout import Layout
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import dead_letter_ids
from sa_jobqueue.statements import completions
from sa_jobqueue.types import DeadReason, JobId, JobStatus, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.continuations import ChainWriter, note_ended, with_roots
from sa_jobqueue.worker.finish.outcomes import Completed, Finished, of_error
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.ownership import Ownership
from sa_jobqueue.worker.quarantine import MOST, Quarantine
from sa_jobqueue.worker.signals import Signals

_HELD_REST = 0.05
"""Seconds until the next try when every result in the queue waits for another transaction's lock."""


@dataclass(slots=True)
class _Refused:
    """A result in quarantine: it is tried again at `due`, by the monotonic clock."""

    end: Completed | Finished
    due: float
    is_uncertain: bool = False
    """Whether the last try may have written it."""


@dataclass(slots=True)
class _Done:
    """The outcome of writing some results."""

    written: set[Any] = field(default_factory=set)
    """Jobs whose result was written."""
    failed: dict[Any, Finished] = field(default_factory=dict)
    """Attempts whose continuation or output cannot be written, by job: they fail."""
    held: set[Any] = field(default_factory=set)
    """Jobs whose rows another transaction has locked."""
    refused: list[tuple[Completed | Finished, Exception]] = field(default_factory=list)
    """Results that cannot be written."""

    def refuse(self, refused: Iterable[tuple[Completed | Finished, Exception]]) -> None:
        """Record results that failed alone: an error of Python ends the attempt, one of the database may pass."""
        for end, error in refused:
            if isinstance(end, Finished) or isinstance(error, DBAPIError):
                self.refused.append((end, error))
            else:
                self.failed[end.job.id] = of_error(end.job, cause_of(error), None)


class Completer(Component):
    """Writes the results of attempts in the order in which they arrive, one batch per statement.

    While one batch is being written the next one gathers, so a single result waits for no batch and many share round trips.
    A result leaves the queue only when its write was acknowledged: an outage delays it, and the fence then decides whether
    it still counts. A crash of the process loses the queue; those jobs are rescued and run again.

    A result that the database refuses does not delay the others: it is quarantined and tried again, alone and after growing
    delays, until it is written, the attempt is lost or the worker stops. The job stays `running` meanwhile.
    """

    name = "completer"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        worker_id: str,
        events: EventBus,
        signals: Signals,
        *,
        unblocker: Unblocker,
        ownership: Ownership,
        quarantine: Quarantine,
        completion_batch_size: int,
    ) -> None:
        self._engine = engine
        self._unblocker, self._ownership = unblocker, ownership
        self._chained = ChainWriter(engine, model, worker_id, unblocker)
        self._worker_id = worker_id
        self._events = events
        self._completion_batch_size = completion_batch_size
        self._signals = signals
        self._layout = model.__jobqueue__
        self._complete = compiled(completions.complete, model)
        self._finish = compiled(completions.finish, model)
        self._queue: deque[Completed | Finished] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._uncertain = False
        self.is_connected = False
        """Whether it has a connection to write with. Without one the claimer starts nothing: no result could be written."""
        self._quarantine = quarantine
        self._refused: dict[tuple[JobId, int], _Refused] = {}

    def put(self, end: Completed | Finished) -> None:
        """Queue a result for the next write."""
        self._queue.append(end)
        self._empty.clear()
        self._arrived.set()

    @property
    def attempts(self) -> set[tuple[JobId, int]]:
        """The attempts whose results wait to be written, as `(job_id, attempt)`."""
        return {(end.job.id, end.job.attempt) for end in self._queue} | self._refused.keys()

    @property
    def backlog(self) -> int:
        """The number of results that are not acknowledged yet. The claimer stops claiming while it is large.

        Quarantined results count beyond `MOST`: if nearly everything is refused, running more jobs does not help.
        """
        return len(self._queue) + max(len(self._refused) - MOST, 0)

    async def drained(self) -> None:
        """Wait until everything queued is acknowledged or quarantined."""
        await self._empty.wait()

    def retry_refused(self) -> None:
        """Try the quarantined results once more, now: the worker is about to stop."""
        for refused in self._refused.values():
            self.put(refused.end)
        self._refused.clear()

    async def run(self) -> None:
        """Write what arrives until cancelled."""
        async with self._engine.connect() as connection:
            self.is_connected = True
            try:
                while True:
                    if not self._queue:
                        self._empty.set()
                        self._arrived.clear()
                        await self._rest()
                    if self._queue:
                        await self.flush(connection)
                    if self._refused:
                        await self._retry(connection)
            finally:
                self.is_connected = False

    async def _rest(self) -> None:
        """Wait until a result arrives, or one in quarantine is due."""
        if not self._refused:
            await self._arrived.wait()
            return
        due = min(refused.due for refused in self._refused.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(due - time.monotonic(), 0)):
                await self._arrived.wait()

    async def _retry(self, connection: AsyncConnection) -> None:
        """Try the due ones again, each alone."""
        now = time.monotonic()
        for refused in [one for one in self._refused.values() if one.due <= now]:
            repeated, refused.is_uncertain = refused.is_uncertain, True
            done = await self._write(connection, [refused.end])
            refused.is_uncertain = False
            if done.held:
                refused.due = now + 1.0
                continue
            del self._refused[refused.end.job.id, refused.end.job.attempt]
            await self._apply([refused.end], done, repeated=repeated)
            if not done.refused:
                await self._quarantine.written(_write_of(refused.end), [refused.end.job.id])

    async def flush(self, connection: AsyncConnection) -> None:
        """Write one batch and report the outcome. A batch that fails as a whole stays queued for the next run."""
        batch = [self._queue[index] for index in range(min(len(self._queue), self._completion_batch_size))]
        repeated, self._uncertain = self._uncertain, True
        done = await self._write(connection, batch)
        for _ in batch:
            self._queue.popleft()
        self._uncertain = False
        await self._apply(batch, done, repeated=repeated)
        if len(done.held) == len(batch):
            await asyncio.sleep(_HELD_REST)

    async def _write(self, connection: AsyncConnection, batch: Sequence[Completed | Finished]) -> _Done:
        done = _Done()
        alone: list[Completed] = []
        chained: list[Completed] = []
        ended: list[Finished] = []
        for end in batch:
            if isinstance(end, Finished):
                ended.append(end)
            elif end.job.chain_index == 0 and isinstance(end.result, str):
                alone.append(end)
            else:
                chained.append(end)
        if alone:
            written, refused = await in_parts(alone, partial(self._write_completed, connection))
            done.written.update(*written)
            done.refuse(refused)
            if len(done.written) == len(batch):  # the usual case: no need to look at single ones
                return done
        if chained:
            ends = await self._chained.write(connection, chained)
            done.written |= ends.ids
            done.failed |= ends.failed
            done.refuse(ends.refused)
        if ended:
            finished, unfinished = await in_parts(ended, partial(self._write_finished, connection))
            done.written.update(*finished)
            done.refuse(unfinished)
        known = done.written | done.failed.keys() | {end.job.id for end, _ in done.refused}
        unwritten = [end for end in batch if end.job.id not in known]
        done.held = await self._ownership.held([end.job for end in unwritten], connection) if unwritten else set()
        return done

    async def _apply(self, batch: Sequence[Completed | Finished], done: _Done, *, repeated: bool) -> None:
        """Report results that are no longer queued, and keep those that are still to be written."""
        if len(done.written) < len(batch):
            refused = {end.job.id for end, _ in done.refused}
            for end in batch:
                if end.job.id in done.failed:
                    self.put(done.failed[end.job.id])
                elif end.job.id in done.held:
                    self.put(end)
                elif end.job.id not in done.written and end.job.id not in refused and not repeated:
                    # After a failed try, that try itself may have ended a missing attempt: nothing to report.
                    self._signals.ended(end.job.id)
                    self._events.emit(AttemptLost(end.job.id, end.job.type_name, end.job.attempt))
            await self._set_aside(done.refused)
        completed: list[Completed] = []
        for end in batch:
            if end.job.id in done.written:
                if isinstance(end, Finished):
                    self.report(end)
                else:
                    completed.append(end)
        self._report_completed(completed)

    async def _set_aside(self, refused: Sequence[tuple[Completed | Finished, Exception]]) -> None:
        now = time.monotonic()
        added = [_Refused(end, now) for end, _ in refused]
        self._refused |= {(one.end.job.id, one.end.job.attempt): one for one in added}  # before anything is awaited
        for one, (_, error) in zip(added, refused, strict=True):
            pauses = await self._quarantine.add(_write_of(one.end), [(one.end.job.id, error)])
            one.due = now + pauses[one.end.job.id].total_seconds()

    async def _write_completed(self, connection: AsyncConnection, ends: Sequence[Completed]) -> list[Any]:
        rows = await self._complete.execute(
            connection,
            {
                "ids": [end.job.id for end in ends],
                "attempts": [end.job.attempt for end in ends],
                "outputs": [end.result for end in ends],
                "worker_id": self._worker_id,
            },
        )
        for job_id, has_waiters in rows:
            if has_waiters:
                self._unblocker.put(job_id)
        return [job_id for job_id, _ in rows]

    async def _write_finished(self, connection: AsyncConnection, ends: Sequence[Finished]) -> set[Any]:
        given = parameters_of(ends, worker_id=self._worker_id, layout=self._layout)
        rows = await self._finish.execute(connection, given)
        return note_ended(rows, self._unblocker)

    def _report_completed(self, ends: Sequence[Completed]) -> None:
        for end in ends:
            self._signals.ended(end.job.id)
        if ends and self._events.has_subscribers(JobCompleted):
            events = [
                JobCompleted(end.job.id, end.job.type_name, end.job.attempt, timedelta(seconds=end.seconds)) for end in ends
            ]
            self._events.emit_many(events)

    def report(self, end: Finished) -> None:
        """Report an end without success that is written."""
        self._signals.ended(end.job.id)
        if end.status is JobStatus.PENDING:
            self._signals.may_start()  # it may be due before the claimer's next poll
        self._events.emit(event_of(end))


def parameters_of(ends: Sequence[Finished], *, worker_id: str, layout: Layout) -> dict[str, Any]:
    """Return the parameters of `completions.finish`."""
    return {
        "ids": [end.job.id for end in ends],
        "attempts": [end.job.attempt for end in ends],
        "statuses": [end.status.value for end in ends],
        "delays": [end.delay.total_seconds() for end in ends],
        "ats": [end.at for end in ends],
        "outcomes": [end.outcome.value for end in ends],
        "errors": [None if end.error is None else json.dumps(end.error) for end in ends],
        "fingerprints": [end.fingerprint for end in ends],
        "uncounted": [int(end.uncounted) for end in ends],
        "reasons": [end.reason and end.reason.value for end in ends],
        "dead_letter_ids": dead_letter_ids(layout, len(ends)),
        "locks": with_roots(ends),
        "worker_id": worker_id,
    }


def event_of(end: Finished) -> JobDied | JobCancelled | JobRescheduled:
    """Return the event that reports an attempt without success."""
    job = end.job
    if end.status is JobStatus.DEAD:
        return JobDied(job.id, job.type_name, job.attempt, end.reason or DeadReason.EXHAUSTED, end.error, end.ran)
    if end.status is JobStatus.CANCELLED:
        return JobCancelled(job.id, job.type_name, job.attempt, end.ran)
    return JobRescheduled(job.id, job.type_name, job.attempt, end.outcome, end.delay, end.error, end.at, end.ran)


def _write_of(end: Completed | Finished) -> RefusedWrite:
    return RefusedWrite.FINISH if isinstance(end, Finished) else RefusedWrite.COMPLETE
