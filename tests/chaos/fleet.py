"""Worker processes, as a service manager keeps them: started again when they die, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sa_jobqueue.cli._supervisor import worker_command

APPLICATION: Final = "tests.chaos.application:jobs"
_ROOT: Final = Path(__file__).parents[2]
_RESTART_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long workers are patient, in seconds: short, so that a few minutes see many faults."""

    heartbeat_interval: float = 0.5
    heartbeat_timeout: float = 3.0
    poll: float = 0.5
    drain: float = 3.0
    grace: float = 1.0

    def arguments(self) -> list[str]:
        """Spell them for the command line."""
        spelled = {
            "heartbeat-interval": self.heartbeat_interval,
            "heartbeat-timeout": self.heartbeat_timeout,
            "poll-interval": self.poll,
            "shutdown-timeout": self.drain,
            "cancel-timeout": self.grace,
        }
        return [part for name, value in spelled.items() for part in (f"--{name}", f"{value}s")]

    @property
    def shutdown_bound(self) -> float:
        """Seconds within which a worker that was asked to stop has ended, whatever the database does.

        The drain, twice the grace and a second, the rest written or given up within a time to live, the last heartbeat.
        """
        return self.drain + 2 * self.grace + 2 * self.heartbeat_timeout + 20


@dataclass
class Slot:
    """One place in the fleet, with any process."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: int
    frozen: bool = False
    expected: bool = False
    """Whether its end was asked for, and a status of 0 is expected."""
    pids: list[int] = field(default_factory=list)


class Fleet:
    """Keeps `size` workers running until it is closed. Worker 0's host has a wall clock that is a year ahead."""

    def __init__(self, *, url: str, record_url: str, size: int, timing: Timing, log_dir: Path, concurrency: int = 8) -> None:
        self._environment = os.environ | {
            "SA_JOBQUEUE_URL": url,
            "CHAOS_RECORD_URL": record_url,
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self.timing = timing
        self._arguments = [APPLICATION, *timing.arguments(), "--concurrency", str(concurrency)]
        self._log_dir = log_dir
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.statuses: list[tuple[int, int]] = []
        """Which process ended, with which status, in order."""
        self.frozen_pids: set[int] = set()
        """Every process that was ever stopped by SIGSTOP."""
        self.slots = [self._start(number) for number in range(size)]
        self._keeper = threading.Thread(target=self._keep, name="chaos fleet", daemon=True)
        self._keeper.start()

    @property
    def pids(self) -> list[int]:
        """Every process there ever was."""
        return [pid for slot in self.slots for pid in slot.pids]

    def signal(self, slot: Slot, number: signal.Signals) -> int:
        """Send a signal to the process in the slot; return the pid."""
        with self._lock:
            if number is signal.SIGSTOP:
                slot.frozen = True
                self.frozen_pids.add(slot.process.pid)
            elif number is signal.SIGCONT:
                slot.frozen = False
            elif number is signal.SIGTERM:
                slot.expected = True
            with suppress(ProcessLookupError):
                slot.process.send_signal(number)
            return slot.process.pid

    def alive(self) -> list[Slot]:
        """Return the slots whose process runs and is not frozen."""
        with self._lock:
            return [slot for slot in self.slots if slot.process.poll() is None and not slot.frozen]

    def close(self) -> list[str]:
        """Stop all, and return what did not stop as it should; a second call does nothing."""
        if self._closing.is_set():
            return []
        self._closing.set()
        self._keeper.join()
        faults: list[str] = []
        for slot in self.slots:
            if slot.frozen:
                self.signal(slot, signal.SIGCONT)
            if slot.process.poll() is None:
                self.signal(slot, signal.SIGTERM)
        deadline = time.monotonic() + self.timing.shutdown_bound
        for slot in self.slots:
            try:
                status = slot.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                faults.append(f"worker {slot.process.pid} did not stop within {self.timing.shutdown_bound:g} s")
                slot.process.kill()
                status = slot.process.wait()
            self.statuses.append((slot.process.pid, status))
            if slot.expected and status != 0:
                faults.append(f"worker {slot.process.pid} ended with status {status} when it was told to stop")
            os.close(slot.pipe)
        return faults

    def _command(self, number: int, control: int) -> tuple[list[str], dict[str, str]]:
        """Return how a worker is started, and its environment; `control` ends with this process."""
        skew = {"CHAOS_CLOCK_SKEW": str(365 * 86_400)} if number == 0 else {}
        command = worker_command(*self._arguments, "--name", f"chaos-{number}", "--control-fd", str(control))
        return command, self._environment | skew

    def _start(self, number: int, before: Slot | None = None) -> Slot:
        reading, writing = os.pipe()
        command, environment = self._command(number, reading)
        try:
            with (self._log_dir / f"worker-{number}.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=_ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                )
        finally:
            os.close(reading)
        if before is None:
            return Slot(number, process, writing, pids=[process.pid])
        os.close(before.pipe)
        before.process, before.pipe, before.frozen, before.expected = process, writing, False, False
        before.pids.append(process.pid)
        return before

    def _keep(self) -> None:
        while not self._closing.wait(_RESTART_SECONDS):
            for slot in self.slots:
                with self._lock:
                    status = slot.process.poll()
                    if status is not None:
                        self.statuses.append((slot.process.pid, status))
                        self._start(slot.number, slot)
