"""Run one worker in this process: signal handling, probes and exit status."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import ThreadingHTTPServer
from typing import Final

from sa_jobqueue.cli._watchdog import notify
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import DrainRequested, Event, WorkerStarted
from sa_jobqueue.observe.log_lines import JsonFormatter, TextFormatter, bind
from sa_jobqueue.observe.probes import answer
from sa_jobqueue.observe.slow_clients import BoundedRequestHandler
from sa_jobqueue.worker import Worker, WorkerGroup
from sa_jobqueue.worker.background.vitals import Vitals
from sa_jobqueue.worker.memory import frozen

DRAIN: Final = b"d"
RELEASE: Final = b"r"
"""Commands on the control pipe of a worker. A closed pipe means drain, too: the parent has died."""

SUCCESSOR: Final = 75
"""Exit status of a worker that exceeded its memory limit: start another one. EX_TEMPFAIL of sysexits.h."""

EXIT_PATIENCE: Final = timedelta(seconds=5)
"""Time the interpreter has to exit after the worker has stopped, because threads of handlers could block it forever."""

_log = logging.getLogger("sa_jobqueue.worker")


def serve(worker: Worker | WorkerGroup, *, control: int | None = None, until_idle: bool = False) -> int:
    """Run a worker until a signal or its parent process stops it; return the exit status.

    SIGTERM or SIGINT starts draining; a second one releases running jobs immediately. `control`: the reading end of a pipe
    through which a parent sends the same commands. `until_idle`: also stop when no job is due.
    Returns 0, or `SUCCESSOR` if the worker stopped so that another process replaces it.
    Obliges: exit soon afterwards; threads that block the interpreter's exit are not waited for.
    Raises: as `Worker.run`.
    """
    if control is not None:
        os.set_inheritable(control, False)  # a handler's child must not hold it open
    try:
        with frozen(), asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(_serve(worker, control, until_idle))
    except BaseException:
        _leave_within(EXIT_PATIENCE, status=1)
        raise
    status = SUCCESSOR if worker.wants_successor else 0
    if worker.has_stuck_threads:
        _log.warning("exiting with handlers still running; their jobs were released")
        _leave(status)
    _leave_within(EXIT_PATIENCE, status=status)
    return status


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory if it is installed; None means asyncio's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(worker: Worker | WorkerGroup, control: int | None, until_idle: bool) -> None:
    loop = asyncio.get_running_loop()
    unsubscribe = worker.events.subscribe(_notify_manager)
    running = asyncio.create_task(worker.run_until_idle() if until_idle else worker.run())
    # Let the worker begin: it resets earlier stop requests then. A signal before that ends the process.
    await asyncio.sleep(0)
    requested = signalled = False

    def stop(*, now: bool) -> None:
        nonlocal requested
        if now:
            _log.info("stopping: running jobs are released")
        elif not requested:
            notify("STOPPING=1")
            _log.info("draining: running jobs may finish; a second signal releases them")
        requested = True
        worker.stop(now=now)

    def on_signal() -> None:
        # Counted apart from the parent's commands: one Ctrl-C arrives both as a signal and through the pipe.
        nonlocal signalled
        again, signalled = signalled, True
        stop(now=again)

    def on_command(pipe: int) -> None:
        command = b""
        with suppress(ConnectionError):  # the parent died before it read this worker's id
            command = os.read(pipe, 1)
        if not command:
            loop.remove_reader(pipe)
        stop(now=command == RELEASE)

    on_signals(on_signal)
    if control is not None:
        loop.add_reader(control, on_command, control)
    try:
        await running
    finally:
        unsubscribe()


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the running event loop at SIGTERM and SIGINT. After the loop, they do not change the exit status.

    The loop's own handlers end with it: a signal while the process exits would then kill it.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process exits anyway
            loop.call_soon_threadsafe(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    atexit.register(_ignore_signals)


def ending(*numbers: signal.Signals) -> threading.Event:
    """Return an event that these signals set, unless they are ignored, as SIGHUP is under nohup."""
    ended = threading.Event()
    for number in numbers:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: ended.set())
    return ended


def _ignore_signals() -> None:
    """Ignore what would stop the process, which exits: the interpreter restores the default of other handlers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _notify_manager(event: Event) -> None:
    match event:
        case WorkerStarted():
            notify("READY=1")
        case DrainRequested():
            notify("STOPPING=1")


def _leave_within(patience: timedelta, *, status: int) -> None:
    """Exit `patience` after the main thread has ended, if threads still block the interpreter's exit.

    A process that called the command as a function, as tests do, continues: its main thread has not ended.
    """
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        return

    def wait() -> None:
        threading.main_thread().join()
        time.sleep(patience.total_seconds())
        _leave(status)

    threading.Thread(target=wait, name="sa_jobqueue exit", daemon=True).start()


def _leave(status: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def configure_logging(level: str, style: str) -> None:
    """Log to standard error, as text or JSON, unless importing the application configured logging.

    Handlers that the application configured also receive the fields of the attempt, for their formatters.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
        root.addHandler(handler)
        root.setLevel(level.upper())
    for each in root.handlers:
        bind(each)
    logging.getLogger("sa_jobqueue").setLevel(level.upper())


@contextmanager
def serve_probes(read: Callable[[], Vitals], *, limit: timedelta, port: int, address: str) -> Iterator[int]:
    """Serve the probes of `observe.probes` while the block runs; yield the port. Port 0: a free one.

    Threads answer, so that a hanging event loop is reported.

    Raises: InvalidOptionError if the port cannot be bound.
    """

    class Handler(BoundedRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - a name of http.server
            status, document = answer(self.path, read(), limit)
            body = json.dumps(document).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except (OSError, OverflowError) as error:
        raise InvalidOptionError("health port", f"cannot listen on {address}:{port}: {error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="sa_jobqueue probes", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
