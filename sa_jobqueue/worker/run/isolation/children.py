"""The child processes of a worker: kept warm, assigned to one attempt at a time, replaced when they end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from sa_jobqueue.context import AttemptContext, Blockers
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.memory import IS_MEASURABLE
from sa_jobqueue.worker.run.isolation.messages import of_attempt, result_of
from sa_jobqueue.worker.run.isolation.process import Process
from sa_jobqueue.worker.shared import Part, Shared

Extend: TypeAlias = Callable[[timedelta], Awaitable[None]]

_LEASE_OF_WAITING: Final = timedelta(seconds=60)
"""How much an attempt's lease is extended, repeatedly, while it waits for a child."""
_MOST_STARTING: Final = max(1, (os.cpu_count() or 1) // 2)
"""Maximum number of children that start together. More would take as long in total, and longer each."""


def app_of(jobs: JobQueue[Any], app: str | None) -> str | None:
    """Return the name by which children import `jobs`: the one given, or that of a module's variable; None if none needs it.

    Raises: InvalidOptionError if there is no such variable, or for a memory limit where it cannot be measured.
    """
    isolated = [kind for kind in jobs.registry if kind.isolated]
    for kind in isolated:
        if kind.memory_limit is not None and not IS_MEASURABLE:
            raise InvalidOptionError("memory_limit", f"of {kind.place} is supported on Linux only; leave it unset")
    if app is not None or not isolated:
        return app
    for module in dict.fromkeys([*_modules(jobs), *sys.modules]):
        for name, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if value is jobs and module != "__main__":
                return f"{module}:{name}"
    raise InvalidOptionError(
        "app",
        f"the isolated handler {isolated[0].place} runs in child processes, which import the JobQueue by its name: assign "
        'it to a variable of a module other than the program itself, or name one that has the handler: app="shop.jobs:jobs"',
    )


def _modules(jobs: JobQueue[Any]) -> list[str]:
    # In the order of declaration, by whose first import the application itself came up.
    return list(dict.fromkeys(kind.func.__module__ for kind in jobs.registry))


class Children(Part):
    """Starts children as attempts need them, at most one per slot, and keeps them for later attempts.

    One is started with the worker, so that an import error of the application is reported before anything is claimed. A
    crash of this process ends all.
    """

    def __init__(self, shared: Shared, *, app: str | None) -> None:
        super().__init__(shared)
        jobs, options = shared.jobs, shared.options
        # One is kept warm where their own queue is served; jobs that come by another one wait for theirs to start.
        self._needed = any(kind.isolated and kind.queue in options.limits for kind in jobs.registry)
        # With the name of a registry come all of its handlers; one that was not named may have some declared elsewhere.
        self._app, self._modules = (app, []) if app is not None else (app_of(jobs, app), _modules(jobs))
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._starting = asyncio.Semaphore(_MOST_STARTING)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start the first one, if any handler needs it.

        Raises: IsolationError when it cannot be started, or cannot import the application.
        """
        if self._needed:
            self._idle.append(await self._started(None))

    async def call(
        self, context: AttemptContext, job_type: JobType, blockers: Blockers[Any] | None, extend: Extend
    ) -> str | JobMixin[Any]:
        """Run an attempt in a child; return its output as JSON text, or the next job of its chain.

        `extend`: starts the attempt's time again and moves its lease, or cancels this where it is lost: for one that has
        to wait for a child, whose lease would run out meanwhile, and which must not begin when it has.
        When this is cancelled, it returns after `cancel_timeout` at most, and nothing of the attempt is left.
        Raises: the exception of the handler, as `messages.result_of`; ProcessDiedError, MemoryLimitError; IsolationError
        when no child can be started.
        """
        request, limit = of_attempt(context, blockers), job_type.memory_limit
        child = self._warm(limit) or await self._new(limit, context.job.timeout, extend)
        try:
            answer = await child.run(request, context, memory_limit=limit)
        except asyncio.CancelledError:
            await child.stop(context.cancel_reason or CancelReason.SHUTDOWN, self._options.cancel_timeout)
            raise
        finally:
            self._give_back(child)
        return result_of(answer, context.job, self._model)

    async def close(self) -> None:
        """Close all of them, the idle ones gracefully."""
        await asyncio.gather(*(child.close() for child in self._all), *self._tasks, return_exceptions=True)

    def _warm(self, memory_limit: int | None) -> Process | None:
        while self._idle:
            child = self._idle.pop()  # the last one used: the memory of others may be swapped out
            # What earlier attempts have left behind is not to count against this one.
            is_full = memory_limit is not None and child.ran > 0 and child.resident() > memory_limit / 2
            if child.is_free and not is_full:
                return child
            self._retire(child)
        return None

    async def _new(self, memory_limit: int | None, timeout: timedelta | None, extend: Extend) -> Process:
        """Start a child for an attempt."""
        starting = asyncio.create_task(self._started(memory_limit), name="sa_jobqueue child's start")
        self._keep(starting)
        try:
            while not starting.done():
                if timeout is not None:
                    await extend(timeout + _LEASE_OF_WAITING)
                await asyncio.wait({starting}, timeout=_LEASE_OF_WAITING.total_seconds())
            if timeout is not None:
                await extend(timeout)
                await asyncio.sleep(0)  # it cancels this task, which is not felt before it waits
            return starting.result()
        except BaseException:
            starting.cancel()
            starting.add_done_callback(self._leave)
            raise

    def _leave(self, starting: asyncio.Task[Process]) -> None:
        """Keep a child whose attempt has been stopped for a later one."""
        if not starting.cancelled() and starting.exception() is None:
            self._give_back(starting.result())

    async def _started(self, memory_limit: int | None) -> Process:
        """Start one when its turn comes: each keeps a processor busy for a second. One that is given back first will do."""
        async with self._starting:
            if (child := self._warm(memory_limit)) is None:
                child = await Process.start(app=self._app, modules=self._modules)
                self._all.add(child)
                child.ended.add_done_callback(lambda _: self._all.discard(child))
        return child

    def _give_back(self, child: Process) -> None:
        if child.is_free and child.ran < self._options.max_jobs_per_child:
            self._idle.append(child)
        else:
            self._retire(child)

    def _retire(self, child: Process) -> None:
        self._keep(asyncio.create_task(child.close(), name="sa_jobqueue child's end"))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
