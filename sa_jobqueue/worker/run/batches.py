"""Collects attempts for batch handlers, calls the handler, and gives each attempt its own outcome.

The executor runs each attempt like any other, with its own timeout, middleware and fence. Where an ordinary attempt calls
its handler, these wait here for the call of the batch. Outcomes are written as usual, those of a batch in one statement.

If one attempt of a running batch
- is lost, the others continue, unless the handler has a session: its writes for the lost attempt cannot be separated from
  the rest, so all is rolled back, and the others are released without counting an attempt;
- times out, or the worker shuts down, the call is stopped, and the others are released without counting an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sa_jobqueue.errors import LostAttemptError
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import LOST, CancelReason
from sa_jobqueue.worker.run.calls import Calls, Failed, LostAttemptsError, Result, Running, unwrapped


@dataclass(slots=True, eq=False)
class _Batch:
    job_type: JobType
    ends: dict[Running, asyncio.Future[Result | Failed]] = field(default_factory=dict)
    """The outcome of each of its attempts."""
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    """Set once it goes."""
    is_stopped: bool = False
    """Whether its call was cancelled."""


class Batches:
    """The batches of a worker. Used from its loop."""

    def __init__(
        self, calls: Calls, *, free_for: Callable[[str], int], stop: Callable[[Running, CancelReason], None]
    ) -> None:
        """`free_for`: returns how many more jobs of a type may be started. `stop`: stops an attempt."""
        self._calls, self._free_for, self._stop = calls, free_for, stop
        self._loop = asyncio.get_running_loop()
        self._gathering: dict[str, _Batch] = {}
        self._going: set[asyncio.Task[None]] = set()

    async def call(self, running: Running, job_type: JobType) -> Result:
        """Run an attempt within a batch; return its result.

        Raises: the handler's error for this job, or for all.
        """
        batch = self._join(running, job_type)
        end = batch.ends[running]
        try:
            outcome = await asyncio.shield(end)
        except asyncio.CancelledError:
            if batch.task is None:
                del batch.ends[running]
            elif running.stopping not in LOST:
                await self._interrupt(batch, running)
            if running.ended is None or not end.done():
                raise
            outcome = end.result()  # it had committed before it could be cancelled
        result: Result = unwrapped(outcome)
        return result

    def _join(self, running: Running, job_type: JobType) -> _Batch:
        rule: Any = job_type.batch
        batch = self._gathering.get(job_type.name)
        if batch is None:
            batch = self._gathering[job_type.name] = _Batch(job_type)
            batch.timer = self._loop.call_later(rule.max_wait.total_seconds(), self._go, batch)
        batch.ends[running] = self._loop.create_future()
        if len(batch.ends) >= rule.max_size:
            self._go(batch)
        elif self._free_for(job_type.name) <= 0:
            # Only attempts that already have a slot can still join.
            self._loop.call_soon(self._go, batch)
        return batch

    def _go(self, batch: _Batch) -> None:
        if batch.task is not None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        if self._gathering.get(batch.job_type.name) is batch:
            del self._gathering[batch.job_type.name]
        if batch.ends:
            batch.task = self._loop.create_task(self._run(batch), name=batch.job_type.name)
            self._going.add(batch.task)
            batch.task.add_done_callback(self._going.discard)

    async def _interrupt(self, batch: _Batch, running: Running) -> None:
        """Stop the call that an attempt is part of, for all of it, and wait until it has ended or is left behind."""
        batch.is_stopped = True
        self._stop_all(batch, but=running)
        task = batch.task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, batch: _Batch) -> None:
        """Call the handler and set each attempt's outcome. If cancelled, only attempts that were committed get one."""
        # In the order of their ids: all code locks jobs in this order.
        attempts = sorted(batch.ends, key=lambda running: running.job.id)
        try:
            with batch.job_type.around_attempt():  # not one member's, which may end earlier
                results = await self._calls.call(batch.job_type, attempts)
        except LostAttemptsError as lost:
            for running in attempts:
                if running.job in lost.jobs:
                    error = LostAttemptError(running.job.id, running.job.attempt)
                    _resolve(batch.ends[running], Failed(error))
            self._stop_all(batch)
        # User code ends here, and so does everything it can raise; what it awaited may have been cancelled, too.
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and batch.is_stopped:
                raise
            for end in batch.ends.values():
                _resolve(end, Failed(error))
        else:
            for running, result in zip(attempts, results, strict=True):
                _resolve(batch.ends[running], result)

    def _stop_all(self, batch: _Batch, *, but: Running | None = None) -> None:
        for running, end in batch.ends.items():
            if running is not but and not end.done():
                self._stop(running, CancelReason.BATCH_STOPPED)


def _resolve(end: asyncio.Future[Result | Failed], outcome: Result | Failed) -> None:
    if not end.done():
        end.set_result(outcome)
