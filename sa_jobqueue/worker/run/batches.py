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
import contextvars
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.forks import LeaveIfForked
from sa_jobqueue.errors import LostAttemptError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.completing import complete_attempts, ended_by_handler
from sa_jobqueue.policies.fairness import queue_key_of
from sa_jobqueue.registry.batches import BatchFailed, BatchItem, outcomes_of, outcomes_without
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import ENDED, LOST, CancelReason, JobId, JobStatus
from sa_jobqueue.worker.run.dependencies import open_dependencies, open_dependencies_in_thread
from sa_jobqueue.worker.run.running import Running
from sa_jobqueue.worker.run.sessions import Sessions, guard
from sa_jobqueue.worker.run.threads import Threads


class Host(Protocol):
    """What a batch needs of the executor."""

    def free_for(self, type_name: str) -> int:
        """Return how many more jobs of a type may be started."""

    def encode(self, running: Running, returned: Any, job_type: JobType) -> Any:
        """Return an outcome in the form in which it is written."""

    def stop(self, running: Running, reason: CancelReason) -> None:
        """Stop an attempt."""

    async def still_held(self, attempts: Iterable[ClaimedJob]) -> set[JobId]:
        """Return the jobs whose attempts are still this worker's."""

    def leave_behind(self, call: asyncio.Future[Any]) -> None:
        """Abandon a thread that does not stop."""

    def committed(self, following: str | None, ended: JobId | None) -> None:
        """Handle what a commit started: a continuation, or the end of a chain."""


@dataclass(slots=True)
class _Failed:
    error: BaseException
    traceback: TracebackType | None


@dataclass(slots=True, eq=False)
class _Member:
    running: Running
    payload: Any
    end: asyncio.Future[Any]
    """An encoded result, None when the batch's own commit has completed it, or `_Failed`."""


@dataclass(slots=True, eq=False)
class _Batch:
    job_type: JobType
    members: list[_Member] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    """Set once it goes."""
    is_stopped: bool = False
    """Whether its call was cancelled."""


class _LostOnesError(Exception):
    """Some attempts of a batch with a session were lost, so nothing was kept. `attempts` has them."""

    def __init__(self, attempts: set[tuple[Any, int]]) -> None:
        self.attempts = attempts


