"""Rehearse a job: run its handler in a transaction that is always rolled back, and report its outcome and effects.

A rehearsal runs in a forked process, which has one connection and ends without giving it back. There the attempt is run as
`sa_jobqueue.testing.drain` runs one in a session: a dead job is redriven, the attempt started, its steps and its end
written, and all of it rolled back. Nothing can be rolled back outside that connection, so the process ends at the first
call that goes there, as far as Python's audit hooks and SQLAlchemy's events show it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NoReturn

from sqlalchemy import Connection, Engine, event, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue.context import AttemptContext, ClaimedJob
from sa_jobqueue.db.splitting import sqlstate, summary
from sa_jobqueue.display.printable import printable
from sa_jobqueue.display.redaction import error_line, is_redacted, redacted, redacted_error
from sa_jobqueue.errors import AttemptTimeoutError, InvalidOptionError, JobQueueError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.dead_letters import DeadLetterFilter, redrive_dead_letters
from sa_jobqueue.operations.jobs import get_job
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements.jobs import inserted_jobs
from sa_jobqueue.statements.steps import sent_events
from sa_jobqueue.testing._crash_points import Fork, Send, all_engines
from sa_jobqueue.testing.inline import Inline, InlineSteps, start
from sa_jobqueue.types import AttemptOutcome, JobId, JobStatus, Json, StepKind
from sa_jobqueue.worker.finish.outcomes import of_error
from sa_jobqueue.worker.run.guard import ENDING, GUARD, guard
from sa_jobqueue.worker.run.step_groups import StepGroups
from sa_jobqueue.worker.run.steps import Place, shown

__all__ = ["Rehearsal", "RehearsalError", "rehearse"]

_STORED: Final[Any] = object()
"""In place of an input: that of the job."""
_PATIENCE: Final = 5.0
"""Seconds after its time limit when a process is killed: its handler may be in C code, which no signal interrupts."""
_NOT_SEEN: Final = """
All of it was rolled back; after_commit hooks did not run, after_rollback hooks did.
Not seen: C libraries, drivers without SQLAlchemy, database extensions, functions called by SELECT, files."""
_OUTSIDE: Final = re.compile(r"socket\.(connect|send\w+)|subprocess\.Popen|os\.(system|exec|posix_spawn|spawn|fork|forkpty)")
"""Audit events of calls that leave the process."""
_WRITES: Final = re.compile(r"\s*(with\b.*\b)?(insert|update|delete|merge)\b", re.IGNORECASE | re.DOTALL)
_SAVEPOINT: Final = re.compile(r"\s*(rollback\s.*to\s+)?savepoint\s+(\S+)\s*", re.IGNORECASE)
_LIMITS: Final = {"57014": "a statement took longer than the timeout", "55P03": "a lock is held by another session"}
"""By SQLSTATE: what ends a statement that has a limit only in a rehearsal."""
_LONGEST: Final = 200
"""Characters of a value or a statement."""
_LIBRARIES: Final = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parent))


class RehearsalError(JobQueueError):
    """A job cannot be rehearsed, for the reason that the message says; nothing was changed."""


@dataclass(frozen=True)
class Rehearsal:
    """The outcome and the effects that a job would have, redacted as by `jobs show`. Its text is a report for people."""

    job_id: str
    """Id of the job."""
    type_name: str
    """Its job type."""
    outcome: Literal["completes", "waits", "cancels", "retries", "dies", "stopped"]
    """How its attempt would end.

    "waits" is for an event, another job or a time, "cancels" by its handler; an attempt that fails "retries" or "dies". If
    it is "stopped", that is unknown: the rehearsal ended at a call that cannot be rolled back, at a step or at a time limit.
    """
    reason: str
    """Why, on one line; empty for a job that completes."""
    place: str | None
    """File, line and function of the handler's own code where it ends so; None if none of its code is there."""
    error: Json
    """The error of an attempt that fails, as it would be recorded: `type`, `message` and `traceback`."""
    effects: Sequence[Mapping[str, Any]]
    """Effects that a commit would keep; if it was stopped, all until then: each an `action`, a `name`, a `detail`, `values`.

    "insert", "update" and "delete" are of the session's flush, with the mapped class, the primary key, and for each changed
    column a list of the new value, or of the old and the new one. "execute" is a statement that writes without the flush,
    "enqueue" a job of a type, "send" an event.
    """
    queries: int
    """Number of statements of the handler."""
    seconds: float
    """How long it ran."""

    def __str__(self) -> str:
        lines = [f"job {self.job_id} ({self.type_name}) {self.outcome}{self.reason and f': {self.reason}'}"]
        lines += [f"  at {self.place}"] if self.place else []
        for effect in self.effects:
            values = ", ".join(
                f"{name} {' -> '.join(map(repr, value))}".rstrip() for name, value in effect["values"].items()
            )
            lines.append(f"  {effect['action']} {effect['name']} {effect['detail']}".rstrip() + (values and f": {values}"))
        lines.append(f"{self.queries} statements in {self.seconds:.2f} s.")
        return "\n".join(map(printable, lines)) + _NOT_SEEN


