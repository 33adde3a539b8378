"""One worker in this process: signals in, exit status out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from sa_jobqueue.cli._systemd import notify
from sa_jobqueue.events import DrainRequested, Event, WorkerStarted
from sa_jobqueue.worker import Worker
from sa_jobqueue.worker.background.memory import frozen

DRAIN: Final = b"d"
RELEASE: Final = b"r"
"""What a parent writes to a worker's control pipe. Its end, too, means drain: the parent is gone."""

SUCCESSOR: Final = 75
"""The exit status of a worker that has outgrown its memory limit, EX_TEMPFAIL of sysexits.h: start another one."""

EXIT_PATIENCE: Final = timedelta(seconds=5)
"""How long the interpreter may take to end once the worker has stopped: threads of handlers could hold it for ever."""

_log = logging.getLogger("sa_jobqueue.worker")


def serve(worker: Worker, *, control: int | None = None) -> int:
    """Run a worker until a signal or its parent stops it; return the exit status.

    SIGTERM or SIGINT stops claiming and drains; a second one gives running jobs back at once. `control`: the reading
    end of a pipe from a parent, which says the same.
    0 when it did; `SUCCESSOR` when it stopped by itself, for another process to take its place.
    Obliges: the process ends soon after, whatever its threads do.
    Raises: as `Worker.run`.
    """
    if control is not None:
        os.set_inheritable(control, False)  # a handler's child must not hold it open
    try:
        with frozen(), asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(_serve(worker, control))
    except BaseException:
        _leave_within(EXIT_PATIENCE, status=1)
        raise
    status = SUCCESSOR if worker.wants_successor else 0
    if worker.has_stuck_threads:
        _log.warning("handlers that did not stop are left behind: their jobs were given back")
        _leave(status)
    _leave_within(EXIT_PATIENCE, status=status)
    return status


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loop where that is installed; None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(worker: Worker, control: int | None) -> None:
    loop = asyncio.get_running_loop()
    unsubscribe = worker.events.subscribe(_tell_manager)
    running = asyncio.create_task(worker.run())
    # One turn, so that the worker has begun: it forgets what it was told before. Until then a signal simply ends us.
    await asyncio.sleep(0)
    asked = heard = False

    def stop(*, now: bool) -> None:
        nonlocal asked
        if now:
            _log.info("stopping: running jobs are given back")
        elif not asked:
            notify("STOPPING=1")
            _log.info("stopping: running jobs may finish; a second signal gives them back")
        asked = True
        worker.stop(now=now)

    def hear() -> None:
        # Signals are counted apart from what the parent says: one Ctrl-C reaches us in both ways.
        nonlocal heard
        again, heard = heard, True
        stop(now=again)

    def commanded(pipe: int) -> None:
        command = os.read(pipe, 1)
        if not command:
            loop.remove_reader(pipe)
        stop(now=command == RELEASE)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    if control is not None:
        loop.add_reader(control, commanded, control)
    try:
        await running
    finally:
        unsubscribe()


def _tell_manager(event: Event) -> None:
    match event:
        case WorkerStarted():
            notify("READY=1")
        case DrainRequested():
            notify("STOPPING=1")


def _leave_within(patience: timedelta, *, status: int) -> None:
    """End the process after `patience`, should threads still hold it: a daemon thread runs until the very end."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        return

    def wait() -> None:
        time.sleep(patience.total_seconds())
        _leave(status)

    threading.Thread(target=wait, name="sa_jobqueue exit", daemon=True).start()


def _leave(status: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