class Batches:
    """The batches of a worker. Used from its loop."""

    def __init__(
        self,
        host: Host,
        model: type[JobMixin[Any]],
        sessions: Sessions,
        threads: Threads,
        *,
        worker_id: str,
        cancel_timeout: timedelta,
    ) -> None:
        self._host = host
        self._model = model
        self._worker_id = worker_id
        self._sessions = sessions
        self._threads = threads
        self._leave_if_forked = LeaveIfForked()
        self._cancel_timeout = cancel_timeout.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._gathering: dict[str, _Batch] = {}
        self._going: set[asyncio.Task[None]] = set()

    async def call(self, running: Running, job_type: JobType, payload: Any) -> str | JobMixin[Any] | None:
        """Run an attempt within a batch; return its result, or None when the batch's own commit completed it.

        Raises: the handler's error for this job, or for all.
        """
        batch, member = self._join(running, job_type, payload)
        try:
            end = await asyncio.shield(member.end)
        except asyncio.CancelledError:
            if batch.task is None:
                batch.members.remove(member)
            elif running.stopping not in LOST:
                await self._interrupt(batch, member)
                if member.end.done() and member.end.result() is None:
                    return None  # it had committed before it could be cancelled
            raise
        if isinstance(end, _Failed):
            # One exception may be the end of many: each raises it with the traceback that it came with.
            raise end.error.with_traceback(end.traceback)
        result: str | JobMixin[Any] | None = end
        return result

    def _join(self, running: Running, job_type: JobType, payload: Any) -> tuple[_Batch, _Member]:
        rule: Any = job_type.batch
        batch = self._gathering.get(job_type.name)
        if batch is None:
            batch = self._gathering[job_type.name] = _Batch(job_type)
            batch.timer = self._loop.call_later(rule.max_wait.total_seconds(), self._go, batch)
        member = _Member(running, payload, self._loop.create_future())
        batch.members.append(member)
        if len(batch.members) >= rule.max_size:
            self._go(batch)
        elif self._host.free_for(job_type.name) <= 0:
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
                self._host.stop(other.running, CancelReason.BATCH_STOPPED)
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
            call = self._call_async if job_type.is_async else self._call_in_thread
            with job_type.around_attempt():  # not one member's, which may end earlier
                results = await call(batch)
        except _LostOnesError as lost:
            for member in members:
                job = member.running.job
                if (job.id, job.attempt) in lost.attempts:
                    self._resolve(member, _Failed(LostAttemptError(job.id, job.attempt), None))
            for member in members:
                if not member.end.done():
                    self._host.stop(member.running, CancelReason.BATCH_STOPPED)
        # User code ends here, and so does everything it can raise; what it awaited may have been cancelled, too.
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and batch.is_stopped:
                raise
            for member in members:
                self._resolve(member, _Failed(error, error.__traceback__))
        else:
            for member, result in zip(members, results, strict=True):
                self._resolve(member, result)

    @staticmethod
    def _resolve(member: _Member, end: Any) -> None:
        if not member.end.done():
            member.end.set_result(end)

    async def _call_async(self, batch: _Batch) -> list[Any]:
        job_type, first = batch.job_type, batch.members[0].running
        statuses: dict[JobId, JobStatus] = {}
        async with open_dependencies_in_thread(first.context, job_type, self._threads) as given:
            if job_type.session_argument is None:
                return self._encoded(batch, await self._outcomes_async(batch, given))
            async with self._sessions.open(job_type) as session:
                held = guard(session.sync_session, first.job.id)
                with held:
                    outcomes = await self._outcomes_async(batch, given | {job_type.session_argument: session})
                results = self._encoded(batch, outcomes)
                if all(isinstance(result, _Failed) for result in results):
                    return results  # nothing is completed, so nothing that was written is kept
                followed, lost = await session.run_sync(self._complete, batch, results, held.name)
                if lost:
                    statuses = await session.run_sync(
                        self._ended_by_handler, lost, await self._host.still_held(lost), held.name
                    )
                held.may_commit = True
                commit = self._loop.create_task(session.commit())
                try:
                    await asyncio.shield(commit)
                except asyncio.CancelledError:
                    # Cancelled during the commit: wait for the server's answer, because it decides.
                    await asyncio.wait({commit})
                    if commit.exception() is not None:
                        raise
                self._note_ended(batch, results, statuses)
        self._follow(followed)
        return _committed(results)

    async def _outcomes_async(self, batch: _Batch, given: dict[str, Any]) -> list[Any]:
        try:
            with self._leave_if_forked, batch.job_type.around_call(_session_in(given, batch.job_type)):
                returned = await batch.job_type.func(_arguments(batch), **given)
            return outcomes_of(returned, len(batch.members))
        except BatchFailed as failed:
            return outcomes_without(failed, len(batch.members))

    async def _call_in_thread(self, batch: _Batch) -> list[Any]:
        call = self._threads.run(partial(contextvars.copy_context().run, self._call_handler, batch))
        try:
            results = await asyncio.shield(call)
        except asyncio.CancelledError:
            for member in batch.members:
                member.running.context.stop(CancelReason.BATCH_STOPPED)
            done, _ = await asyncio.wait({call}, timeout=self._cancel_timeout)
            if not done:
                self._host.leave_behind(call)
            elif call.exception() is None and batch.job_type.session_argument is not None:
                return call.result()  # it had committed before it could be cancelled
            raise
        return results

    def _call_handler(self, batch: _Batch) -> list[Any]:
        job_type, first = batch.job_type, batch.members[0].running
        statuses: dict[JobId, JobStatus] = {}
        with open_dependencies(first.context, job_type) as given:
            if job_type.session_argument is None:
                return self._encoded(batch, self._outcomes(batch, given))
            with self._sessions.open(job_type) as session:
                held = guard(session, first.job.id)
                with held:
                    outcomes = self._outcomes(batch, given | {job_type.session_argument: session})
                results = self._encoded(batch, outcomes)
                if all(isinstance(result, _Failed) for result in results):
                    return results  # nothing is completed, so nothing that was written is kept
                followed, lost = self._complete(session, batch, results, held.name)
                _check_not_stopped(batch)  # one that was left behind may outlive the worker, and its loop
                if lost:
                    still_held = asyncio.run_coroutine_threadsafe(self._host.still_held(lost), self._loop).result()
                    statuses = self._ended_by_handler(session, lost, still_held, held.name)
                    _check_not_stopped(batch)
                held.may_commit = True
                session.commit()
                self._note_ended(batch, results, statuses)
        self._loop.call_soon_threadsafe(self._follow, followed)
        return _committed(results)

    def _outcomes(self, batch: _Batch, given: dict[str, Any]) -> list[Any]:
        try:
            with self._leave_if_forked, batch.job_type.around_call(_session_in(given, batch.job_type)):
                returned = batch.job_type.func(_arguments(batch), **given)
            return outcomes_of(returned, len(batch.members))
        except BatchFailed as failed:
            return outcomes_without(failed, len(batch.members))

    def _encoded(self, batch: _Batch, outcomes: list[Any]) -> list[Any]:
        """Return the outcomes in the form in which they are written; one that cannot be encoded fails only its own job."""
        results: list[Any] = []
        for member, outcome in zip(batch.members, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                results.append(_Failed(outcome, outcome.__traceback__))
                continue
            try:
                results.append(self._host.encode(member.running, outcome, batch.job_type))
            except BaseException as error:
                results.append(_Failed(error, error.__traceback__))
        return results

    def _complete(
        self, session: Any, batch: _Batch, results: list[Any], session_name: str | None
    ) -> tuple[list[tuple[str | None, Any]], list[ClaimedJob]]:
        """Complete the attempts that did not fail, in the handler's own transaction.

        Returns what that sets going, and the attempts that are no longer the worker's or were ended by the handler.
        """
        ends = [
            (member.running.job, result)
            for member, result in zip(batch.members, results, strict=True)
            if not isinstance(result, _Failed)
        ]
        given: dict[str, Any] = {"worker_id": self._worker_id, "model": self._model, "session_name": session_name}
        ended, lost = complete_attempts(session, ends, **given)
        # Before the commit expires them.
        made = [result for _, result in ends if isinstance(result, JobMixin)]
        queues = {queue_key_of(job.queue, job.fairness_key) for job in made}
        followed: list[tuple[str | None, Any]] = [(None, chain_id) for chain_id in ended]
        followed += [(queue, None) for queue in sorted(queues)]
        return followed, [job for job, _ in ends if (job.id, job.attempt) in lost]

    def _ended_by_handler(
        self, session: Any, lost: list[ClaimedJob], still_held: set[JobId], session_name: str | None
    ) -> dict[JobId, JobStatus]:
        """Return how the handler's own transaction ended jobs. Raises: _LostOnesError when others have any of them."""
        ended = ended_by_handler(session, [job.id for job in lost], model=self._model, session_name=session_name)
        others = {(job.id, job.attempt) for job in lost if job.id not in still_held or ended[job.id] not in ENDED}
        if others:
            raise _LostOnesError(others)
        return ended

    @staticmethod
    def _note_ended(batch: _Batch, results: list[Any], statuses: dict[JobId, JobStatus]) -> None:
        for member, result in zip(batch.members, results, strict=True):
            if not isinstance(result, _Failed):
                member.running.ended = statuses.get(member.running.job.id, JobStatus.COMPLETED)

    def _follow(self, followed: list[tuple[str | None, Any]]) -> None:
        for queue, ended in followed:
            self._host.committed(queue, ended)


def _arguments(batch: _Batch) -> list[Any]:
    if batch.job_type.batch is not None and batch.job_type.batch.takes_items:
        return [BatchItem(member.payload, member.running.context) for member in batch.members]
    return [member.payload for member in batch.members]


def _session_in(given: dict[str, Any], job_type: JobType) -> Any:
    return None if job_type.session_argument is None else given[job_type.session_argument]


def _check_not_stopped(batch: _Batch) -> None:
    if any(member.running.context.cancelled for member in batch.members):
        raise RuntimeError("the batch was stopped; nothing of it is kept")


def _committed(results: list[Any]) -> list[Any]:
    return [result if isinstance(result, _Failed) else None for result in results]
