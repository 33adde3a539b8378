"""Writes the results of attempts, many per statement, without delaying a single one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.events import AttemptLost, JobCancelled, JobCompleted, JobDied, JobRescheduled
from sa_jobqueue.operations.completions import Finished, finish_parameters
from sa_jobqueue.statements import completions
from sa_jobqueue.types import DeadReason, JobId, JobStatus, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.finish.continuations import ChainWriter
from sa_jobqueue.worker.finish.outcomes import Completed, WriteOutcome
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.quarantine import MOST
from sa_jobqueue.worker.shared import Part, Shared

_HELD_REST = 0.05
"""Seconds until the next try when every result in the queue waits for another transaction's lock."""


class Completer(Part, Component):
    """Writes the results of attempts in the order in which they arrive, one batch per statement.

    While one batch is being written the next one gathers, so a single result waits for no batch and many share round trips.
    A result leaves the queue only when its write was acknowledged: an outage delays it, and the fence then decides whether
    it still counts. A crash of the process loses the queue; those jobs are rescued and run again.

    A result that the database refuses does not delay the others: it is quarantined and tried again, after growing
    delays, until it is written, the attempt is lost or the worker stops. The job stays `running` meanwhile.
    """

    name = "completer"

    def __init__(self, shared: Shared, unblocker: Unblocker) -> None:
        super().__init__(shared)
        self._unblocker = unblocker
        self._chained = ChainWriter(shared, unblocker)
        self._complete = compiled(completions.complete, self._model)
        self._finish = compiled(completions.finish, self._model)
        self._queue: deque[Completed | Finished] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._uncertain = False
        self.is_connected = False
        """Whether it has a connection to write with. Without one the claimer starts nothing: no result could be written."""
        self._refused: dict[tuple[JobId, int], tuple[Completed | Finished, float]] = {}
        """Results in quarantine, by attempt, each with the time of its next try by the monotonic clock."""

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

    def retry_refused(self, due_by: float = float("inf")) -> None:
        """Try quarantined results again: those due by a time, or all, as a worker does that is about to stop."""
        for attempt, (end, due) in list(self._refused.items()):
            if due <= due_by:
                del self._refused[attempt]
                self.put(end)

    async def run(self) -> None:
        """Write what arrives until cancelled."""
        async with self._engine.connect() as connection:
            self.is_connected = True
            try:
                while True:
                    self.retry_refused(time.monotonic())
                    if self._queue:
                        await self.flush(connection)
                        continue
                    self._empty.set()
                    self._arrived.clear()
                    due = min((due for _, due in self._refused.values()), default=None)
                    await waited(self._arrived, None if due is None else due - time.monotonic())
            finally:
                self.is_connected = False

    async def flush(self, connection: AsyncConnection) -> None:
        """Write one batch and report the outcome. A batch that fails as a whole stays queued for the next run."""
        batch = [self._queue[index] for index in range(min(len(self._queue), self._options.completion_batch_size))]
        repeated, self._uncertain = self._uncertain, True
        outcome = await self._write(connection, batch)
        for _ in batch:
            self._queue.popleft()
        self._uncertain = False
        await self._apply(batch, outcome, repeated=repeated)
        if len(outcome.locked_ids) == len(batch):
            await asyncio.sleep(_HELD_REST)

    async def _write(self, connection: AsyncConnection, batch: Sequence[Completed | Finished]) -> WriteOutcome:
        outcome = WriteOutcome()
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
        await outcome.add(alone, partial(self._write_completed, connection))
        if chained:
            await self._chained.write(connection, chained, outcome)
        await outcome.add(ended, partial(self._write_finished, connection))
        if len(outcome.ids) < len(batch):
            decided_ids = outcome.ids | outcome.failed.keys() | {end.job.id for end, _ in outcome.refused}
            unwritten = [end.job for end in batch if end.job.id not in decided_ids]
            outcome.locked_ids = await self._ownership.owned_ids(unwritten, connection) if unwritten else set()
        return outcome

    async def _apply(self, batch: Sequence[Completed | Finished], outcome: WriteOutcome, *, repeated: bool) -> None:
        """Report results that are no longer queued, and keep those that are still to be written."""
        refused = {end.job.id for end, _ in outcome.refused}
        completed: list[Completed] = []
        for end in batch:
            job = end.job
            if job.id in outcome.ids:
                if isinstance(end, Finished):
                    self.report(end)
                else:
                    completed.append(end)
            elif job.id in outcome.failed:
                self.put(outcome.failed[job.id])
            elif job.id in outcome.locked_ids:
                self.put(end)
            elif job.id not in refused and not repeated:
                # After a failed try, that try itself may have ended a missing attempt: nothing to report.
                self._signals.ended(job)
                self._events.emit(AttemptLost(job.id, job.type_name, job.attempt))
        self._report_completed(completed)
        queued_ids = refused | outcome.locked_ids
        for write in (RefusedWrite.COMPLETE, RefusedWrite.FINISH):
            over = (end.job.id for end in batch if end.job.id not in queued_ids and _write_of(end) is write)
            await self._quarantine.written(write, over)
        await self._set_aside(outcome.refused)

    async def _set_aside(self, refused: Sequence[tuple[Completed | Finished, Exception]]) -> None:
        now = time.monotonic()
        ends = {(end.job.id, end.job.attempt): (end, error) for end, error in refused}
        self._refused |= {attempt: (end, now) for attempt, (end, _) in ends.items()}  # before anything is awaited
        for attempt, (end, error) in ends.items():
            pauses = await self._quarantine.add(_write_of(end), [(end.job.id, error)])
            if attempt in self._refused:
                self._refused[attempt] = end, now + pauses[end.job.id].total_seconds()

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
        parameters = finish_parameters(ends, worker_id=self._worker_id, model=self._model)
        rows = await self._finish.execute(connection, parameters)
        return self._unblocker.put_ended(rows)

    def _report_completed(self, ends: Sequence[Completed]) -> None:
        for end in ends:
            self._signals.ended(end.job)
        if ends and self._events.has_subscribers(JobCompleted):
            self._events.emit_many([completed(end.job, timedelta(seconds=end.seconds)) for end in ends])

    def report(self, end: Finished) -> None:
        """Report an end without success that is written."""
        self._signals.ended(end.job)
        if end.status is JobStatus.PENDING:
            self._signals.may_start()  # it may be due before the claimer's next poll
        self._events.emit(event_of(end))


def completed(job: ClaimedJob, ran: timedelta) -> JobCompleted:
    """Return the event that reports a completion."""
    return JobCompleted(job.id, job.type_name, job.attempt, ran, job.queue, job.started_at - job.scheduled_at)


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
