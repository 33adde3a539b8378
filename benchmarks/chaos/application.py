"""What every queue runs here: one handler that notes when it ran, a producer at a steady rate, a worker until it is stopped.

Runs in the virtual environments of the others, so it knows nothing but the standard library. What happened is appended to
files, not written to a table: a line that a process has written survives whatever becomes of process, network and server,
and costs no queue a connection. All is on one machine, so the clock of these notes is the server's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, TypedDict
from uuid import uuid4

PATIENCE: Final = 3.0
"""Seconds of silence after which each queue takes a worker for dead, as far as that can be set."""
BEAT: Final = 0.5
CONCURRENCY: Final = 2
"""Jobs at once in a worker: so few that two workers are needed, and none can take everything."""
ATTEMPTS: Final = 10
"""More than any fault uses up; a poison job ends after them."""
DRAIN: Final = 3.0
"""Seconds that a stopping worker has for its jobs."""
FIRST_FAULT: Final = 1_000_000
"""Jobs that are a fault have numbers from here on."""

_TICK_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 2.0


class Work(TypedDict):
    """A job's payload: small, as a reference to something else is."""

    number: int
    kind: str
    seconds: float


Put = Callable[[Work], Awaitable[Any]]
"""Enqueues a job and returns once that is committed."""


class System(ABC):
    """One queue, set up for the best recovery according to its own documentation."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def setup(self) -> None:
        """Create the tables."""

    @abstractmethod
    def producer(self) -> AbstractAsyncContextManager[Put]:
        """Connect, and give what enqueues one job."""

    @abstractmethod
    async def work(self) -> None:
        """Run a worker that calls `handle`, until a signal stops it."""


class Journal:
    """Lines that only grow, of one process."""

    def __init__(self, name: str) -> None:
        path = Path(os.environ["CHAOS_JOURNALS"]) / f"{name}-{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        """Append a line; once it is written, the end of this process does not undo it."""
        line = {"event": event, "at": time.time(), "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


_journal: Journal | None = None


def journal() -> Journal:
    """Return this process's journal of runs."""
    global _journal  # noqa: PLW0603 - handlers are found by name, and have nowhere else to look
    if _journal is None:
        _journal = Journal("runs")
    return _journal


async def handle(work: Work) -> None:
    """Run a job: sleep as long as it says, or be the fault that it is, and note from when to when. Raises: ValueError."""
    run, how = uuid4().hex, "failed"
    journal().write("began", run=run, number=work["number"], kind=work["kind"])
    try:
        match work["kind"]:
            case "poison":
                raise ValueError("this payload cannot be handled")
            case "dies" if _is_first(work["number"]):
                os.kill(os.getpid(), signal.SIGKILL)
            case "blocks" if _is_first(work["number"]):
                time.sleep(work["seconds"])  # noqa: ASYNC251 - that is the fault
            case _:
                await asyncio.sleep(work["seconds"])
        how = "ended"
    finally:
        journal().write("finished", run=run, how=how)


def _is_first(number: int) -> bool:
    try:
        (Path(os.environ["CHAOS_JOURNALS"]) / f"first-{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def work_of(number: int, seed: int) -> Work:
    """Return the payload of a number: the same for a seed. One in 25 takes longer than `PATIENCE`."""
    random = Random(f"{seed}:{number}")
    seconds = random.uniform(4.0, 6.0) if random.random() < 0.04 else random.uniform(0.02, 0.4)
    return {"number": number, "kind": "plain", "seconds": round(seconds, 3)}


def main(system: type[System]) -> None:
    """Set up, produce or work, as the command line says: the main of every script."""
    one = system(os.environ["CHAOS_URL"])
    if "CHAOS_CONTROL_FD" in os.environ:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    match sys.argv[1]:
        case "setup":
            asyncio.run(one.setup())
        case "produce":
            asyncio.run(_produce(one))
        case "work":
            asyncio.run(one.work())


def _end_with_parent() -> None:
    if os.read(int(os.environ["CHAOS_CONTROL_FD"]), 1) == b"":
        os._exit(1)


async def _produce(system: System) -> None:
    """Enqueue `CHAOS_RATE` jobs a second, and each job that a line of the input has until it is acknowledged.

    A job of the steady rate that is not acknowledged in two seconds is given up: whether it is there, the queue knows.
    """
    notes, rate, seed = Journal("enqueued"), float(os.environ["CHAOS_RATE"]), int(os.environ["CHAOS_SEED"])
    owed: list[Work] = []
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(owed.append, json.loads(line))
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=listen, daemon=True).start()
    number, began = 0, time.monotonic()
    while not is_over.is_set():
        # Whatever breaks, a new connection is what any application would try next.
        with suppress(Exception):
            async with asyncio.timeout(_ANSWER_SECONDS) as limit, system.producer() as put:
                while not is_over.is_set():
                    limit.reschedule(loop.time() + _ANSWER_SECONDS)
                    while owed:
                        await put(owed[0])
                        notes.write("enqueued", number=owed[0]["number"], kind=owed.pop(0)["kind"], acknowledged=True)
                    while number < (time.monotonic() - began) * rate:
                        number += 1
                        limit.reschedule(loop.time() + _ANSWER_SECONDS)
                        await _put(put, work_of(number, seed), notes)
                    await asyncio.sleep(_TICK_SECONDS)
        await asyncio.sleep(_TICK_SECONDS)
    os._exit(0)  # pools that still wait for a server must not hold this up


async def _put(put: Put, work: Work, notes: Journal) -> None:
    is_acknowledged = False
    try:
        await put(work)
        is_acknowledged = True
    finally:
        notes.write("enqueued", number=work["number"], kind=work["kind"], acknowledged=is_acknowledged)