def rehearse(
    session_factory: sessionmaker[Any] | async_sessionmaker[Any],
    job_id: JobId,
    *,
    jobs: JobQueue[Any],
    input: Json = _STORED,
    allow_steps: Collection[str] = (),
    timeout: timedelta = timedelta(seconds=30),
    lock_timeout: timedelta = timedelta(seconds=1),
) -> Rehearsal:
    """Run the handler of a dead or pending job in a transaction that is always rolled back; return its outcome and effects.

    The handler is declared with `rehearsable=True`. It runs in a forked process, on one connection. Recorded steps are
    used; one that is not recorded ends the rehearsal. A wait, a sleep or another job's result that is not there ends the
    attempt, as in a worker. `ctx.transaction` is a savepoint, and constraints are checked immediately before the end.

    `session_factory`: makes the session of the handler; an asynchronous one is for all handlers. `jobs`: has the handler.
    `input`: JSON in place of the job's input, of the handler's version; by default the job's.
    `allow_steps`: names of steps that are executed, and may leave the process: none of that is rolled back.
    `timeout`: of the rehearsal and of each statement. `lock_timeout`: of each wait for a lock.
    Locks: those of the handler, the job and the root of its chain, until the rollback: workers wait for them.
    Raises: RehearsalError if the job is running, blocked or has ended, its handler is not rehearsable, the `input` does not
    fit its type, or on Windows; InvalidOptionError.
    """
    if not hasattr(os, "fork"):
        raise RehearsalError("a job cannot be rehearsed on Windows, which cannot fork a process")
    if not isinstance(session_factory.kw.get("bind"), Engine | AsyncEngine):
        raise InvalidOptionError("session_factory", "must be a sessionmaker or an async_sessionmaker of an engine")
    check_duration("timeout", timeout)
    check_duration("lock_timeout", lock_timeout)
    attempt = _Attempt(session_factory, job_id, jobs, input, allow_steps, timeout, lock_timeout)
    messages = Fork(attempt.run_in_child, all_engines()).messages(timeout.total_seconds() + _PATIENCE)
    for kind, content in messages:
        if kind == "report":
            return Rehearsal(**content)
    raise RehearsalError(messages[-1][1] if messages else "the process of the rehearsal ended without a report")


