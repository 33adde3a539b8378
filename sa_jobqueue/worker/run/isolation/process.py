"""A child process from its worker's side: starting, sending requests, stopping, watching, killing."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import IsolationError, MemoryLimitError, ProcessDiedError
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.memory import resident_bytes
from sa_jobqueue.worker.run.isolation.messages import MAX_LINE, Message, line, replay

_LOOK_SECONDS: Final = 0.05
"""How often a child's memory is checked. Zeroing new memory, a processor fills about 200 MiB in that time."""
_LAST_WORDS_SECONDS: Final = 1.0
"""How long to wait for the last messages of a child that has ended, and for the end of one that has disconnected."""
_CLOSE_SECONDS: Final = 3.0
"""Maximum time for a child to end when there is no more work: its dependencies close."""
_START_SECONDS: Final = 120.0
"""Maximum time to import the application: a large one takes ten seconds, and the machine may be busy."""
_MOST_OF_DUMP: Final = 64 * 1024

_PROGRAM: Final = """\
import sys
sys.path[:] = sys.argv[4:]
from sa_jobqueue.worker.run.isolation.child import main
main(*map(int, sys.argv[1:4]))
"""


class Process:
    """One child process. Used from the worker's loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        crash: int,
    ) -> None:
        self._process = process
        self._reader, self._writer = reader, writer
        self._crash = crash
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Message] = self._loop.create_future()
        self._attempt: tuple[AttemptContext, contextvars.Context] | None = None
        self._cause: ProcessDiedError | None = None
        self._doomed = False
        self._hearing = self._loop.create_task(self._hear(), name="sa_jobqueue child")
        self.ended = self._loop.create_task(self._end(), name="sa_jobqueue child's end")
        """Done when the process and everything that it started have ended."""
        self.ran = 0
        """How many attempts it has run."""

    @classmethod
    async def start(cls, *, app: str | None, modules: Sequence[str]) -> Process:
        """Start a child and wait until it has imported the application. Raises: IsolationError when it cannot."""
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(writing), str(os.getpid()), *sys.path),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), writing),
                start_new_session=True,  # a terminal's Ctrl-C is the worker's business; and its programs end with it
            )
            os.set_blocking(reading, False)
            streams = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        except BaseException:
            ours.close()  # which a child that has started sees
            os.close(reading)
            raise
        finally:
            theirs.close()
            os.close(writing)
        child = cls(process, *streams, reading)
        try:
            start: Message = {"is": "start", "app": app, "modules": list(modules), "levels": _levels()}
            async with asyncio.timeout(_START_SECONDS):
                answer = await child._ask(start)
            if answer["is"] != "ready":
                fault = answer["error"]
                raise IsolationError(f"it cannot import the application: {fault['type']}: {fault['message']}")
        except BaseException as error:
            child.kill()
            await asyncio.wait({child.ended})
            if isinstance(error, ProcessDiedError):
                raise IsolationError(f"at its start it {error.how}") from error
            if isinstance(error, TimeoutError):
                raise IsolationError(f"it did not import the application within {_START_SECONDS:.0f} s") from error
            raise
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_free(self) -> bool:
        """Whether it can run another attempt."""
        return self._answer.done() and not self._doomed and not self._hearing.done() and self._process.returncode is None

    def resident(self) -> int:
        """Return the memory it uses in bytes; 0 if unknown."""
        return resident_bytes(self.pid)

    async def run(self, request: Message, context: AttemptContext, *, memory_limit: int | None) -> Message:
        """Run an attempt in it; return its answer. If this is cancelled, the attempt goes on until `stop`.

        Raises: ProcessDiedError if the child dies; MemoryLimitError if it was killed because of its memory.
        """
        self.ran += 1
        self._attempt = (context, contextvars.copy_context())
        return await self._ask(request, memory_limit)

    async def stop(self, reason: CancelReason, grace: timedelta) -> None:
        """End its attempt: by a message, after half of `grace` by SIGTERM, at the end of it by SIGKILL."""
        half = grace.total_seconds() / 2
        if self._answer.done():
            return
        self._send({"is": "stop", "reason": reason})
        try:
            if not await self._answered(half):
                self._doomed = True  # whatever it makes of it: a handler that was broken off may leave anything behind
                self._signal(signal.SIGTERM)
                await self._answered(half)
        finally:
            if self._doomed or not self._answer.done():
                self.kill()
                # The attempt is over when its code is: the next one may begin as soon as that is written.
                await asyncio.wait({self.ended}, timeout=_LAST_WORDS_SECONDS)

    def kill(self) -> None:
        """Kill it, with everything it has started."""
        self._doomed = True
        self._signal(signal.SIGKILL)

    async def close(self) -> None:
        """Close it, and make sure that it ends."""
        self._send({"is": "close"})
        try:
            await asyncio.wait({self.ended}, timeout=_CLOSE_SECONDS)
        finally:
            if not self.ended.done():
                self.kill()
        await self.ended

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def _ask(self, message: Message, memory_limit: int | None = None) -> Message:
        """Send a request; return its answer. Raises: ProcessDiedError if the child ends without one."""
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answer = answer
        self._send(message)
        if memory_limit is not None:
            watch = self._loop.create_task(self._watch(memory_limit), name="sa_jobqueue child's memory")
            answer.add_done_callback(lambda _: watch.cancel())
        if not await self._answered():
            raise cast("ProcessDiedError", self._cause)
        return answer.result()

    async def _answered(self, within: float | None = None) -> bool:
        """Wait for the answer or the child's end; return whether it has answered."""
        either: set[asyncio.Future[Any]] = {self._answer, self.ended}
        await asyncio.wait(either, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return self._answer.done()

    def _send(self, message: Message) -> None:
        # Nothing waits for the child to read it; one that is gone is noticed by `_end`.
        self._writer.write(line(message))

    async def _hear(self) -> None:
        """Receive its messages until it disconnects, or sends something invalid."""
        while received := await self._reader.readline():
            self._receive_message(json.loads(received))
            # What is there is received without waiting: a child that logs a lot would have the loop to itself.
            await asyncio.sleep(0)

    def _receive_message(self, message: Message) -> None:
        match message["is"], self._attempt:
            case "log", None:
                replay(message, None)
            case "log", (attempt, context):  # the logger where listeners for an attempt's records expect it
                context.run(replay, message, attempt.job)
            case "extend", (attempt, _):
                attempt.extend(timedelta(seconds=float(message["seconds"])))
            case "progress", (attempt, _):
                done_units, total, text = message["reported"]
                attempt.progress(done_units, total, message=text)
            case _:
                self._attempt = None
                self._answer.set_result(message)

    async def _watch(self, limit: int) -> None:
        while not self.ended.done():
            if (used_bytes := self.resident()) > limit:
                self._cause = MemoryLimitError(limit, used_bytes)
                self.kill()
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _end(self) -> None:
        """Wait for its end, read its last messages and clean up; `_cause` is how it ended."""
        exited = self._loop.create_task(self._process.wait())
        await asyncio.wait({exited, self._hearing}, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():  # it hung up: on its way out, or for good
            await asyncio.wait({exited}, timeout=_LAST_WORDS_SECONDS)
            if not exited.done():
                self._cause = self._cause or ProcessDiedError("broke off its connection to the worker and was killed")
                self.kill()
        status = await exited
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it has started
        await asyncio.wait({self._hearing}, timeout=_LAST_WORDS_SECONDS)
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        self._cause = self._cause or _death(status, self._dump())
        os.close(self._crash)
        self._writer.close()

    def _dump(self) -> str:
        with suppress(BlockingIOError):
            return os.read(self._crash, _MOST_OF_DUMP).decode(errors="replace")
        return ""


def _death(status: int, stack: str) -> ProcessDiedError:
    if status >= 0:
        return ProcessDiedError(f"ended with status {status}", status=status, stack=stack)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ": by the kernel, if the machine was out of memory" if -status == signal.SIGKILL else ""
    return ProcessDiedError(f"was killed by {name}{hint}", signal=name, stack=stack)


def _levels() -> dict[str, int]:
    """Return the levels that the root's logger and ours are to have in children, as they are in this process."""
    return {name: logging.getLogger(name).level for name in ("root", "sa_jobqueue")}
