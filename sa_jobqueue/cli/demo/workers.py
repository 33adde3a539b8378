"""Start, kill and stop the demo's worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Final, Self

from sa_jobqueue.cli._options import URL_VARIABLE
from sa_jobqueue.cli._supervisor import worker_command
from sa_jobqueue.errors import JobQueueError

_APP: Final = "sa_jobqueue.cli.demo.app:jobs"
# A short heartbeat timeout, so that viewers of the demo need not wait for the default of fifteen seconds.
_OPTIONS: Final = (
    *("--concurrency", "4"),
    *("--poll-interval", "0.5s"),
    *("--heartbeat-interval", "0.5s"),
    *("--heartbeat-timeout", "3s"),
    *("--rescue-interval", "0.5s"),
    *("--shutdown-timeout", "5s"),
    *("--log-level", "info"),
)
_STOP_PATIENCE: Final = timedelta(seconds=15)
_GRACE: Final = timedelta(milliseconds=50)
_LOG_TAIL: Final = 2_000


class WorkerDiedError(JobQueueError):
    """A worker of the demo exited unexpectedly."""


class Workers:
    """Worker processes that exit when this process ends: each holds the reading end of a pipe."""

    def __init__(self, url: str) -> None:
        # Through the environment, as other users can see arguments. Warnings about old syntax are ignored.
        self._environment = dict(os.environ) | {URL_VARIABLE: url, "PYTHONWARNINGS": "ignore"}
        self._logs: dict[int, IO[bytes]] = {}  # unnamed files, which the system removes
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, int] = {}
        self._killed: set[int] = set()

    @property
    def pids(self) -> list[int]:
        """The ids of all started processes, in order."""
        return list(self._processes)

    def start(self) -> int:
        """Start another worker; return its process id."""
        name = f"demo-{len(self._processes) + 1}"
        log = TemporaryFile()  # noqa: SIM115 - open while the worker runs
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, arguments of ours
                worker_command(_APP, *_OPTIONS, "--name", name, "--control-fd", str(reading)),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(reading,),
            )
        except BaseException:
            os.close(writing)
            log.close()
            raise
        finally:
            os.close(reading)
        self._processes[process.pid] = process
        self._pipes[process.pid] = writing
        self._logs[process.pid] = log
        return process.pid

    def kill(self, pid: int, *, holds_jobs: Callable[[], bool]) -> bool:
        """Kill a worker with SIGKILL if it certainly runs a job; return whether it was killed.

        The process is stopped (SIGSTOP) first, so that its jobs do not change before it dies.
        """
        process = self._processes[pid]
        process.send_signal(signal.SIGSTOP)
        time.sleep(_GRACE.total_seconds())  # the server finishes the statements it has received
        if not holds_jobs():
            process.send_signal(signal.SIGCONT)
            return False
        self._killed.add(pid)
        process.kill()
        process.wait()
        return True

    def check(self) -> None:
        """Check that no worker exited. Raises: WorkerDiedError with the end of its log."""
        for pid, process in self._processes.items():
            status = process.poll()
            if status is not None and pid not in self._killed:
                self._logs[pid].seek(0)
                written = self._logs[pid].read().decode(errors="replace")
                raise WorkerDiedError(f"worker {pid} exited with status {status}\n{written[-_LOG_TAIL:]}".rstrip())

    def stop(self) -> None:
        """Stop every worker: terminate it, and kill it if it does not exit in time."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_PATIENCE.total_seconds()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            if process.poll() is None:
                process.kill()
                process.wait()
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes.clear()
        for log in self._logs.values():
            log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
