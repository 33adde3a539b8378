"""Crash tests: whether a handler is idempotent, tried by a crash at each statement, step, commit and outside call."""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from itertools import zip_longest
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Engine, NullPool, create_engine, event, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.errors import InvalidOptionError, JobQueueError
from sa_jobqueue.operations.blockers import unblock_all
from sa_jobqueue.operations.completions import finish_parameters
from sa_jobqueue.operations.workers import rescue_from
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import describe
from sa_jobqueue.registry.options import HandlerOptions
from sa_jobqueue.statements import completions
from sa_jobqueue.statements.blockers import chains_to_unblock
from sa_jobqueue.testing._crash_points import Fork, Message, Points, Send, all_engines, prune_nothing, redirect
from sa_jobqueue.testing._dispatch import run
from sa_jobqueue.testing.clock import move
from sa_jobqueue.testing.databases import create_database, database_name, drop_database, wait_for_sessions_to_end
from sa_jobqueue.testing.making import clear
from sa_jobqueue.types import JobStatus
from sa_jobqueue.worker import Worker, WorkerOptions

_MOST_RUNS: Final = 100
"""Runs of a worker in a child: one, and another for each time that a job sleeps or is retried."""
_TABLES: Final = """
SELECT nspname, relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname <> 'information_schema' AND NOT starts_with(nspname, 'pg_')
"""
_warm: Final[set[Any]] = set()
"""Models whose worker has run in this process."""


class CrashTestError(JobQueueError):
    """A crash test cannot be run, or the handler fails without a crash. `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no crash test is possible: {reason}")


class CallRecorder:
    """Counts the calls that a handler makes to other systems, in every process of a crash test."""

    def __init__(self) -> None:
        self._points: Points | None = None

    def wrap(self, name: str, fn: Callable[..., Any], *, key: Callable[..., object] | None = None) -> Callable[..., Any]:
        """Return a function that calls `fn`, plain or async, and counts the calls; put it where the handler calls `fn`.

        `name`: of the call in the report. `key`: a function of the call's arguments that returns its idempotency key; calls
        with the same key count once, as for a receiver that ignores repetitions.
        """

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if (points := self._points) is None:
                return fn(*args, **kwargs)

            def count() -> None:
                points.send("call", (name, None if key is None else str(key(*args, **kwargs))))

            return points.around("call", name, partial(fn, *args, **kwargs), count)

        return call

    def call(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` with `args` and `kwargs` and count the call, as a function of `wrap` does; return its result.

        `name`: as in `wrap`.
        """
        return self.wrap(name, fn)(*args, **kwargs)


@dataclass(frozen=True)
class Crash:
    """A crash at one point, and the problems after the attempts that followed."""

    point: str
    """The point, such as "before commit 1"."""
    reached: bool
    """Whether the handler passed that point; if it did not, nothing was tried."""
    problems: tuple[str, ...] = ()
    """Effects that happened twice or are missing, and how the check failed; empty if all is as without a crash."""

    @property
    def passed(self) -> bool:
        """Whether the point was reached and there are no problems."""
        return self.reached and not self.problems


@dataclass(frozen=True, repr=False)
class CrashReport:
    """The crashes of a `crash_test`. Its text is a table of the crashes that did not pass."""

    type_name: str
    """The handler's job type."""
    crashes: tuple[Crash, ...]
    """One for each point, in the order of a run without a crash."""

    @property
    def failed(self) -> tuple[Crash, ...]:
        """The crashes that did not pass."""
        return tuple(crash for crash in self.crashes if not crash.passed)

    @property
    def passed(self) -> bool:
        """Whether all passed."""
        return not self.failed

    def __str__(self) -> str:
        total = len(self.crashes)
        lines = [f"crash test of {self.type_name!r}: {total - len(self.failed)} of {total} points passed"]
        width = max((len(crash.point) for crash in self.failed), default=0)
        for crash in self.failed:
            problems = crash.problems if crash.reached else ("not reached",)
            lines += [
                f"  {point:{width}}  {problem}" for point, problem in zip_longest([crash.point], problems, fillvalue="")
            ]
        return "\n".join(lines)

    __repr__ = __str__  # pytest's text of `assert report.passed, report`


