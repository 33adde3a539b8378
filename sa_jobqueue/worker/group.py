"""`WorkerGroup`: one process that runs jobs of several databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.timeouts import cancelled, waited
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import ComponentFailed, EventBus
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.worker.background.vitals import Phase, Vitals
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.run.slots import Slots
from sa_jobqueue.worker.worker import Worker

_RESTART: Final = Backoff(base=timedelta(seconds=1), cap=timedelta(minutes=1))
"""Delays before a worker whose database cannot be used is started again."""


class WorkerGroup:
    """Runs one `Worker` for each of several databases, in one process and on one event loop.

    - `engines`: one for each database, which has the same tables; a mapping gives each a weight, 1 by default.
    - `options`: those of every worker, except that `concurrency` is the maximum number of jobs of all of them together.
      While all slots are taken, those that become free go to the database that runs the fewest jobs per weight.

    `jobs`, `events`, `connect_args` and `app`: as of a `Worker`. Each database has its own queues, limits and schedules, and
    a worker with its own id. A database that cannot be used is tried again; the others run on. Its other members are
    those of `Worker`.

    Raises: InvalidOptionError naming the parameter.
    """

    def __init__(
        self,
        jobs: JobQueue[Any],
        engines: Sequence[Engine | AsyncEngine] | Mapping[Any, int],
        *,
        options: WorkerOptions = WorkerOptions(),
        events: EventBus | None = None,
        connect_args: Mapping[str, Any] | None = None,
        app: str | None = None,
    ) -> None:
        weights: dict[Any, int] = dict(engines) if isinstance(engines, Mapping) else dict.fromkeys(engines, 1)
        if not weights:
            raise InvalidOptionError("engines", "must have at least one engine")
        for weight in weights.values():
            if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= 100:
                raise InvalidOptionError("engines", f"must have weights from 1 to 100, got {weight!r}")
        self.events = events or EventBus()
        slots = Slots(options.concurrency)
        self.workers: list[Worker] = []
        """The workers, in the order of the engines."""
        for engine, weight in weights.items():
            worker = Worker(jobs, engine, options=options, events=self.events, connect_args=connect_args, app=app)
            worker.share(slots, weight)
            self.workers.append(worker)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._stop_called = False

    @property
    def id(self) -> str:
        """The ids of the workers, separated by spaces."""
        return " ".join(worker.id for worker in self.workers)

    @property
    def wants_successor(self) -> bool:
        """Whether it stopped because the process used more than `max_memory` and should be replaced by a new one."""
        return any(worker.wants_successor for worker in self.workers)

    @property
    def has_stuck_threads(self) -> bool:
        """Whether threads are still occupied by handlers that did not stop."""
        return any(worker.has_stuck_threads for worker in self.workers)

    @property
    def running(self) -> int:
        """The number of attempts that are running now. Thread-safe."""
        return sum(worker.running for worker in self.workers)

    @property
    def running_by_type(self) -> dict[str, int]:
        """The number of attempts that are running now by job type. Thread-safe."""
        count_by_type: dict[str, int] = {}
        for worker in self.workers:
            for name, count in worker.running_by_type.items():
                count_by_type[name] = count_by_type.get(name, 0) + count
        return count_by_type

    @property
    def vitals(self) -> Vitals:
        """The parts of all workers. It is ready if one of them is: one database cannot end the process. Thread-safe."""
        worker_vitals = [worker.vitals for worker in self.workers]
        best = max(worker_vitals, key=lambda vitals: (not vitals.unready, vitals.phase is Phase.RUNNING))
        return Vitals(
            phase=best.phase,
            parts=tuple(part for vitals in worker_vitals for part in vitals.parts),
            database_silent=best.database_silent,
            database_error=best.database_error,
            is_leased=best.is_leased,
            is_listening=best.is_listening,
        )

    def stop(self, *, now: bool = False) -> None:
        """Stop all workers, see `Worker.stop`. Thread-safe."""
        self._stop_called = True
        for worker in self.workers:
            worker.stop(now=now)
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended and closed its loop
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Run all workers until `stop` is called, or each of them was asked to drain. Errors of databases are events."""
        await self._run(self._keep_running)

    async def run_until_idle(self) -> None:
        """Run each worker until its database has nothing left to do, see `Worker.run_until_idle`.

        Raises: as that, the first error, after all others have ended.
        """
        await self._run(lambda worker: worker.run_until_idle())

    async def _run(self, run: Callable[[Worker], Awaitable[None]]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_called:
            self._stopping.set()
        tasks = [asyncio.ensure_future(run(worker)) for worker in self.workers]
        try:
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await cancelled(*tasks)
            self._loop = None
            self._stop_called = False
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def _keep_running(self, worker: Worker) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await worker.run()
            except Exception as error:  # of one database: the others run on
                failures += 1
                delay = _RESTART(failures, error)
                self.events.emit(ComponentFailed(f"worker of {worker.database}", error, delay))
                await waited(self._stopping, delay.total_seconds())
            else:
                if worker.wants_successor:
                    self.stop()
                return
