"""The handlers of the workers under test: handlers that leave evidence, and handlers that are themselves the fault.

Run by `sa-jobqueue worker tests.chaos.application:jobs`. Evidence is of two kinds: `effect` rows go through the handler's
session, and so must exist exactly once a completed job; `span` rows are written past it, on a connection that no fault of
the network touches, and show when a handler's code really ran, by the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from sqlalchemy import Column, Integer, MetaData, Table, Text, Uuid, event, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Backoff, Blockers, Continuation, JobQueue
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.worker.finish.completer import Completer
from sa_jobqueue.worker.run.executor import Executor

LINKS: Final = 3
"""Jobs in a chain of the load."""

metadata = MetaData()
effect = Table(
    "effect",
    metadata,
    Column("job_id", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("doomed", Integer, nullable=False, server_default="0"),
)

SCHEMA: Final = """
CREATE TABLE span (job_id uuid, attempt int, worker_id text, pid int, ran_in int, kind text,
                   began double precision, ended double precision, PRIMARY KEY (job_id, attempt));
CREATE TABLE enqueued (job_id uuid PRIMARY KEY, kind text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION refuse_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the commit was made to fail' USING ERRCODE = '53100'; END $$;
CREATE CONSTRAINT TRIGGER doomed_commit AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.doomed > 0) EXECUTE FUNCTION refuse_commit();
CREATE TABLE refused (job_id uuid PRIMARY KEY);
CREATE TABLE held_up (job_id uuid, beside uuid);
CREATE FUNCTION refuse_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM refused WHERE job_id = NEW.id) THEN
    RAISE EXCEPTION 'an application refuses the end of job %', NEW.id;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refused_end BEFORE UPDATE ON job
FOR EACH ROW WHEN (NEW.type_name = 'refused' AND NEW.completed_at IS NOT NULL) EXECUTE FUNCTION refuse_end();
"""
"""Beside the job tables. A row that is doomed lets its transaction fail at COMMIT, with the error of a full disk. The
end of a job that is `refused` fails the statement that writes it, until that row is deleted; `held_up` has the jobs that did
not end beside it meanwhile."""

SOON: Final = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=2))
ATTEMPTS: Final = 200
"""More than any outage here uses up: only jobs that are meant to die do."""

SETTINGS_OF_THE_QUEUE: Final = f"""
INSERT INTO job_type (type_name, rate_limit, rate_period, rate_burst) VALUES ('limited', 1000, '1 second', 1000);
INSERT INTO schedule (name, type_name, input, cron, max_attempts)
    VALUES ('each minute', 'plain', '{{}}', '* * * * *', {ATTEMPTS});
"""
"""A rate that a sane clock never reaches, and a schedule that is always soon due."""

_time, _time_ns = time.time, time.time_ns


@dataclass
class Clock:
    """The wall clock of a worker's host, in Python: the changes that an NTP daemon or an operator may make at any moment."""

    ahead: float = float(os.environ.get("CHAOS_CLOCK_SKEW", "0"))
    """Seconds by which it is wrong."""

    def time_ns(self) -> int:
        return _time_ns() + int(self.ahead * 1e9)

    def time(self) -> float:
        return _time() + self.ahead


clock = Clock()
if "CHAOS_RECORD_URL" in os.environ:
    time.time, time.time_ns = clock.time, clock.time_ns

jobs = JobQueue()


class Recorder:
    """Writes spans, one at a time, and never lets a handler fail for it: what could not be written is no evidence."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    def write(self, statement: str, *values: Any) -> bool:
        """Execute a statement; return whether that succeeded.

        If it fails, it is retried once on a new connection: a connection that a restart of the server has closed fails only
        when it is used. So the statement must be safe to execute twice.
        """
        with self._lock:
            for _ in range(2):
                try:
                    if self._connection is None or self._connection.closed:
                        self._connection = psycopg.connect(
                            self._url, autocommit=True, connect_timeout=2, application_name="chaos recorder"
                        )
                    self._connection.execute(statement.encode(), values)
                except psycopg.Error:
                    if self._connection is not None:
                        self._connection.close()
                else:
                    return True
        return False


recorder = Recorder(os.environ.get("CHAOS_RECORD_URL", ""))


@contextmanager
def span(ctx: AttemptContext) -> Iterator[bool]:
    """Record when this attempt's code started and ended; yield whether the start could be written. Blocks briefly.

    The times are of the monotonic clock, which all processes of the machine share. They are read before each write, so that
    a slow write does not change them.
    """
    key = (ctx.job.id, ctx.attempt)
    worker = os.getppid() if ctx.job.type_name == "isolated" else os.getpid()
    row = (*key, ctx.worker_id, worker, os.getpid(), ctx.job.type_name, time.monotonic())
    is_recorded = recorder.write("INSERT INTO span VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", *row)
    try:
        yield is_recorded
    finally:
        ended = time.monotonic()
        recorder.write("UPDATE span SET ended = %s WHERE (job_id, attempt) = (%s, %s)", ended, *key)


def row_of(ctx: AttemptContext, **columns: Any) -> Any:
    """Return the statement that leaves this attempt's effect."""
    return insert(effect).values(job_id=ctx.job.id, attempt=ctx.attempt, worker_id=ctx.worker_id, **columns)


@jobs.handler("plain", max_attempts=ATTEMPTS, retry=SOON)
async def plain(payload: dict[str, Any]) -> None: ...


