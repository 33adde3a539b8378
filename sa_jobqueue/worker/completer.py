"""Writes the ends of attempts, many in one statement, without holding up a lone one."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sa_jobqueue.encodings import Encoding
from sa_jobqueue.events import AttemptLost, EventBus, JobCancelled, JobCompleted, JobDied, JobPutBack
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import completions
from sa_jobqueue.types import DeadReason, JobId, JobStatus
from sa_jobqueue.worker.chained import ChainWriter, note_ended, with_roots
from sa_jobqueue.worker.compiled import compiled
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.outcomes import Completed, Finished
from sa_jobqueue.worker.settler import Settler

_HELD_REST = 0.05
"""Seconds until the next try when every end in the queue waits for a lock of somebody else."""


class Completer(Component):
    """Takes ends of attempts and writes them in the order they came, a batch a statement.

    While one batch is on its way the next gathers, so a lone end waits for nobody and a crowd shares round trips. An
    end leaves the queue only when its write was acknowledged: an outage delays it, and the fence decides then whether it
    still counts. A crash of the process loses what is queued; those jobs are taken back and run again.
    """

    name = "completer"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        worker_id: str,
        events: EventBus,
        *,
        settler: Settler,
        flush_size: int,
    ) -> None:
        self._engine = engine
        self._settler = settler
        self._chained = ChainWriter(engine, model, worker_id, settler)
        self._worker_id = worker_id
        self._events = events
        self._flush_size = flush_size
        self._new_id = model.__id_factory__
        self._complete = compiled(completions.complete, model)
        self._finish = compiled(completions.finish, model)
        self._standing = completions.standing(model)
        self._queue: deque[Completed | Finished] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._uncertain = False
        self.encoding: Encoding | None = None
        """The database's, where it is not UTF-8: of an error, what it cannot store is written as backslash escapes."""

    def put(self, end: Completed | Finished) -> None:
        """Queue an end for the next write."""
        if self.encoding is not None and isinstance(end, Finished) and end.error is not None:
            end = replace(end, error=self.encoding.escaped(end.error))
        self._queue.append(end)
        self._empty.clear()
        self._arrived.set()

    @property
    def attempts(self) -> set[tuple[JobId, int]]:
        """The attempts whose ends wait to be written, as `(job_id, attempt)`."""
        return {(end.job.id, end.job.attempt) for end in self._queue}

    @property
    def backlog(self) -> int:
        """How many ends are not acknowledged yet. The claimer stops taking jobs while it is deep."""
        return len(self._queue)

    async def drained(self) -> None:
        """Wait until everything queued is acknowledged."""
        await self._empty.wait()

    async def run(self) -> None:
        """Write whatever arrives until cancelled."""
        async with self._engine.connect() as connection:
            while True:
                if not self._queue:
                    self._empty.set()
                    self._arrived.clear()
                    await self._arrived.wait()
                await self.flush(connection)

    async def flush(self, connection: AsyncConnection) -> None:
        """Write one batch and tell what it did. One that fails stays queued: the next run writes it again."""
        batch = [self._queue[index] for index in range(min(len(self._queue), self._flush_size))]
        repeated, self._uncertain = self._uncertain, True
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
        completed = await self._write_completed(connection, alone) if alone else []
        if len(completed) == len(batch):  # as nearly always: nothing to find out about any of them
            self._forget(batch)
            self._tell_completed(alone)
            return
        written = set(completed)
        failed: dict[Any, Finished] = {}
        if chained:
            ends = await self._chained.write(connection, chained)
            written |= ends.ids
            failed = ends.failed
        if ended:
            written |= await self._write_finished(connection, ended)
        unwritten = [end for end in batch if end.job.id not in written and end.job.id not in failed]
        held = await self._held(connection, unwritten) if unwritten else set()
        self._forget(batch)
        for end in batch:
            if end.job.id in written:
                if isinstance(end, Finished):
                    self._tell(end)
            elif end.job.id in failed:
                self._queue.append(failed[end.job.id])
            elif end.job.id in held:
                self._queue.append(end)
            elif not repeated:
                # After a failed try an attempt that is gone may have been ended by that very try: nothing to report.
                self._events.emit(AttemptLost(end.job.id, end.job.type_name, end.job.attempt))
        self._tell_completed([end for end in batch if isinstance(end, Completed) and end.job.id in written])
        if len(held) == len(batch):
            await asyncio.sleep(_HELD_REST)

    def _forget(self, batch: Sequence[Completed | Finished]) -> None:
        for _ in batch:
            self._queue.popleft()
        self._uncertain = False

    async def _held(self, connection: AsyncConnection, ends: Sequence[Completed | Finished]) -> set[Any]:
        """Return those whose rows somebody else has locked: they are still ours, and their turn comes."""
        result = await connection.execute(
            self._standing,
            {
                "ids": [end.job.id for end in ends],
                "attempts": [end.job.attempt for end in ends],
                "worker_id": self._worker_id,
            },
        )
        return set(result.scalars())

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
        for job_id, is_awaited in rows:
            if is_awaited:
                self._settler.put(job_id)
        return [job_id for job_id, _ in rows]

    async def _write_finished(self, connection: AsyncConnection, ends: Sequence[Finished]) -> set[Any]:
        rows = await self._finish.execute(
            connection,
            {
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
                "letter_ids": [self._new_id() for _ in ends],
                "locks": with_roots(ends),
                "worker_id": self._worker_id,
            },
        )
        return note_ended(rows, self._settler)

    def _tell_completed(self, ends: Sequence[Completed]) -> None:
        if self._events.hears(JobCompleted):
            told = [JobCompleted(end.job.id, end.job.type_name, end.job.attempt, end.ran) for end in ends]
            self._events.emit_many(told)

    def _tell(self, end: Finished) -> None:
        job = end.job
        if end.status is JobStatus.DEAD:
            reason = end.reason or DeadReason.EXHAUSTED
            self._events.emit(JobDied(job.id, job.type_name, job.attempt, reason, end.error, end.ran))
        elif end.status is JobStatus.CANCELLED:
            self._events.emit(JobCancelled(job.id, job.type_name, job.attempt, end.ran))
        else:
            put_back = JobPutBack(job.id, job.type_name, job.attempt, end.outcome, end.delay, end.error, end.at, end.ran)
            self._events.emit(put_back)
