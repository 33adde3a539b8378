"""The child processes of a worker: kept warm, assigned to one attempt at a time, replaced when they end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.context import AttemptContext, Blockers, ClaimedJob
from sa_jobqueue.errors import AttemptSignal, InvalidOptionError, IsolationError, JobQueueError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.memory import IS_MEASURABLE
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.run.isolation.answers import result_of
from sa_jobqueue.worker.run.isolation.messages import Message, packed_job
from sa_jobqueue.worker.run.isolation.process import Process, request_of

_LEASE_OF_WAITING: Final = timedelta(seconds=60)
"""How much an attempt's lease is extended, repeatedly, while it waits for a child."""
_MOST_STARTING: Final = max(1, (os.cpu_count() or 1) // 2)
"""Maximum number of children that start together. More would take as long in total, and longer each."""


def check_importable(jobs: JobQueue[Any], app: str | None) -> None:
    """Check that children can import the isolated handlers that they are to run.

    Raises: InvalidOptionError naming the handler that a fresh interpreter would not find.
    """
    for kind in jobs.registry:
        if kind.memory_limit is not None and not IS_MEASURABLE:
            raise InvalidOptionError("memory_limit", f"of {kind.place} is supported on Linux only; leave it unset")
        if not kind.isolated or app is not None:
            continue
        module, _, name = kind.place.partition(":")
        it: Any = sys.modules.get(module)
        for attribute in name.split("."):
            it = getattr(it, attribute, None)
        if module == "__main__" or not isinstance(it, Handler) or it.job_type is not kind:
            raise InvalidOptionError(
                "app",
                f"the isolated handler {kind.place} cannot be imported by a child process: declare it at the top of a "
                'module, or name the registry it is found in: app="shop.jobs:jobs"',
            )


class Children:
    """Starts children as attempts need them, at most one per slot, and keeps them for later attempts.

    One is started with the worker, so that an import error of the application is reported before anything is claimed; when
    one ends and no other is idle, its successor is started before it is needed. A crash of this process ends all.
    """

    def __init__(self, jobs: JobQueue[Any], *, app: str | None, worker_id: str, options: WorkerOptions) -> None:
        self._model: type[JobMixin[Any]] = jobs.model
        # One is kept warm where their own queue is served; jobs that come by another one wait for theirs to start.
        self._needed = any(kind.isolated and kind.queue in options.limits for kind in jobs.registry)
        self._app = app
        # In the order of declaration, by whose first import the application itself came up.
        self._modules = list(dict.fromkeys(kind.func.__module__ for kind in jobs.registry)) if app is None else []
        self._worker_id = worker_id
        self._max_jobs = options.max_jobs_per_child
        self._cancel_timeout = options.cancel_timeout
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._waiting: deque[asyncio.Future[Process]] = deque()
        self._starting: set[asyncio.Task[Process]] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self) -> None:
        """Start the first one, if any handler needs it.

        Raises: IsolationError when it cannot be started, or cannot import the application.
        """
        if self._needed:
            self._offer(await self._started())

    async def call(
        self,
        job: ClaimedJob,
        context: AttemptContext,
        job_type: JobType,
        blockers: Blockers[Any] | None,
        *,
        begin: Callable[[timedelta], None],
        extend: Callable[[timedelta], Awaitable[None]],
    ) -> str | JobMixin[Any]:
        """Run an attempt in a child; return its output as JSON text, or the next job of its chain.

        `begin`: starts the attempt's time. `extend`: the same and moves its lease, or cancels this where it is lost: for
        one that has to wait for a child, whose lease would run out meanwhile, and which must not begin when it has.
        When this is cancelled, it returns after `cancel_timeout` at most, and nothing of the attempt is left.
        Raises: what the handler raised, as `answers.result_of`; ProcessDiedError, MemoryLimitError; IsolationError when
        no child can be started.
        """
        packed = [] if blockers is None else [_packed(one) for one in blockers.outcomes]
        request = request_of(packed_job(job), worker_id=self._worker_id, place=job_type.place, blockers=packed)
        child = self._warm(job_type)
        if child is not None and job.timeout is not None:
            begin(job.timeout)
        elif child is None:
            child = await self._waited(job.timeout, extend)
        try:
            answer = await child.run(request, job, context, memory_limit=job_type.memory_limit)
        except asyncio.CancelledError:
            await child.stop(context.cancel_reason or CancelReason.SHUTDOWN, self._cancel_timeout)
            raise
        finally:
            self._give_back(child)
        return self._result(child, answer, job)

    async def close(self) -> None:
        """Close all of them, the idle ones gracefully."""
        self._closing = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(child.close() for child in self._all), *self._retiring, return_exceptions=True)

    def _result(self, child: Process, answer: Message, job: ClaimedJob) -> str | JobMixin[Any]:
        try:
            return result_of(answer, job, self._model)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, (JobQueueError, AttemptSignal)):
                raise
            child.kill()
            raise IsolationError(f"it sent an invalid answer: {error!r}") from error

    def _warm(self, job_type: JobType) -> Process | None:
        while self._idle:
            child = self._idle.pop()  # the last one used: what the others hold may be swapped out
            # What earlier attempts have left behind is not to count against this one.
            is_full = job_type.memory_limit is not None and child.ran > 0 and child.resident() > job_type.memory_limit / 2
            if child.is_free and not is_full:
                return child
            self._retire(child)
        return None

    async def _waited(self, timeout: timedelta | None, extend: Callable[[timedelta], Awaitable[None]]) -> Process:
        """Wait for a child: one that an attempt gives back, or a new one, whichever comes first."""
        waiting: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._start_more()
        try:
            while not waiting.done():
                if timeout is not None:
                    await extend(timeout + _LEASE_OF_WAITING)
                await asyncio.wait({waiting}, timeout=_LEASE_OF_WAITING.total_seconds())
            child = waiting.result()
            if timeout is not None:
                await extend(timeout)
                await asyncio.sleep(0)  # it cancels this task, which is not felt before it waits
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._give_back(waiting.result())
            waiting.cancel()
            raise
        return child

    def _start_more(self) -> None:
        """Start as many as are waited for, a few at a time: each keeps a processor busy for a second."""
        wanted = sum(not one.done() for one in self._waiting) or int(self._needed and not self._idle)
        while len(self._starting) < min(wanted, _MOST_STARTING) and not self._closing:
            starting = asyncio.create_task(self._started(), name="sa_jobqueue child's start")
            self._starting.add(starting)
            starting.add_done_callback(self._has_started)

    def _has_started(self, starting: asyncio.Task[Process]) -> None:
        self._starting.discard(starting)
        if starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            self._offer(starting.result())
        elif waiting := self._first_waiting():
            waiting.set_exception(error)
        if self._waiting:
            self._start_more()

    def _offer(self, child: Process) -> None:
        if waiting := self._first_waiting():
            waiting.set_result(child)
        else:
            self._idle.append(child)

    def _first_waiting(self) -> asyncio.Future[Process] | None:
        while self._waiting:
            if not (waiting := self._waiting.popleft()).done():  # one that was cancelled is
                return waiting
        return None

    def _give_back(self, child: Process) -> None:
        if child.is_free and child.ran < self._max_jobs:
            self._offer(child)
            return
        self._retire(child)
        self._start_more()

    def _retire(self, child: Process) -> None:
        closing = asyncio.create_task(child.close(), name="sa_jobqueue child's end")
        self._retiring.add(closing)
        closing.add_done_callback(self._retiring.discard)

    async def _started(self) -> Process:
        child = await Process.start(app=self._app, modules=self._modules)
        self._all.add(child)
        child.ended.add_done_callback(lambda _: self._all.discard(child))
        return child


def _packed(outcome: Any) -> dict[str, Any]:
    return {
        "chain_id": str(outcome.chain_id),
        "is_uuid": not isinstance(outcome.chain_id, str),
        "type_name": outcome.type_name,
        "status": str(outcome.status),
        "output": outcome.output,
        "error": outcome.error,
    }
