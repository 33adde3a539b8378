"""Run several worker processes under one parent, which restarts those that die."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sa_jobqueue.cli._serving import DRAIN, RELEASE, SUCCESSOR, on_signals
from sa_jobqueue.cli._watchdog import keep_notifying, notify
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.policies.retry import Backoff

RESTART: Final = Backoff(base=timedelta(milliseconds=500), cap=timedelta(seconds=10), jitter=False)
STARTED_AFTER: Final = timedelta(seconds=10)
"""A process that lived this long has started; one that ended earlier counts towards `MOST_FAILURES`."""
MOST_FAILURES: Final = 5
USAGE: Final = 2
"""Exit status of a usage error: a restart would not help."""

_log = logging.getLogger("sa_jobqueue.supervisor")


@dataclass(eq=False)
class Supervisor:
    """Runs one process per command. Each receives `--control-fd`, a socket for commands on which it reports its worker's id.

    Stop commands go through the socket, not by signals: a terminal or a service manager signals the children as well,
    and a child that received the first signal twice would not drain. A child that has not reported its worker's id yet has
    begun nothing and is terminated, since its start can take long. When the parent is killed its sockets close, and the
    children drain and exit. A child that exits with status 0 is not replaced. Others are restarted: immediately if the
    child exceeded its memory limit after some time, else with backoff. After `MOST_FAILURES` consecutive failures at the
    start all children are stopped.

    `on_death`: called in a thread with the id of a worker whose process died. Other processes learn of it only by the
    heartbeat timeout.
    """

    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str]
    on_death: Callable[[str], None] = lambda worker_id: None

    def __post_init__(self) -> None:
        self._processes: dict[socket.socket, Process] = {}
        self._stopping = asyncio.Event()
        self._command: bytes | None = None

    async def run(self, control: int | None = None) -> int:
        """Run until every process has ended and is not restarted; return 0, or the exit status of a failed process.

        `control`: the reading end of a pipe; when it is closed, as it is when the process that has the other end dies, stop.
        """
        on_signals(self.stop)
        if control is not None:
            asyncio.get_running_loop().add_reader(control, self._on_closed, control)
        notifying = asyncio.create_task(keep_notifying())
        try:
            return max(
                await asyncio.gather(*(self._keep(number, command) for number, command in enumerate(self.commands, 1)))
            )
        finally:
            notifying.cancel()

    def _on_closed(self, control: int) -> None:
        asyncio.get_running_loop().remove_reader(control)
        self.stop()

    def stop(self) -> None:
        """Drain every process; on the second call, release running jobs immediately."""
        if not self._stopping.is_set():
            notify("STOPPING=1")
        self._command = RELEASE if self._stopping.is_set() else DRAIN
        self._stopping.set()
        for connection, process in self._processes.items():
            _stop(process, connection, self._command)

    async def _keep(self, number: int, command: Sequence[str]) -> int:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            status = await self._run_once(number, command)
            if status == 0:
                return 0
            if self._stopping.is_set():
                # A signal before its handler was installed ends the process; nothing had begun.
                is_expected = status == SUCCESSOR or -status in {signal.SIGTERM, signal.SIGINT}
                return 0 if is_expected else _reported(status)
            if status == SUCCESSOR and loop.time() - started > STARTED_AFTER.total_seconds():
                _log.info("worker process %d exceeded its memory limit; restarting it", number)
                failures = 0
                continue
            failures = 1 if loop.time() - started > STARTED_AFTER.total_seconds() else failures + 1
            if status == USAGE or failures >= MOST_FAILURES:
                _log.error("worker process %d keeps failing at start (%s); stopping all workers", number, _ending(status))
                if not self._stopping.is_set():
                    self.stop()
                return _reported(status)
            delay = RESTART.bound(failures).total_seconds()
            _log.warning("worker process %d %s; restarting in %.1f s", number, _ending(status), delay)
            await waited(self._stopping, delay)
            if self._stopping.is_set():
                return 0

    async def _run_once(self, number: int, command: Sequence[str]) -> int:
        connection, theirs = socket.socketpair()
        with connection:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--control-fd", str(theirs.fileno())),
                    env=self.environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            _log.info("worker process %d started, pid %d", number, process.pid)
            self._processes[connection] = process
            try:
                if self._command is not None:
                    _stop(process, connection, self._command)  # it was requested while the process was created
                status = await process.wait()
            finally:
                del self._processes[connection]
            if status != 0:
                self._report_death(connection)
            return status

    def _report_death(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # a child of the worker may hold the other end
        with suppress(BlockingIOError, ConnectionError):
            if worker_id := connection.recv(1000).decode():
                # A daemon thread: neither the restart nor our own exit waits for a database that does not answer.
                threading.Thread(target=self.on_death, args=(worker_id,), name="sa_jobqueue death", daemon=True).start()


def worker_command(*arguments: str) -> list[str]:
    """Return the command that runs `sa-jobqueue worker` on this interpreter."""
    return [sys.executable, "-m", "sa_jobqueue", "worker", *arguments]


def _stop(process: Process, connection: socket.socket, command: bytes) -> None:
    if not _has_reported(connection):
        with suppress(ProcessLookupError):
            process.terminate()
    with suppress(ConnectionError):  # the process has just ended
        connection.send(command)


def _has_reported(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except (BlockingIOError, ConnectionError):
        return False


def _reported(status: int) -> int:
    return USAGE if status == USAGE else 1


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
