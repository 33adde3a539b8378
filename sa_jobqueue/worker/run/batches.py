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
class _Member:
    running: Running
    end: asyncio.Future[Result | Failed]
    """A result, or `Failed`."""


@dataclass(slots=True, eq=False)
class _Batch:
    job_type: JobType
    members: list[_Member] = field(default_factory=list)
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
        batch, member = self._join(running, job_type)
        try:
            end = await asyncio.shield(member.end)
        except asyncio.CancelledError:
            if batch.task is None:
                batch.members.remove(member)
            elif running.stopping not in LOST:
                await self._interrupt(batch, member)
                if running.ended is not None:  # it had committed before it could be cancelled
                    return unwrapped(member.end.result())
            raise
        return unwrapped(end)

    def _join(self, running: Running, job_type: JobType) -> tuple[_Batch, _Member]:
        rule: Any = job_type.batch
        batch = self._gathering.get(job_type.name)
        if batch is None:
            batch = self._gathering[job_type.name] = _Batch(job_type)
            batch.timer = self._loop.call_later(rule.max_wait.total_seconds(), self._go, batch)
        member = _Member(running, self._loop.create_future())
        batch.members.append(member)
        if len(batch.members) >= rule.max_size:
            self._go(batch)
        elif self._free_for(job_type.name) <= 0:
            # Only attempts that already have a slot can still join.
            self._loop.call_soon(self._go, batch)
        return batch, member

    def _go(self, batch: _Batch) -> None:
        if batch.task is not None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        if self._gathering.get(batch.job_type.name) is batch:
            del self._gathering[batch.job_type.name]
        if batch.members:
            batch.task = self._loop.create_task(self._run(batch), name=batch.job_type.name)
            self._going.add(batch.task)
            batch.task.add_done_callback(self._going.discard)

    async def _interrupt(self, batch: _Batch, member: _Member) -> None:
        """Stop the call that an attempt is part of, for all of it, and wait until it has ended or is left behind."""
        batch.is_stopped = True
        for other in batch.members:
            if other is not member and not other.end.done():
                self._stop(other.running, CancelReason.BATCH_STOPPED)
        task = batch.task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, batch: _Batch) -> None:
        """Call the handler and set each attempt's outcome. If cancelled, only attempts that were committed get one."""
        members, job_type = batch.members, batch.job_type
        # In the order of their ids: all code locks jobs in this order.
        members.sort(key=lambda member: member.running.job.id)
        try:
            with job_type.around_attempt():  # not one member's, which may end earlier
                results = await self._calls.call(job_type, [member.running for member in members])
        except LostAttemptsError as lost:
            for member in members:
                job = member.running.job
                if job in lost.jobs:
                    self._resolve(member, Failed(LostAttemptError(job.id, job.attempt), None))
            for member in members:
                if not member.end.done():
                    self._stop(member.running, CancelReason.BATCH_STOPPED)
        # User code ends here, and so does everything it can raise; what it awaited may have been cancelled, too.
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and batch.is_stopped:
                raise
            for member in members:
                self._resolve(member, Failed.of(error))
        else:
            for member, result in zip(members, results, strict=True):
                self._resolve(member, result)

    @staticmethod
    def _resolve(member: _Member, end: Result | Failed) -> None:
        if not member.end.done():
            member.end.set_result(end)
