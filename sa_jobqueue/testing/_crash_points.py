"""The forked child of a crash test: it runs jobs, counts the points that it passes, and dies at one of them.

Everything here changes the process for good, which is why only a child calls it.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import select
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from sa_jobqueue.context import AttemptContext, current_attempt
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.finish.completer import Completer

T = TypeVar("T")
Message = tuple[str, Any]
Send = Callable[[str, Any], None]

_LONGEST_STATEMENT: Final = 60
LIMIT_SECONDS: Final = 60.0
"""How long the attempts of one child may run."""
_is_completing: ContextVar[bool] = ContextVar("sa_jobqueue_is_completing", default=False)
"""Whether the running code writes the end of an attempt, after its handler has returned."""


def all_engines() -> list[Engine]:
    """Return the engines of this process."""
    # By their type: `isinstance` would read an attribute of weak proxies, which raise if their object is gone.
    return [heap_object for heap_object in gc.get_objects() if issubclass(type(heap_object), Engine)]


class Fork:
    """A forked child that calls a function, and ends without cleaning up: the kernel closes its connections.

    `engines`: those of this process, whose connections the child must not use.
    """

    def __init__(self, work: Callable[[Send], object], engines: Iterable[Engine]) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12, of other threads: the child needs none of them
            self._pid = os.fork()
        if self._pid == 0:
            _run_child(work, engines, self._reader, writer)
        os.close(writer)

    def messages(self, limit_seconds: float | None = LIMIT_SECONDS) -> list[Message]:
        """Wait for its end and return its messages, at the end `("error", text)` if it raised or was killed."""
        lines, deadline = bytearray(), None if limit_seconds is None else time.monotonic() + limit_seconds
        try:
            while select.select([self._reader], [], [], deadline and max(0.0, deadline - time.monotonic()))[0]:
                if not (chunk := os.read(self._reader, 65536)):
                    break
                lines += chunk
            else:
                os.kill(self._pid, signal.SIGKILL)
        finally:
            os.close(self._reader)
            _, status = os.waitpid(self._pid, 0)
        messages: list[Message] = [tuple(json.loads(line)) for line in lines.splitlines()]
        if status:
            limit = "" if limit_seconds is None else f"; it is killed after {limit_seconds:.0f} s"
            reason = f"its process ended with {os.waitstatus_to_exitcode(status)}{limit}"
            messages.append(("error", reason))
        return messages


def _run_child(work: Callable[[Send], object], engines: Iterable[Engine], reader: int, writer: int) -> None:
    def send(kind: str, content: Any) -> None:
        os.write(writer, json.dumps((kind, content)).encode() + b"\n")

    try:
        os.close(reader)
        threading.Thread(target=_end_with_parent, args=(writer,), daemon=True).start()
        gc.disable()  # it would write to each page of memory that is shared with the parent
        for engine in engines:
            engine.dispose(close=False)  # its connections are the parent's
        work(send)
    except BaseException as error:
        with suppress(OSError):  # the parent is gone
            send("error", "".join(traceback.format_exception(error)))
    finally:
        os._exit(0)


def _end_with_parent(writer: int) -> None:
    """End this process when the other end of a pipe is closed, as it is when the parent is killed."""
    parent = select.poll()
    parent.register(writer, 0)  # only errors, of which this is one
    parent.poll()
    os._exit(1)


def redirect(source: str, copy: str) -> None:
    """Have every engine connect to the database `copy` where its URL names `source`."""

    @event.listens_for(Engine, "do_connect")
    def connect(dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
        for name in ("dbname", "database"):
            if parameters.get(name) == source:
                parameters[name] = copy


class Points:
    """The points of a run. It dies at the one with the number `crash_at`, or sends all if that is None.

    `send`: sends a message to the parent.
    """

    def __init__(self, send: Send, crash_at: int | None) -> None:
        self.send, self._crash_at = send, crash_at
        self._count = 0
        self._counts = Counter[str]()
        self._lock = threading.Lock()

    def pass_through(self, point: str) -> None:
        """Count a point, or die at it."""
        with self._lock:
            self._count += 1
            if self._crash_at is None:
                self.send("point", point)
            elif self._count == self._crash_at:
                self.send("died", point)
                os._exit(0)

    def number(self, noun: str) -> int:
        """Return the number of the next statement, commit, step or call."""
        with self._lock:
            self._counts[noun] += 1
            return self._counts[noun]

    def around(self, noun: str, name: str, call: Callable[[], Any], sent: Callable[[], object] = lambda: None) -> Any:
        """Call a function between two points; `sent` is called when it has returned. Of an async one, return a coroutine."""
        label = f"{noun} {self.number(noun)}: {name}"
        self.pass_through(f"before {label}")

        def after(outcome: T) -> T:
            sent()
            self.pass_through(f"after {label}")
            return outcome

        async def awaited(outcome: Awaitable[T]) -> T:
            return after(await outcome)

        outcome = call()
        return awaited(outcome) if inspect.isawaitable(outcome) else after(outcome)

    def install(self) -> None:
        """See the statements, commits and steps of attempts, in this process and until its end."""

        def before(connection: Any, cursor: object, statement: str, parameters: Any, context: Any, many: bool) -> None:  # noqa: PLR0917
            if _is_of_attempt() and not statement.startswith("SET LOCAL application_name"):  # the worker's own, of no effect
                words = "completion of the job" if _is_completing.get() else " ".join(statement.split())
                text = words if len(words) <= _LONGEST_STATEMENT else f"{words[: _LONGEST_STATEMENT - 1]}…"
                context.crash_point = f"statement {self.number('statement')}: {text}"
                self.pass_through(f"before {context.crash_point}")

        def after(connection: Any, cursor: object, statement: str, parameters: Any, context: Any, many: bool) -> None:  # noqa: PLR0917
            if (point := getattr(context, "crash_point", None)) is not None:
                self.pass_through(f"after {point}")

        event.listen(Engine, "before_cursor_execute", before)
        event.listen(Engine, "after_cursor_execute", after)
        commit: Any = DefaultDialect.do_commit
        write, step = Completer._write, AttemptContext.step

        def do_commit(dialect: Any, connection: Any) -> None:
            if not _is_of_attempt() or connection.autocommit:
                commit(dialect, connection)
                return
            label = f"commit {self.number('commit')}"
            self.pass_through(f"before {label}")
            commit(dialect, connection)
            # The server has committed, and no code of the application has run since.
            self.pass_through(f"after {label}")

        async def write_end(completer: Completer, *arguments: Any) -> Any:
            token = _is_completing.set(True)
            try:
                return await write(completer, *arguments)
            finally:
                _is_completing.reset(token)

        def run_step(context: AttemptContext, name: str, *arguments: Any, **options: Any) -> Any:
            return self.around("step", name, lambda: step(context, name, *arguments, **options))

        DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]
        Completer._write = write_end  # type: ignore[method-assign, assignment]
        AttemptContext.step = run_step  # type: ignore[method-assign, assignment]


def _is_of_attempt() -> bool:
    return current_attempt() is not None or _is_completing.get()


def prune_nothing() -> None:
    """Leave pruning out, which is half of the time of a short run."""

    async def prune(pruner: Pruner, **options: Any) -> None: ...

    Pruner.prune = prune  # type: ignore[method-assign, assignment]
