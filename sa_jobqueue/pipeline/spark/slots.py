"""One slot: a worker inside a Spark task, which ends after its idle time or maximum runtime, or when drained.

The worker runs an event loop in its own thread; the task's thread regularly yields its progress, which shows Spark that
the task is alive. An error of a handler only ends its attempt; an error of the worker itself ends the task, which Spark
then retries.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import create_engine

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import (
    AttemptLost,
    DrainRequested,
    Event,
    JobCancelled,
    JobCompleted,
    JobDied,
    JobRescheduled,
    JobStarted,
    WorkerStarted,
)
from sa_jobqueue.pipeline.spark.connections import load_object, url_of
from sa_jobqueue.pipeline.spark.options import Options
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.types import AttemptOutcome
from sa_jobqueue.worker import Worker, WorkerOptions

REPORT_SECONDS: Final = 10.0
"""Seconds between two rows of a slot: well below any `idleTimeoutSeconds` after which Spark may kill silent tasks."""
_CHECK_SECONDS: Final = 0.25
_CLOSE_SECONDS: Final = 15.0
"""Maximum time for a worker to release its jobs when Spark closes the task in an orderly way."""

_FAILURES: Final = {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST}
ROWS: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("worker_id", pa.string()),
        ("completed", pa.int64()),
        ("failed", pa.int64()),
        ("lost", pa.int64()),
        ("seconds", pa.float64()),
        ("ended", pa.string()),
    ]
)


class SlotEnd(StrEnum):
    """Reason why a slot's worker stopped."""

    IDLE = "idle"
    MAX_RUNTIME = "max_runtime"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """Settings of a task, sent to the executors, including the URL unless they have it in their environment."""

    app: str
    database: Options
    """Connection options; their repr contains no secret."""
    options: WorkerOptions
    max_runtime: timedelta
    idle_exit: timedelta


def load_jobs(app: str) -> JobQueue[Any]:
    """Import the application's registry. Raises: InvalidOptionError if it does not exist."""
    found = load_object(app)
    if not isinstance(found, JobQueue):
        raise InvalidOptionError("app", f"{app!r} is a {type(found).__name__}, not a JobQueue")
    return found


def work(settings: SlotSettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the workers of the slots in the first column one by one; each yields rows of `ROWS`, the last with `ended`.

    Raises: errors that keep a worker from starting. A worker that has started survives outages of the database.
    """
    for batch in batches:
        for slot in batch.column(0).to_pylist():
            yield from _work(settings, slot)


def _work(settings: SlotSettings, slot: int) -> Iterator[pa.RecordBatch]:
    jobs = load_jobs(settings.app)
    options = _named(settings.options, f"{settings.options.name}.{slot}")
    # One session per running job; the pool is discarded with the task, because Spark reuses the process.
    engine = create_engine(url_of(settings.database), pool_size=options.concurrency, max_overflow=0)
    run = SlotRun(Worker(jobs, engine, options=options, app=settings.app), slot, settings)
    run.start()
    try:
        while not run.ended.wait(REPORT_SECONDS):
            yield run.row()
    finally:
        run.close()
        engine.dispose()
    run.check()
    yield run.row()


def _named(options: WorkerOptions, name: str) -> WorkerOptions:
    given = {part.name: getattr(options, part.name) for part in fields(options) if part.init}
    return replace(options, **given | {"name": name})


@dataclass(slots=True)
class SlotCounts:
    """Counts of a slot's worker, from its events."""

    completed: int = 0
    failed: int = 0
    """Attempts that ended without success: failed, timed out, dead, or cancelled by their handlers."""
    lost: int = 0
    """Attempts whose lease was lost before they ended."""
    started: int = 0

    def count(self, event: Event) -> None:
        """Count one event."""
        match event:
            case JobStarted():
                self.started += 1
            case JobCompleted():
                self.completed += 1
            case JobRescheduled(outcome=outcome) if outcome not in _FAILURES:
                pass  # snoozed or released
            case JobRescheduled() | JobDied() | JobCancelled():
                self.failed += 1
            case AttemptLost():
                self.lost += 1


class SlotRun:
    """Runs one worker in a thread, and stops it after its idle time or maximum runtime."""

    def __init__(self, worker: Worker, slot: int, settings: SlotSettings) -> None:
        self._worker = worker
        self._slot = slot
        self._settings = settings
        self._counts = SlotCounts()
        self._end = SlotEnd.IDLE
        self._seconds = 0.0
        self._closing = False
        self._is_up = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"sa_jobqueue slot {slot}", daemon=True)
        self.ended = threading.Event()
        """Set when the worker has stopped, or failed to start."""
        worker.events.subscribe(self._counts.count)
        worker.events.subscribe(self._on_event)

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def close(self) -> None:
        """Stop the worker and release its running jobs; after an ordinary end there are none."""
        self._closing = True
        self._thread.join(_CLOSE_SECONDS)

    def check(self) -> None:
        """Raise the error that made the worker fail, if it failed."""
        if self._error is not None:
            raise self._error

    def row(self) -> pa.RecordBatch:
        """Return the progress; `ended` is null while the worker runs."""
        counts = asdict(self._counts)
        del counts["started"]
        ended = self._end.value if self.ended.is_set() else None
        row = {"slot": self._slot, "worker_id": self._worker.id, **counts, "seconds": self._seconds, "ended": ended}
        return pa.RecordBatch.from_pylist([row], schema=ROWS)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, DrainRequested):
            self._end = SlotEnd.DRAINED
        elif isinstance(event, WorkerStarted):
            self._is_up = True

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # raised again in the task's thread
            self._error = error
        finally:
            self.ended.set()

    async def _watch(self) -> None:
        """Run the worker until it has ended; regularly check whether to stop it."""
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(self._worker.run())
        began = busy_at = loop.time()
        seen, stopping = 0, False
        interval = min(_CHECK_SECONDS, self._settings.idle_exit.total_seconds() / 2)
        while not running.done():
            await asyncio.wait({running}, timeout=interval)
            now = loop.time()
            self._seconds = now - began
            # A worker that has not started yet is not idle: on a busy machine, starting takes a while.
            if not self._is_up or self._worker.running or self._counts.started != seen:
                busy_at, seen = now, self._counts.started
            if self._closing:
                self._worker.stop(now=True)
            elif not stopping and now - busy_at >= self._settings.idle_exit.total_seconds():
                stopping = self._stop(SlotEnd.IDLE)
            elif not stopping and self._seconds >= self._settings.max_runtime.total_seconds():
                stopping = self._stop(SlotEnd.MAX_RUNTIME)
        await running

    def _stop(self, end: SlotEnd) -> bool:
        if self._end is not SlotEnd.DRAINED:
            self._end = end
        self._worker.stop()
        return True
