"""The child processes of a worker: kept warm, assigned to one attempt at a time, replaced when they end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.context import AttemptContext, Blockers, ClaimedJob
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.memory import IS_MEASURABLE
from sa_jobqueue.worker.run.isolation.messages import of_job, result_of
from sa_jobqueue.worker.run.isolation.process import Process
from sa_jobqueue.worker.shared import Part, Shared

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


class Children(Part):
    """Starts children as attempts need them, at most one per slot, and keeps them for later attempts.

    One is started with the worker, so that an import error of the application is reported before anything is claimed; when
    one ends and no other is idle, its successor is started before it is needed. A crash of this process ends all.
    """

    def __init__(self, shared: Shared, *, app: str | None) -> None:
        super().__init__(shared)
        jobs, options = shared.jobs, shared.options
        # One is kept warm where their own queue is served; jobs that come by another one wait for theirs to start.
        self._needed = any(kind.isolated and kind.queue in options.limits for kind in jobs.registry)
        self._app = app
        # In the order of declaration, by whose first import the application itself came up.
        self._modules = list(dict.fromkeys(kind.func.__module__ for kind in jobs.registry)) if app is None else []
        self._idle: asyncio.LifoQueue[Process | Exception] = asyncio.LifoQueue()
        """Children without an attempt; for each attempt that waits for one that could not be started, the error."""
        self._all: set[Process] = set()
        self._waiting = 0
        """How many attempts wait for a child."""
        self._starting: set[asyncio.Task[Process | Exception]] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self) -> None:
        """Start the first one, if any handler needs it.

        Raises: IsolationError when it cannot be started, or cannot import the application.
        """
        if self._needed:
            if isinstance(child := await self._started(), Exception):
                raise child
            self._idle.put_nowait(child)

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
        Raises: the exception of the handler, as `messages.result_of`; ProcessDiedError, MemoryLimitError; IsolationError
        when no child can be started.
        """
        request = of_job(job, blockers, worker_id=self._worker_id, place=job_type.place)
        child = self._warm(job_type.memory_limit)
        if child is not None and job.timeout is not None:
            begin(job.timeout)
        elif child is None:
            child = await self._waited(job.timeout, extend)
        try:
            answer = await child.run(request, job, context, memory_limit=job_type.memory_limit)
        except asyncio.CancelledError:
            await child.stop(context.cancel_reason or CancelReason.SHUTDOWN, self._options.cancel_timeout)
            raise
        finally:
            self._give_back(child)
        return result_of(answer, job, self._model)

    async def close(self) -> None:
        """Close all of them, the idle ones gracefully."""
        self._closing = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(child.close() for child in self._all), *self._retiring, return_exceptions=True)

    def _warm(self, memory_limit: int | None) -> Process | None:
        while not self._idle.empty():
            child = self._idle.get_nowait()  # the last one used: what the others hold may be swapped out
            if isinstance(child, Exception):  # the attempt that waited for it is gone
                continue
            # What earlier attempts have left behind is not to count against this one.
            is_full = memory_limit is not None and child.ran > 0 and child.resident() > memory_limit / 2
            if child.is_free and not is_full:
                return child
            self._retire(child)
        return None

    async def _waited(self, timeout: timedelta | None, extend: Callable[[timedelta], Awaitable[None]]) -> Process:
        """Wait for a child: one that an attempt gives back, or a new one, whichever comes first."""
        child: Process | Exception | None = None
        self._waiting += 1
        self._start_more()
        try:
            while child is None:
                if timeout is not None:
                    await extend(timeout + _LEASE_OF_WAITING)
                with suppress(TimeoutError):
                    child = await asyncio.wait_for(self._idle.get(), _LEASE_OF_WAITING.total_seconds())
        finally:
            self._waiting -= 1
        if isinstance(child, Exception):
            raise child
        try:
            if timeout is not None:
                await extend(timeout)
                await asyncio.sleep(0)  # it cancels this task, which is not felt before it waits
        except BaseException:
            self._give_back(child)
            raise
        return child

    def _start_more(self) -> None:
        """Start as many as are waited for, a few at a time: each keeps a processor busy for a second."""
        wanted = self._waiting - self._idle.qsize() if self._waiting else int(self._needed and self._idle.empty())
        while len(self._starting) < min(wanted, _MOST_STARTING) and not self._closing:
            starting = asyncio.create_task(self._started(), name="sa_jobqueue child's start")
            self._starting.add(starting)
            starting.add_done_callback(self._has_started)

    def _has_started(self, starting: asyncio.Task[Process | Exception]) -> None:
        self._starting.discard(starting)
        if starting.cancelled():
            return
        if isinstance(child := starting.result(), Process) or self._waiting:
            self._idle.put_nowait(child)
        if self._waiting:
            self._start_more()

    def _give_back(self, child: Process) -> None:
        if child.is_free and child.ran < self._options.max_jobs_per_child:
            self._idle.put_nowait(child)
            return
        self._retire(child)
        self._start_more()

    def _retire(self, child: Process) -> None:
        closing = asyncio.create_task(child.close(), name="sa_jobqueue child's end")
        self._retiring.add(closing)
        closing.add_done_callback(self._retiring.discard)

    async def _started(self) -> Process | Exception:
        """Start one; return it, or the error with which it failed."""
        try:
            child = await Process.start(app=self._app, modules=self._modules)
        except Exception as error:
            return error
        self._all.add(child)
        child.ended.add_done_callback(lambda _: self._all.discard(child))
        return child
