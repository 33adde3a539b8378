"""A child: a fresh interpreter that imports the application and runs one attempt at a time for the worker it belongs to."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from operator import attrgetter
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, NoReturn, cast

from sa_jobqueue.context import AttemptContext, enter_attempt
from sa_jobqueue.errors import InvalidOutputError
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.tracing import enter_span
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.finish.outcomes import describe
from sa_jobqueue.worker.run.calls import Call, unwrapped
from sa_jobqueue.worker.run.isolation.messages import (
    MAX_LINE,
    Message,
    blockers_of,
    job_of,
    line,
    of_raise,
    of_record,
    of_return,
)

_PR_SET_PDEATHSIG: Final = 1
"""Of prctl(2), Linux."""
REPORT_SECONDS: Final = 0.5
"""Time between two reports of progress to the worker, which writes them much more rarely."""


class Terminated(SystemExit):
    """SIGTERM: the worker has given the attempt up, and this process with it. `finally` blocks may still run."""


class Channel:
    """The socket to the worker. Any thread may send; one receives."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)  # a program that a handler starts must not hold it open
        self._socket = socket.socket(fileno=number)
        self._received = self._socket.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message. Raises: OSError when the worker is gone; InvalidOutputError when the message is too large."""
        sent = line(message)
        if len(sent) > MAX_LINE:
            raise InvalidOutputError(f"what the handler returned makes {len(sent):,} bytes: over the limit of {MAX_LINE:,}")
        with self._sending:
            self._socket.sendall(sent)

    def receive(self) -> Message | None:
        """Return the worker's next message; None when there will be none."""
        try:
            return cast("Message", json.loads(self._received.readline()))
        except (ConnectionError, ValueError):  # of half a message as well
            return None


class _Forwarder(logging.Handler):
    """Sends every log record of this process to the worker, whose handlers are the application's."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send(of_record(record))
        except Exception:
            self.handleError(record)


class Child:
    """Runs the worker's requests in the main thread: there signals arrive, and libraries expect to be."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry
        self._requests: SimpleQueue[Message | None] = SimpleQueue()
        self._attempt_lock = threading.Lock()
        self._attempt: AttemptContext | None = None
        """The attempt under way."""
        self._stop: Callable[[CancelReason], None] | None = None
        self._providers: set[Any] = set()

    def serve(self) -> None:
        """Run attempts until the worker sends that there are no more."""
        for work in (self._listen, self._report):
            threading.Thread(target=work, name="sa_jobqueue worker", daemon=True).start()
        with asyncio.Runner() as runner:
            while (request := self._requests.get()) is not None:
                self._run(request, runner)
        for provider in self._providers:
            provider.close()

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            match message["is"]:
                case "run":
                    self._requests.put(message)
                case "stop":
                    with self._attempt_lock:
                        if self._stop is not None:
                            self._stop(CancelReason(message["reason"]))
                case "close":
                    self._requests.put(None)
        # The worker is gone: no process waits for the result, nor for programs that the handler has started.
        os.killpg(0, signal.SIGKILL)

    def _report(self) -> None:
        """Send the progress that the attempt under way reported last, now and then: it may report in a tight loop."""
        sent: Any = None
        while True:
            time.sleep(REPORT_SECONDS)
            with self._attempt_lock:  # until it is sent, no other attempt begins, which it would be taken for
                reported = None if self._attempt is None else self._attempt.reported
                if reported is not None and reported is not sent:
                    self._channel.send({"is": "progress", "reported": reported})
                    sent = reported

    def _run(self, request: Message, runner: asyncio.Runner) -> None:
        job = job_of(request)
        job_type: JobType | None = None
        context = AttemptContext(job, request["worker_id"], self._extend)
        enter_attempt(context)
        enter_span(request["span"])
        self._begin(context, context.stop)
        try:
            job_type = self._registry.get(job.type_name)
            self._providers.update(job_type.signature.provided.values())
            with job_type.around_attempt():
                payloads = [job_type.decode(job.input, job.input_version)] if job_type.signature.takes_input else []
                call = Call(job_type, [context], payloads, blockers_of(request, job_type))
                if job_type.is_async:
                    outcomes = runner.run(self._run_async(call), context=contextvars.copy_context())
                else:
                    outcomes = call.run()
                answer = of_return(unwrapped(*outcomes), job_type)
            self._begin(None)
            self._channel.send(answer)
        except Terminated:
            raise
        except BaseException as error:  # the handler's own: it ends no more than the attempt
            self._begin(None)
            self._channel.send(of_raise(job, error, job_type))

    def _extend(self, _: AttemptContext, timeout: timedelta) -> None:
        self._channel.send({"is": "extend", "seconds": timeout.total_seconds()})

    def _begin(self, attempt: AttemptContext | None, stop: Callable[[CancelReason], None] | None = None) -> None:
        with self._attempt_lock:
            self._attempt, self._stop = attempt, stop

    async def _run_async(self, call: Call) -> list[Any]:
        loop, cancel = asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task()).cancel

        def stop(reason: CancelReason) -> None:
            loop.call_soon_threadsafe(call.contexts[0].stop, reason)
            loop.call_soon_threadsafe(cancel)

        self._begin(call.contexts[0], stop)
        return await call.run_async()


def _registry(app: str) -> Registry:
    """Return the registry of the application's job queue, by its name."""
    module, _, attributes = app.partition(":")
    queue: Any = attrgetter(attributes)(import_module(module))
    if not isinstance(queue, JobQueue):
        raise TypeError(f"{app!r} is a {type(queue).__name__}, not a JobQueue")
    return queue.registry


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its worker dies, which code that never returns to Python cannot prevent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was over before that was asked for
        os._exit(1)


def _raise_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


def _prefer_to_be_killed() -> None:
    # Where memory runs out on the machine, the kernel is to choose this process and not the worker.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write("1000")


def main(channel_number: int, crash_number: int, parent: int) -> None:
    """Serve the worker at the other end of a socket. `crash_number`: where to write the stack of a native crash."""
    die_with(parent)
    _prefer_to_be_killed()
    os.set_inheritable(crash_number, False)
    faulthandler.enable(crash_number, all_threads=False)
    channel = Channel(channel_number)
    start = channel.receive()
    if start is None:
        return
    try:
        for module in start["modules"]:
            import_module(module)
        registry = _registry(start["app"])
    except Exception as error:
        channel.send({"is": "unready", "error": describe(error)})
        return
    for name, level in start["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers = [_Forwarder(channel)]
    signal.signal(signal.SIGTERM, _raise_signal)
    channel.send({"is": "ready"})
    with suppress(BrokenPipeError):
        Child(channel, registry).serve()