class _Recorder:
    """What one handler does on its session's connection; ends the process at calls that leave it, from `begin` on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_recording = False
        """Whether statements are those of the handler."""
        self.allowed_calls = 0
        """How many calls are running that may leave the process."""
        self._session: Session | None = None
        self._addresses: set[Any] = set()
        """Where the connections of the database go, of drivers whose sockets are Python's."""
        self._effects: list[dict[str, Any]] = []
        self._savepoints: dict[str, int] = {}
        """How many effects there were at each savepoint."""
        self._queries = 0
        sys.addaudithook(self._audit)
        event.listen(Engine, "commit", self._on_commit)
        event.listen(Engine, "prepare_twophase", self._on_commit)
        event.listen(Engine, "before_cursor_execute", self._before_execute)
        event.listen(Engine, "after_cursor_execute", self._after_execute)
        event.listen(Session, "after_flush", self._after_flush)

    def begin(self, session: Session, job_id: JobId, job_type: JobType, tables: list[str]) -> None:
        """Allow nothing but this session's connection from now on.

        `tables`: names of the queue's tables, whose rows are reported otherwise.
        """
        self._job = {"job_id": str(job_id), "type_name": job_type.name}
        package = sys.modules[job_type.func.__module__.partition(".")[0]]
        self._own_files = (job_type.func.__code__.co_filename, *map(str, getattr(package, "__path__", ())))
        self._is_redacted = is_redacted(job_type.name)
        names = "|".join(map(re.escape, tables))
        self._of_queue = re.compile(rf'.*\b(into|update|from)\s+(\S+\.)?"?({names})\b', re.IGNORECASE | re.DOTALL)
        self._driver_connection = session.connection().connection.dbapi_connection
        self._session, self._began = session, time.monotonic()

    def report(self, outcome: str, reason: str = "", place: str | None = None, error: Any = None) -> None:
        """Send how the attempt ends."""
        end = {"outcome": outcome, "reason": reason, "place": place, "error": error, "effects": self._effects}
        self._send("report", self._job | end | {"queries": self._queries, "seconds": time.monotonic() - self._began})

    def stop(self, reason: str, place: str | None = None) -> NoReturn:
        """End the process, and thereby its transaction. `place`: by default that of the running code."""
        self.report("stopped", reason, place or self.place_in(traceback.walk_stack(None)))
        os._exit(0)

    def add(self, action: str, name: str, detail: str, values: Mapping[str, Sequence[Any]]) -> None:
        """Add an effect, of a redacted type without its detail and values."""
        if self._is_redacted:
            detail, values = "", dict.fromkeys(values, ())
        self._effects.append({"action": action, "name": name, "detail": detail, "values": values})

    def place_in(self, frames: Iterable[tuple[FrameType, int]]) -> str | None:
        """Return the file, line and function of the first frame that is the application's own code."""
        for frame, line in frames:
            path = frame.f_code.co_filename
            if path.startswith(self._own_files) or not path.startswith(("<", *_LIBRARIES)):
                return f"{os.path.relpath(path)}:{line} in {frame.f_code.co_name}"
        return None

    def place_of(self, error: BaseException | None) -> str | None:
        """Return the same for the innermost frame in the traceback of an error, or of its causes."""
        while error is not None:
            if place := self.place_in(reversed([*traceback.walk_tb(error.__traceback__)])):
                return place
            error = error.__cause__ or error.__context__
        return None

    def _audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not _OUTSIDE.fullmatch(name):
            return
        is_socket = name.startswith("socket")
        target = arguments[1] if is_socket else next(iter(arguments), "")
        if self._session is None:
            self._addresses.add(target)
        elif not is_socket or (target is not None and target not in self._addresses):
            self._leave(f"{name} {'' if self._is_redacted else _plain(target)}".rstrip())

    def _leave(self, reason: str) -> None:
        if not self.allowed_calls:
            self.stop(reason)

    def _is_ours(self, connection: Connection) -> bool:
        return connection.connection.dbapi_connection is self._driver_connection

    def _on_commit(self, connection: Connection, *_: Any) -> None:
        if self._session is not None and not self._is_ours(connection):
            self._leave("commit on another connection")

    def _before_execute(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if self._session is None:
            return
        if not self._is_ours(connection):
            if ENDING.match(statement) or getattr(connection.connection.dbapi_connection, "autocommit", False):
                self._leave("commit on another connection")
        elif (savepoint := _SAVEPOINT.fullmatch(statement)) is None:
            self._queries += self.is_recording
        elif savepoint[1] is not None:
            del self._effects[self._savepoints[savepoint[2]] :]
        else:
            self._savepoints[savepoint[2]] = len(self._effects)

    def _after_execute(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if self._session is None or self._session._flushing or not (self.is_recording and self._is_ours(connection)):
            return
        # A statement that returns nothing writes as well, such as TRUNCATE.
        if (cursor.description is None or _WRITES.match(statement)) and not self._of_queue.match(statement):
            verb, *words = statement[:_LONGEST].split()
            self.add("execute", verb, " ".join(words), {"rows": [cursor.rowcount]})

    def _after_flush(self, session: Session, context: object) -> None:
        changes = (("insert", session.new), ("update", session.dirty), ("delete", session.deleted))
        for action, mapped in [(action, mapped) for action, objects in changes for mapped in objects]:
            state: Any = inspect(mapped)
            histories = {column.key: state.attrs[column.key].history for column in state.mapper.column_attrs}
            changed = {name: [*(old or ()), *new] for name, (new, _, old) in histories.items() if new or old}
            if session is self._session and not isinstance(mapped, JobMixin) and (changed or action != "update"):
                key = ", ".join(map(str, state.mapper.primary_key_from_instance(mapped)))
                values = {name: [*map(_plain, value)] for name, value in changed.items()}
                self.add(action, state.class_.__name__, key, values)


def _plain(value: Any) -> Any:
    """Return a value as JSON, or as its text."""
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:_LONGEST]


class _Store(InlineSteps):
    """Keeps the steps in the session of the rehearsal."""

    attempt: _Attempt

    def commit(self, session: Session) -> None:
        """Check constraints as a commit does, and keep the writes in the transaction."""
        _check_constraints(session)
        super().commit(session)


class _Steps(StepGroups):
    """Executes allowed steps only."""

    _store: _Store

    async def _step(self, place: Place, *arguments: Any) -> Any:
        record, attempt = await self._find(place, StepKind.STEP), self._store.attempt
        if place[0] not in attempt.allow_steps and (record is None or record.kind == StepKind.RETRY):
            attempt.recorder.stop(f"step {shown(place)} is not recorded: --allow-step {place[0]} executes it")
        attempt.recorder.allowed_calls += 1
        try:
            return await super()._step(place, *arguments)
        finally:
            attempt.recorder.allowed_calls -= 1


class _Attempt(Inline):
    """The attempt of a rehearsal."""

    steps_class = _Steps
    recorder: _Recorder
    _type: JobType

    def __init__(
        self, factory: Any, job_id: JobId, jobs: JobQueue[Any], input: Json, allow_steps: Collection[str], *limits: timedelta
    ) -> None:
        super().__init__(jobs, factory, EventBus())
        self._factory, self._job_id, self._input, self.allow_steps = factory, job_id, input, allow_steps
        self._timeout, self._lock_timeout = limits

    def run_in_child(self, send: Send) -> None:
        """Rehearse in a forked process: send a "report", or the reason for having none as an "error"."""
        os.dup2(2, 1)  # what handlers print is not the command's output
        try:
            # Not uvloop, whose connections no audit hook sees.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._rehearse(send))
        except JobQueueError as error:
            send("error", str(error))
        except DBAPIError as error:
            send("error", _LIMITS.get(sqlstate(error) or "", summary(error)))

    def store(self) -> _Store:
        """Return the store of the steps of the attempt."""
        store = _Store(self._jobs, self._session, self._events)
        store.attempt = self
        return store

    async def _rehearse(self, send: Send) -> None:
        """Run the attempt, report how it would end, and roll everything back."""
        self.recorder, self._session = _Recorder(send), self._factory()
        job = await self.on(self._begin)
        signal.signal(signal.SIGALRM, partial(self._expire, job, asyncio.current_task()))
        signal.setitimer(signal.ITIMER_REAL, min(job.timeout or self._timeout, self._timeout).total_seconds())
        context = await self.run_attempt(job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        await self.on(self._add_rows_of_queue)
        if context.error is None:
            self.recorder.report("completes")
        else:
            self._report_failure(job, context.suspended or context.error, self.recorder.place_of(context.error))
        await self.on(lambda session: session.info.pop(GUARD, None))  # it refuses a handler that closes its session
        await self.on(lambda session: session.close())

    def _begin(self, session: Session) -> ClaimedJob:
        """Start an attempt of the job. Raises: JobQueueError for a job that cannot be rehearsed."""
        limits = {"statement_timeout": self._timeout, "lock_timeout": self._lock_timeout}
        limits["idle_in_transaction_session_timeout"] = self._timeout + timedelta(seconds=1)
        for name, limit in limits.items():
            session.execute(select(func.set_config(name, str(max(1, round(limit.total_seconds() * 1000))), True)))
        job = get_job(session, self._job_id, model=self._model)
        if job.status not in {JobStatus.PENDING, JobStatus.DEAD}:
            raise JobQueueError(f"the job is {job.status}: only pending and dead jobs can be rehearsed")
        job_type = self._type = self._jobs.registry.get(job.type_name)
        if not job_type.rehearsable:
            raise JobQueueError(
                f"{job_type.place} is not declared with rehearsable=True. What it does outside of its session and its steps "
                "would be done for real, unless it is seen and ends the rehearsal"
            )
        self._handler_session(job_type)
        if job.status is JobStatus.DEAD:
            where = DeadLetterFilter(job_ids=[self._job_id], resolved=None)
            for reason in redrive_dead_letters(session, where=where, model=self._model).conflicts.values():
                raise JobQueueError(f"the job cannot be redriven: {reason}")
        claimed_job = start(session, self._model, self._job_id)
        if self._input is not _STORED:
            claimed_job = claimed_job._replace(input=self._input, input_version=job_type.version)
            job_type.decode(claimed_job.input, claimed_job.input_version)
        session.expunge_all()
        kinds: list[Any] = [kind for base in self._model.__mro__ for kind in (base, *vars(base).values())]
        tables = [kind.__table__.name for kind in kinds if hasattr(kind, "__table__")]
        self.recorder.begin(session, self._job_id, job_type, tables)
        return claimed_job

    async def _attempt(self, context: AttemptContext, job_type: JobType, savepoint: Any) -> JobStatus:
        await self.on(lambda session: guard(session, [context]).begin(session.connection()))
        status = await super()._attempt(context, job_type, savepoint)
        await self.on(_check_constraints)
        return status

    async def _call(self, context: AttemptContext, job_type: JobType, savepoint: Any) -> Any:
        self.recorder.is_recording = True
        try:
            returned = await super()._call(context, job_type, savepoint)
            await self.on(lambda session: session.flush())
        except DBAPIError as error:
            # A statement with NOWAIT would fail in a worker as well.
            if (reason := _LIMITS.get(sqlstate(error) or "")) and "nowait" not in (error.statement or "").lower():
                self.recorder.stop(reason, self.recorder.place_of(error))
            raise
        finally:
            self.recorder.is_recording = False
        return returned

    def _add_rows_of_queue(self, session: Session) -> None:
        for row in session.execute(inserted_jobs(self._model)):
            values = {"queue": [row.queue], "input": [redacted(row.type_name, row.input)]}
            self.recorder.add("enqueue", row.type_name, "", values)
        for name in session.scalars(sent_events(self._model)):
            self.recorder.add("send", name, "", {})

    def _report_failure(self, job: ClaimedJob, error: BaseException, place: str | None) -> None:
        end = of_error(job, error, self._type)
        document = redacted_error(job.type_name, end.error)
        reason = ": ".join(filter(None, (end.reason, error_line(document) or str(error))))
        outcome = "dies" if end.status is JobStatus.DEAD else "retries"
        ends = {AttemptOutcome.SNOOZED: "waits", AttemptOutcome.CANCELLED: "cancels"}
        self.recorder.report(ends.get(end.outcome, outcome), reason, place, document)

    def _expire(self, job: ClaimedJob, task: Any, number: int, frame: Any) -> None:
        """End the process when its time is over: with the attempt's timeout if that is not longer."""
        frames, coroutine = [*traceback.walk_stack(frame)], task.get_coro()
        while (suspended := getattr(coroutine, "cr_frame", None)) is not None:
            frames.insert(0, (suspended, suspended.f_lineno))
            coroutine = coroutine.cr_await
        place = self.recorder.place_in(frames)
        if job.timeout is None or job.timeout > self._timeout:
            self.recorder.stop(f"it did not end within {self._timeout.total_seconds():g} s", place)
        self._report_failure(job, AttemptTimeoutError(job.timeout), place)
        os._exit(0)


def _check_constraints(session: Session) -> None:
    """Check deferred constraints, and leave them deferred."""
    session.flush()
    with session.connection().begin_nested() as savepoint:
        session.connection().execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        savepoint.rollback()