class CrashTest:
    """The points at which a handler can crash. `crash_test` tries them all; with this class, a suite has a test for each.

    Use it as a context manager. The arguments and errors are those of `crash_test`.
    """

    points: tuple[str, ...]
    """The points, in the order of a run without a crash."""

    def __init__(
        self,
        handler: Handler[Any, Any, Any],
        payload: Any = None,
        *,
        session_factory: sessionmaker[Any] | async_sessionmaker[Any],
        check: Callable[[Any], object] | None = None,
        recorder: CallRecorder | None = None,
        jobs: JobQueue[Any] | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(os, "fork"):
            raise CrashTestError("Windows cannot fork a process: run it on Linux or macOS")
        engine = session_factory.kw.get("bind")
        if not isinstance(engine, Engine | AsyncEngine):
            raise InvalidOptionError("session_factory", "must be a sessionmaker or an async_sessionmaker of an engine")
        self._jobs = _queue_of(handler) if jobs is None else jobs
        if isolated := [kind.place for kind in self._jobs.registry if kind.isolated]:
            raise InvalidOptionError("jobs", f"has handlers in other processes, where no crash can be staged: {isolated}")
        self._handler, self._factory, self._check, self._recorder = handler, session_factory, check, recorder
        self._engine, self._model = engine, handler.model
        url = for_psycopg(engine.url, option="session_factory")
        self._url, self._copy_url = url.render_as_string(hide_password=False), ""
        self._sessions = sessionmaker(create_engine(url, poolclass=NullPool))
        event.listen(self._sessions.kw["bind"], "do_connect", self._connect_to_copy)
        job = handler.job(payload, **options)
        self._engines = all_engines()
        # A database that sessions are connected to cannot be copied.
        run(engine.dispose()) if isinstance(engine, AsyncEngine) else engine.dispose()
        self._is_warm = False
        self._base = self._copy(self._url)
        try:
            if failure := self._in_child(self._base, lambda send: self._enqueue(job)):
                raise CrashTestError(f"the job cannot be enqueued: {failure[0][1]}")
            messages = self._try(None)
            self._expected = _End.of(messages)
            self.points = tuple(content for kind, content in messages if kind == "point")
            if self._expected.failures:
                raise CrashTestError(f"without a crash {'; '.join(self._expected.failures)}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the copy of the database."""
        drop_database(self._base)

    def crash(self, point: str) -> Crash:
        """Crash once at `point`, one of `points`; run the attempts that follow, and return the problems."""
        if not self._is_warm:
            with self._copied(self._base) as self._copy_url:
                self._warm_up()
        messages = self._try(self.points.index(point) + 1)
        died = [content for kind, content in messages if kind == "died"]
        end = _End.of(messages)
        if not died:
            return Crash(point, reached=False)
        problems = end.problems(self._expected, with_rows=self._check is None)
        return Crash(died[0], reached=True, problems=problems)

    def _copy(self, url: str) -> str:
        try:
            return create_database(url, database_name(url))
        except (OperationalError, ValueError) as error:
            raise CrashTestError(
                f"its database cannot be copied, close all sessions that are connected to it: {summary(error)}"
            ) from error

    def crash_everywhere(self) -> CrashReport:
        """Crash at each point, in as many processes at a time as there are CPUs, at most 4; return the report.

        Raises: CrashTestError if one of these processes fails.
        """

        def crash_at(points: Sequence[str], send: Send) -> None:
            for point in points:
                crash = self.crash(point)
                send("crash", (point, (crash.point, crash.reached, crash.problems)))

        count = min(os.cpu_count() or 1, 4)
        parts = [Fork(partial(crash_at, self.points[index::count]), self._engines) for index in range(count)]
        messages = [message for part in parts for message in part.messages(None)]
        if errors := [content for kind, content in messages if kind == "error"]:
            raise CrashTestError(f"the process failed: {errors[0]}")
        crashes = {point: Crash(died_at, reached, tuple(problems)) for _, (point, (died_at, reached, problems)) in messages}
        return CrashReport(self._handler.name, tuple(crashes[point] for point in self.points))

    @contextmanager
    def _copied(self, url: str) -> Iterator[str]:
        copy = self._copy(url)
        try:
            yield copy
        finally:
            drop_database(copy)

    def _connect_to_copy(self, dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
        parameters["dbname"] = database_name(self._copy_url)

    def _in_child(self, url: str, work: Callable[[Send], object]) -> list[Message]:
        self._copy_url = url

        def redirected(send: Send) -> None:
            redirect(database_name(self._url), database_name(url))
            work(send)

        messages = Fork(redirected, self._engines).messages()
        wait_for_sessions_to_end(url)
        return messages

    def _warm_up(self) -> None:
        """Compile the statements of a worker in this process: each child inherits them, which saves half of its time."""
        self._is_warm = True
        handler: Handler[Any, Any, Any] = Handler(describe(lambda: None, HandlerOptions("warm_up")), self._model)
        with self._sessions.begin() as session:
            clear(session, model=self._model)
            rescue_from(session, "warm_up", model=self._model)
            nothing = finish_parameters([], worker_id="warm_up", model=self._model)
            session.execute(completions.finish(self._model), nothing)
            session.add(handler.job(None))
            move(session, timedelta(minutes=1), self._model)
            _state_of(session, self._model)
        if self._model in _warm:
            return
        _warm.add(self._model)
        engine = create_engine(self._copy_url)
        try:
            run(Worker(_queue_of(handler), engine, options=WorkerOptions(concurrency=1, listen=False)).run_until_idle())
        finally:
            engine.dispose()

    def _enqueue(self, job: Any) -> None:
        with self._sessions.begin() as session:
            session.add(job)

    def _try(self, crash_at: int | None) -> list[Message]:
        """Run the job in a copy of the database until it crashes, then its next attempts; return the messages of both."""
        with self._copied(self._base) as url:
            messages = self._in_child(url, partial(self._work, crash_at))
            if messages[-1][0] == "died":
                messages += self._in_child(url, partial(self._work, 0))
            return messages

    def _work(self, crash_at: int | None, send: Send) -> None:
        points = Points(send, crash_at)
        if crash_at != 0:
            points.install()
        prune_nothing()
        if self._recorder is not None:
            self._recorder._points = points
        send("end", asyncio.run(self._run_jobs(is_after_crash=crash_at == 0)))

    async def _run_jobs(self, *, is_after_crash: bool) -> dict[str, Any]:
        """Run the jobs that are due, then those due later, as if that time had passed; return the state at the end."""
        model, jobs = self._model, self._jobs
        # Slots for a whole batch; jobs that ran side by side would pass their points in another order each time.
        concurrency = max([1, *(kind.batch.max_size for kind in jobs.registry if kind.batch is not None)])
        options = WorkerOptions(concurrency=concurrency, listen=False)
        is_async = isinstance(self._factory, async_sessionmaker)
        factories: dict[str, Any] = {"async_session_factory" if is_async else "session_factory": self._factory}
        with self._sessions() as session:
            if is_after_crash:
                for worker_id in session.scalars(
                    select(model.leased_by).where(model.leased_by.is_not(None)).distinct()
                ).all():
                    rescue_from(session, worker_id, model=model)
                session.commit()
            due_in = select(func.min(model.scheduled_at) - func.now()).where(
                model.status == JobStatus.PENDING, model.type_name.in_(jobs.registry.names)
            )
            for _ in range(_MOST_RUNS):
                # A worker may have died before it passed the end of a chain on.
                unblock_all(session.connection(), model, session.scalars(chains_to_unblock(model), {"limit": 1000}).all())
                if (wait := session.scalars(due_in).one()) is None:
                    break
                if wait > timedelta(0):
                    move(session, wait, model)
                session.commit()
                await Worker(jobs, self._engine, options=options, **factories).run_until_idle()
            else:
                raise CrashTestError(f"jobs are still due after {_MOST_RUNS} runs: does a handler snooze without end?")
            session.rollback()
            state = _state_of(session, model)
        if failure := await self._failure_of_check():
            state["failures"].append(f"check: {failure}")
        return state

    async def _failure_of_check(self) -> str | None:
        if self._check is None:
            return None
        try:
            if isinstance(self._factory, async_sessionmaker):
                async with self._factory() as session:
                    if inspect.iscoroutinefunction(self._check):
                        await self._check(session)
                    else:
                        await session.run_sync(self._check)
            else:
                with self._factory() as session:
                    self._check(session)
        except Exception as error:
            words = str(error).strip() or traceback.extract_tb(error.__traceback__)[-1].line or type(error).__name__
            return words.splitlines()[0]
        return None


def crash_test(
    handler: Handler[Any, Any, Any],
    payload: Any = None,
    *,
    session_factory: sessionmaker[Any] | async_sessionmaker[Any],
    check: Callable[[Any], object] | None = None,
    recorder: CallRecorder | None = None,
    jobs: JobQueue[Any] | None = None,
    **options: Any,
) -> CrashReport:
    """Run a job, die as a process dies at each point of its attempt, let later attempts finish it, and report problems.

    The points are before and after each statement, step, commit and call of the recorder; "after commit" is when the server
    has committed and the worker does not know it. Each crash has a copy of the database, with its rows and its pending
    jobs, and two forked processes: one that dies at the point, and one that works until no job is due, or due later.
    `handler`, `payload`, `options`: of the job, as in `Handler.job`. `session_factory`: makes the sessions of handlers; the
    database of its engine is copied, and is not changed.
    `check`: a function of a session that raises an error if the end is wrong. Without it, each table of the application
    must have as many rows as without a crash. With or without it, so must the calls of the recorder be as many, and the
    jobs of each type and status.
    `recorder`: counts calls to other systems. `jobs`: the registry, if jobs of other handlers are to run too.
    Obliges: the role may create databases, and no session is connected to this one; not a connection pooler's URL.
    Raises: CrashTestError on Windows, if the database cannot be copied, and if the handler fails without a crash;
    InvalidOptionError; as `Handler.job`.
    """
    with CrashTest(
        handler, payload, session_factory=session_factory, check=check, recorder=recorder, jobs=jobs, **options
    ) as test:
        return test.crash_everywhere()


@dataclass(frozen=True)
class _End:
    """The state after all attempts: numbers of jobs by type and status, of rows by table, and of calls by name."""

    jobs: Mapping[str, int]
    rows: Mapping[str, int]
    calls: Mapping[str, int]
    failures: Sequence[str]
    """How the check failed, and the errors of dead jobs."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> _End:
        """Return the end that a run has sent. Raises: CrashTestError if its process failed."""
        kind, content = messages[-1]
        if kind != "end":
            raise CrashTestError(f"the process failed: {content}")
        calls = [tuple(call) for kind, call in messages if kind == "call"]
        unrepeated = [name for name, key in calls if key is None] + [name for name, key in set(calls) if key is not None]
        return cls(**content, calls=Counter(unrepeated))

    def problems(self, expected: _End, *, with_rows: bool) -> tuple[str, ...]:
        """Return the differences from the end without a crash; of rows only beside other problems, or on request."""
        problems = [f"{name}: {counts}" for name, counts in _differences(self.calls, expected.calls, _times)]
        problems += [f"jobs {name}: {counts}" for name, counts in _differences(self.jobs, expected.jobs)]
        problems += self.failures
        if with_rows or problems:
            problems += [f"rows in {name}: {counts}" for name, counts in _differences(self.rows, expected.rows)]
        return tuple(problems)


def _differences(
    actual: Mapping[str, int], expected: Mapping[str, int], format_count: Callable[[int], str] = str
) -> Iterator[tuple[str, str]]:
    for name in sorted(actual.keys() | expected.keys()):
        count, usual_count = actual.get(name, 0), expected.get(name, 0)
        if count != usual_count:
            yield name, f"{format_count(count)}, {format_count(usual_count)} without a crash"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _state_of(session: Session, model: Any) -> dict[str, Any]:
    """Return the jobs and rows of the database, and why jobs died."""
    by_state = session.execute(select(model.type_name, model.status, func.count()).group_by(model.type_name, model.status))
    errors = session.scalars(select(model.last_error).where(model.status == JobStatus.DEAD)).all()
    kinds = [kind for base in model.__mro__ for kind in (base, *vars(base).values()) if hasattr(kind, "__table__")]
    queue_tables = {kind.__table__.name for kind in kinds}
    names = [row for row in session.execute(text(_TABLES)) if row.relname not in queue_tables]
    quote = session.connection().dialect.identifier_preparer.quote
    rows = {
        relname if nspname == "public" else f"{nspname}.{relname}": session.scalar(
            text(f"SELECT count(*) FROM {quote(nspname)}.{quote(relname)}")
        )
        for nspname, relname in names
    }
    return {
        "jobs": {f"{type_name} {status}": count for type_name, status, count in by_state},
        "rows": rows,
        "failures": [f"a job died of {error['type']}: {error['message']}" for error in errors if error],
    }


def _queue_of(handler: Handler[Any, Any, Any]) -> JobQueue[Any]:
    jobs = JobQueue(handler.model)
    jobs.registry.add(handler.job_type)
    return jobs
