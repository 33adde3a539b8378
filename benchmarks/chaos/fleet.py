"""A queue's processes: workers that are started again when they end, as under a service manager, and a producer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from sqlalchemy import make_url

from benchmarks.chaos.application import CONCURRENCY, FIRST_FAULT, Work
from benchmarks.chaos.systems import System
from benchmarks.peers import environments
from sa_jobqueue.cli._supervisor import worker_command
from tests.chaos.fleet import Fleet, Timing

ROOT: Final = Path(__file__).parents[2]


def environment(system: System, url: str, journals: Path, **more: str) -> dict[str, str]:
    """Return the environment of a script of `workers`."""
    variables = {"CHAOS_URL": url, "CHAOS_JOURNALS": str(journals), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return dict(os.environ) | variables | dict(system.environment) | more


def command(system: System, verb: str) -> list[str]:
    """Return how a script of `workers` is run, on the interpreter that has the system."""
    return [str(environments.python(system.measured)), "-m", system.module, verb]


def setup(system: System, url: str, journals: Path) -> None:
    """Let a system create its tables. Raises: SystemExit."""
    variables = environment(system, url, journals)
    done = subprocess.run(command(system, "setup"), env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{system.name} could not be set up:\n{done.stderr}")


class PeerFleet(Fleet):
    """Keeps a system's workers running; no clock is wrong."""

    def __init__(self, system: System, *, url: str, size: int, timing: Timing, log_dir: Path, journals: Path) -> None:
        self._system = system
        self._variables = environment(system, url, journals)
        self._url = make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        super().__init__(url=url, record_url="", size=size, timing=timing, log_dir=log_dir)

    def restart(self) -> None:
        """Kill all workers, so that all are started again: an operator's last resort."""
        for slot in self.slots:
            self.signal(slot, signal.SIGKILL)

    def _command(self, number: int, control: int) -> tuple[list[str], dict[str, str]]:
        if self._system.measured.environment is None:
            # Ours has a command for it; a script before that would make each start twice as long.
            arguments = ["--concurrency", str(CONCURRENCY), "--control-fd", str(control)]
            started = worker_command(f"{self._system.module}:jobs", *self.timing.arguments(), *arguments)
            return started, self._variables | {"SA_JOBQUEUE_URL": self._url}
        return command(self._system, "work"), self._variables | {"CHAOS_CONTROL_FD": str(control)}


class Producer:
    """A process that enqueues at a steady rate, straight on the server, and the jobs of faults beside that."""

    def __init__(self, system: System, *, url: str, rate: float, seed: int, journals: Path, log: IO[bytes]) -> None:
        variables = environment(system, url, journals, CHAOS_RATE=str(rate), CHAOS_SEED=str(seed))
        self._process = subprocess.Popen(
            command(system, "produce"), env=variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        self._next = FIRST_FAULT

    def add(self, kind: str, count: int, seconds: float = 0.0) -> set[int]:
        """Let jobs of a kind be enqueued; return their numbers at once. They are tried until they are acknowledged."""
        numbers = range(self._next, self._next + count)
        self._next += count
        assert self._process.stdin is not None
        for number in numbers:
            work: Work = {"number": number, "kind": kind, "seconds": seconds}
            self._process.stdin.write(json.dumps(work).encode() + b"\n")
        self._process.stdin.flush()
        return set(numbers)

    def close(self) -> None:
        """Stop; a second call does nothing."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
