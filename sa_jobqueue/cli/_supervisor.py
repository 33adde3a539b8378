"""Several worker processes under one parent, which starts again what dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from sa_jobqueue.cli._serving import DRAIN, RELEASE, SUCCESSOR
from sa_jobqueue.cli._systemd import notify
from sa_jobqueue.policies.retry import Backoff

RESTART: Final = Backoff(base=timedelta(milliseconds=500), cap=timedelta(seconds=10), jitter=False)
SETTLED: Final = timedelta(seconds=10)
"""A process that lived this long had started; one that did not counts towards `MOST_FAILURES`."""
MOST_FAILURES: Final = 5
USAGE: Final = 2
"""The exit status of a command that was not understood: trying again would not help."""

_log = logging.getLogger("sa_jobqueue.supervisor")


class Supervisor:
    """Runs one process per command; each is given `--control-fd`, the reading end of a pipe from here, and `--report-fd`,
    the writing end of one to here, by which it tells its worker's id.

    Stops are told through the pipe, not by signals: a terminal or a service manager signals the children as well as us,
    and a child that heard the first signal twice would not drain. A parent that is killed closes the pipes, and
    the children drain and end. A child that ends with status 0 is not replaced. Any other is: at once when it had worked for
    a while and outgrown its memory, else after a growing rest, until it has failed `MOST_FAILURES` times on end at its
    start: then all are stopped.

    `on_death`: called in a thread with the id of a worker whose process died. Nobody else knows that for certain: others
    can but wait until it has been silent for too long.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        *,
        on_death: Callable[[str], None] = lambda worker_id: None,
    ) -> None:
        self._commands = commands
        self._on_death = on_death
        self._environment = dict(environment)
        self._pipes: set[int] = set()
        self._stopping = asyncio.Event()
        self._command: bytes | None = None

    async def run(self) -> int:
        """Run until every process has ended for good; return 0, or the exit status of what failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        statuses = await asyncio.gather(*(self._keep(index, command) for index, command in enumerate(self._commands, 1)))
        return max(statuses)

    def stop(self) -> None:
        """Tell every process to drain; told again, to give running jobs back at once."""
        if not self._stopping.is_set():
            notify("STOPPING=1")
        self._command = RELEASE if self._stopping.is_set() else DRAIN
        self._stopping.set()
        for pipe in self._pipes:
            _tell(pipe, self._command)

    async def _keep(self, number: int, command: Sequence[str]) -> int:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            status = await self._run_once(number, command)
            if status == 0:
                return 0
            if self._stopping.is_set():
                # Told to stop before it could listen, it was ended by the signal itself: nothing had begun.
                is_expected = status == SUCCESSOR or -status in {signal.SIGTERM, signal.SIGINT}
                return 0 if is_expected else _reported(status)
            if status == SUCCESSOR and loop.time() - started > SETTLED.total_seconds():
                _log.info("worker process %d has outgrown its memory limit; starting it again", number)
                failures = 0
                continue
            failures = 1 if loop.time() - started > SETTLED.total_seconds() else failures + 1
            if status == USAGE or failures >= MOST_FAILURES:
                _log.error("worker process %d keeps failing at its start (%s): stopping all", number, _ending(status))
                if not self._stopping.is_set():
                    self.stop()
                return _reported(status)
            delay = RESTART.bound(failures).total_seconds()
            _log.warning("worker process %d %s; starting it again in %.1f s", number, _ending(status), delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            if self._stopping.is_set():
                return 0

    async def _run_once(self, number: int, command: Sequence[str]) -> int:
        reading, writing = os.pipe()
        hearing, telling = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--report-fd", str(telling)),
                *("--control-fd", str(reading)),
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(reading, telling),
            )
        except BaseException:
            os.close(writing)
            os.close(hearing)
            raise
        finally:
            os.close(reading)
            os.close(telling)
        _log.info("worker process %d is pid %d", number, process.pid)
        self._pipes.add(writing)
        try:
            if self._command is not None:
                _tell(writing, self._command)  # told while it was being started
            status = await process.wait()
            if status != 0:
                self._tell_death(hearing)
            return status
        finally:
            self._pipes.discard(writing)
            os.close(writing)
            os.close(hearing)

    def _tell_death(self, hearing: int) -> None:
        os.set_blocking(hearing, False)  # a child of its own may hold the other end
        with suppress(BlockingIOError):
            if worker_id := os.read(hearing, 1000).decode():
                # A daemon: neither its successor nor our own end waits for a database that does not answer.
                threading.Thread(target=self._on_death, args=(worker_id,), name="sa_jobqueue death", daemon=True).start()


def worker_command(*arguments: str) -> list[str]:
    """Return the command that runs `sa-jobqueue worker` on this interpreter."""
    return [sys.executable, "-m", "sa_jobqueue", "worker", *arguments]


def _tell(pipe: int, command: bytes) -> None:
    with suppress(BrokenPipeError):  # it has just ended
        os.write(pipe, command)


def _reported(status: int) -> int:
    return USAGE if status == USAGE else 1


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
