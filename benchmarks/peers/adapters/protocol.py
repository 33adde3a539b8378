"""The requests to a measured system, and its answers: JSON lines over standard input and output.

An adapter is a script that runs in the virtual environment of the system it adapts, so this module knows nothing but
the standard library. The first line it reads are its orders; it says `ready` once it has imported and connected, and
starts at `go`. Its messages then:

- `begin`: the first job is about to be enqueued, or the first handler started
- `end`: the last one; a graceful stop comes after that, and is not measured
- `told`: its notes of each job
- `gone`: it has stopped

`stop`, or the end of its input, ends it early.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

# Answers alone go to standard output: what libraries print there goes where errors go.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
_stopped = threading.Event()

Put = Callable[[int], Awaitable[Any]]
"""Enqueues the job of a number and returns once that is committed."""


class Adapter:
    """One system and its use of the queue at a URL, in the way its own documentation recommends."""

    new_loop = staticmethod(asyncio.new_event_loop)
    """The event loop that its own command line runs on."""

    def __init__(self, url: str, orders: dict[str, Any]) -> None:
        self.url = url
        self.orders = orders

    async def setup(self) -> None:
        """Create the tables."""
        raise NotImplementedError

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Connect, and give what enqueues one job in its own transaction."""
        raise NotImplementedError
        yield

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue a job of each number in the fastest way there is, on connections it opened before, if it can."""
        raise NotImplementedError

    async def work(self, tally: Tally, stop_event: asyncio.Event) -> None:
        """Run a worker until `done`, whose handler calls `seen` with each job's number; stop it gracefully."""
        raise NotImplementedError

    async def steps(self, steps: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Run one job that records so many steps after a first one; call `begin` and `end` before and after them."""
        raise NotImplementedError


def payload(number: int) -> dict[str, Any]:
    """Return the input of a job: of the size that a reference to something else has."""
    return {"number": number, "order_id": f"order-{number:08}"}


def uvloop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop's, for systems whose own command line takes it; asyncio's where it is not installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def say(event: str, **fields: Any) -> None:
    """Write one line to the measuring process, with the time and the CPU seconds this process and its children have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    _answers.write(json.dumps({"event": event, "at": time.monotonic(), "cpu": cpu} | fields) + "\n")
    _answers.flush()


class Tally:
    """Counts handlers that started, in this process and those beside it, and reports the first and the last."""

    def __init__(self, orders: dict[str, Any], end: Callable[[], None]) -> None:
        self._jobs = int(orders["jobs"])
        self._end = end
        self._count = 0
        self._has_begun = False
        self.stamps: list[tuple[int, float]] = []
        self._stamps = self.stamps if orders.get("stamps") else None
        # Workers beside each other share a file of counters, one slot each: no lock, no system call.
        self._others: memoryview | None = None
        self._slot = int(orders.get("slot", 0))
        if path := orders.get("counters"):
            with Path(path).open("r+b") as file:
                self._others = memoryview(mmap(file.fileno(), 0)).cast("q")

    def begin(self) -> None:
        """Note that the first handler has started, for those who count a job later than that."""
        if not self._has_begun:
            self._has_begun = True
            say("begin")

    def __call__(self, number: int) -> None:
        """Note that the handler of a job has started."""
        if self._stamps is not None:
            self._stamps.append((number, time.monotonic()))
        self._count = count = self._count + 1
        if count == 1:
            self.begin()
        total = count
        if self._others is not None:
            self._others[self._slot] = count
            total = sum(self._others)
        if total == self._jobs:
            say("end", jobs=self._jobs)
            self._end()


def main(adapter: type[Adapter]) -> None:
    """Take orders and carry them out: the main of every adapter."""
    orders = json.loads(sys.stdin.readline())
    loop = adapter.new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_carry_out(adapter(orders["url"], orders), orders))
    # Threads that a library left behind must not keep a measured process alive.
    os._exit(0)


async def _carry_out(adapter: Adapter, orders: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    go, stop_event, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                _stopped.set()
            loop.call_soon_threadsafe({"go": go, "stop": stop_event}[line.strip()].set)
        _stopped.set()
        for event in (go, stop_event, over):
            loop.call_soon_threadsafe(event.set)

    threading.Thread(target=listen, daemon=True).start()
    verbs = {
        "setup": _setup,
        "enqueue": _enqueue,
        "fill": _fill,
        "produce": _produce,
        "flood": _flood,
        "work": _work,
        "steps": _steps,
    }
    await verbs[orders["do"]](adapter, orders, go, stop_event)
    say("gone")
    await over.wait()


async def _setup(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    await adapter.setup()


async def _enqueue(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    async with adapter.producer() as enqueue:
        await enqueue(-1)  # connects, compiles, prepares
        say("ready")
        await go.wait()
        say("begin")
        for number in range(orders["jobs"]):
            await enqueue(number)
        say("end", jobs=orders["jobs"])


async def _fill(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    await adapter.enqueue_many(range(-1, 0))
    say("ready")
    await go.wait()
    say("begin")
    await adapter.enqueue_many(range(orders["jobs"]))
    say("end", jobs=orders["jobs"])


async def _produce(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    stamps = []
    async with adapter.producer() as enqueue:
        await enqueue(-1)
        say("ready")
        await go.wait()
        say("begin")
        began = time.monotonic()
        for number in range(orders["jobs"]):
            # A thread's sleep is exact to the tenth of a millisecond; nothing else runs in this process's loop.
            time.sleep(max(0.0, began + number / orders["rate"] - time.monotonic()))  # noqa: ASYNC251
            await enqueue(number)
            stamps.append((number, time.monotonic()))
            if _stopped.is_set():  # a loop that never waits would not see `done`
                break
        say("end", jobs=len(stamps))
    say("told", stamps=stamps)


async def _flood(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    latencies = []
    async with adapter.producer() as enqueue:
        await enqueue(-1)
        say("ready")
        await go.wait()
        rate = orders.get("rate")
        due = time.monotonic()
        while not _stopped.is_set():  # a loop that never waits would not see `done`
            if rate:
                due += 1 / rate
                time.sleep(max(0.0, due - time.monotonic()))  # noqa: ASYNC251
            began = time.perf_counter()
            await enqueue(len(latencies))
            latencies.append(time.perf_counter() - began)
    say("told", latencies=latencies)


async def _work(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    tally = Tally(orders, lambda: loop.call_soon_threadsafe(stop_event.set))
    say("ready")
    await go.wait()
    await adapter.work(tally, stop_event)
    say("told", stamps=tally.stamps)


async def _steps(adapter: Adapter, orders: dict[str, Any], go: asyncio.Event, stop_event: asyncio.Event) -> None:
    say("ready")
    await go.wait()
    await adapter.steps(orders["jobs"], lambda: say("begin"), lambda: say("end", jobs=orders["jobs"]))