@jobs.handler("session", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def with_session(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    session.execute(row_of(ctx))


@jobs.handler("async_session", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
async def with_async_session(payload: dict[str, Any], session: AsyncSession, ctx: AttemptContext) -> None:
    await session.execute(row_of(ctx))


@jobs.handler("slow", max_attempts=ATTEMPTS, retry=SOON)
async def slow(payload: dict[str, Any], ctx: AttemptContext) -> None:
    with span(ctx):
        await asyncio.sleep(payload["seconds"])


@jobs.handler("slow_session", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def slow_session(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    with span(ctx):
        ctx.wait_cancelled(timedelta(seconds=payload["seconds"]))
    session.execute(row_of(ctx))


@jobs.handler("link", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def link(steps: int, session: Session, ctx: AttemptContext) -> int | Continuation[int]:
    session.execute(row_of(ctx))
    return ctx.continue_with(link, steps - 1) if steps > 1 else steps


@jobs.handler("fan_in", max_attempts=ATTEMPTS, retry=SOON)
async def fan_in(ends: Blockers[list[int]]) -> int:
    return sum(ends.outputs)


@jobs.handler("fails_once", max_attempts=ATTEMPTS, retry=SOON)
async def fails_once(payload: dict[str, Any], ctx: AttemptContext) -> None:
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails")


@jobs.handler("refused", max_attempts=ATTEMPTS, retry=SOON)
async def refused(payload: dict[str, Any]) -> None: ...


@jobs.handler("limited", max_attempts=ATTEMPTS, retry=SOON)
async def limited(payload: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Shape:
    """What `typed` takes; a poison job has something else."""

    number: int


@jobs.handler("typed", max_attempts=ATTEMPTS, retry=SOON)
async def typed(payload: Shape) -> int:
    return payload.number


@jobs.handler("large", max_attempts=ATTEMPTS, retry=SOON)
async def large(payload: str) -> int:
    return len(payload)


@jobs.handler("aborts", max_attempts=2, retry=SOON)
async def aborts(payload: dict[str, Any]) -> None:
    os.abort()


@jobs.handler("steps_clock", max_attempts=ATTEMPTS, retry=SOON)
async def steps_clock(payload: dict[str, Any]) -> None:
    clock.ahead += payload["seconds"]


ISOLATED: Final = ("abort", "crash", "exit", "hog", "hang")
"""The effects of an `isolated` job on its process, on its first attempt."""


@jobs.handler(
    "isolated",
    isolation="process",
    memory_limit=256 * 2**20,
    timeout=timedelta(seconds=3),
    max_attempts=ATTEMPTS,
    retry=SOON,
)
def isolated(payload: dict[str, Any], ctx: AttemptContext) -> None:
    with span(ctx):
        match payload["fault"] if ctx.attempt == 1 else None:
            case "abort":
                os.abort()
            case "crash":
                ctypes.string_at(1)
            case "exit":
                os._exit(3)
            case "hog":
                memory = bytearray()
                while True:
                    memory += b"x" * 2**20
            case "hang":
                ctypes.PyDLL(None).sleep(3600)


@jobs.handler("blocks_loop", max_attempts=ATTEMPTS, retry=SOON)
async def blocks_loop(payload: dict[str, Any], ctx: AttemptContext) -> None:
    with span(ctx) as is_recorded:
        if is_recorded:  # otherwise the overlaps it causes would count as violations
            time.sleep(payload["seconds"])  # noqa: ASYNC251 - that is the fault


@jobs.handler("holds_gil", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def holds_gil(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    session.execute(row_of(ctx))
    with span(ctx) as is_recorded:
        if is_recorded and ctx.attempt == 1:
            # A call by PyDLL keeps the GIL, as a careless extension module does: no thread of the process runs.
            ctypes.PyDLL(None).sleep(int(payload["seconds"]))


@jobs.handler("commit_fails", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def commit_fails(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    session.execute(row_of(ctx, doomed=int(ctx.attempt == 1)))


POINTS: Final = (
    "after the claim",
    "in the handler",
    "before the handler's commit",
    "after the handler's commit",
    "before the flush",
    "after the flush",
)
"""Where a `dies` job kills its process, on its first attempt."""


def is_due_to_die(job: ClaimedJob, *points: str) -> bool:
    """Return whether this attempt is to kill its process at one of these points."""
    return job.type_name.startswith("dies") and job.attempt == 1 and job.input["point"] in points


def die() -> None:
    """End this process as the kernel's OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler("dies", max_attempts=ATTEMPTS, retry=SOON)
async def dies(payload: dict[str, Any], ctx: AttemptContext) -> None:
    if is_due_to_die(ctx.job, "in the handler"):
        die()


@jobs.handler("dies_in_session", max_attempts=ATTEMPTS, retry=SOON, timeout=timedelta(seconds=20))
def dies_in_session(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    session.execute(row_of(ctx))
    if is_due_to_die(ctx.job, "before the handler's commit"):
        # Called when the handler has returned and its completion is written: the worker's commit is under way.
        event.listen(session, "before_commit", lambda session: None if session.info.get("sa_jobqueue.held") else die())
    if is_due_to_die(ctx.job, "after the handler's commit"):
        event.listen(session, "after_commit", lambda _: die())


def _plant() -> None:
    """Let workers die between their own steps, where no handler's code runs."""
    start, write = Executor.start, Completer._write_completed

    def start_or_die(self: Executor, job: ClaimedJob) -> None:
        if is_due_to_die(job, "after the claim"):
            die()
        start(self, job)

    async def write_and_die(self: Completer, connection: Any, ends: Any) -> list[Any]:
        if any(is_due_to_die(end.job, "before the flush") for end in ends):
            die()
        written = await write(self, connection, ends)
        if any(is_due_to_die(end.job, "after the flush") for end in ends):
            die()
        return written

    Executor.start = start_or_die  # type: ignore[method-assign]
    Completer._write_completed = write_and_die  # type: ignore[method-assign]


if "CHAOS_RECORD_URL" in os.environ:  # only in a worker: who enqueues needs the job types alone
    _plant()
