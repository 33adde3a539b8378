"""One slot: a worker inside a Spark task, which ends after its idle time or maximum runtime, or when drained.

The worker runs an event loop in its own thread; the task's thread decides when to stop it, and regularly yields its
progress, which shows Spark that the task is alive. An error of a handler only ends its attempt; an error of the worker
itself ends the task, which Spark then retries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, fields, replace
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
ROWS: Final = pa.schema([("completed", pa.int64()), ("failed", pa.int64()), ("lost", pa.int64()), ("ended", pa.string())])
"""Columns of the rows that a slot yields; `ended` is null while its worker runs."""


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
    loaded = load_object(app)
    if not isinstance(loaded, JobQueue):
        raise InvalidOptionError("app", f"{app!r} is a {type(loaded).__name__}, not a JobQueue")
    return loaded


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
    worker = Worker(jobs, engine, options=options, app=settings.app)
    counts = SlotCounts()
    worker.events.subscribe(counts.count)
    running = _started(worker)
    began = busy_at = shown_at = time.monotonic()
    started, end = 0, None
    interval = min(_CHECK_SECONDS, settings.idle_exit.total_seconds() / 2)
    try:
        while not wait({running}, timeout=interval).done:
            now = time.monotonic()
            # A worker that has not started yet is not idle: on a busy machine, starting takes a while.
            if not counts.is_up or worker.running or counts.started != started:
                busy_at, started = now, counts.started
            if end is None:
                if now - busy_at >= settings.idle_exit.total_seconds():
                    end = SlotEnd.IDLE
                elif now - began >= settings.max_runtime.total_seconds():
                    end = SlotEnd.MAX_RUNTIME
                if end is not None:
                    worker.stop()
            if now - shown_at >= REPORT_SECONDS:
                shown_at = now
                yield _row(counts, None)
    finally:
        # After an ordinary end, there is nothing to stop.
        worker.stop(now=True)
        wait({running}, timeout=_CLOSE_SECONDS)
        engine.dispose()
    running.result()
    yield _row(counts, SlotEnd.DRAINED if counts.is_drained else end or SlotEnd.IDLE)


def _named(options: WorkerOptions, name: str) -> WorkerOptions:
    settings = {part.name: getattr(options, part.name) for part in fields(options) if part.init}
    return replace(options, **settings | {"name": name})


def _started(worker: Worker) -> Future[None]:
    """Run a worker in a thread that does not keep the process from ending; return what becomes of it."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            worker.run_sync()
            ended.set_result(None)
        except BaseException as error:  # raised again in the task's thread
            ended.set_exception(error)

    threading.Thread(target=run, name="sa_jobqueue slot", daemon=True).start()
    return ended


def _row(counts: SlotCounts, end: SlotEnd | None) -> pa.RecordBatch:
    row = {"completed": counts.completed, "failed": counts.failed, "lost": counts.lost, "ended": end and end.value}
    return pa.RecordBatch.from_pylist([row], schema=ROWS)


@dataclass(slots=True)
class SlotCounts:
    """State of a slot's worker, from its events."""

    is_up: bool = False
    is_drained: bool = False
    started: int = 0
    completed: int = 0
    failed: int = 0
    """Attempts that ended without success: failed, timed out, dead, or cancelled by their handlers."""
    lost: int = 0
    """Attempts whose lease was lost before they ended."""

    def count(self, event: Event) -> None:
        """Count one event."""
        match event:
            case WorkerStarted():
                self.is_up = True
            case DrainRequested():
                self.is_drained = True
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
