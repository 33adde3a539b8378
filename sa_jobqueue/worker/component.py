"""A background component of a worker, and the supervisor that restarts it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from sa_jobqueue.events import ComponentFailed, EventBus
from sa_jobqueue.policies.retry import Backoff

RESTART = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=5))
"""Delays before a failed component restarts: short enough to notice within seconds that an outage is over."""
_REPEATED: Final = 3
"""Failures in a row from which a component keeps failing."""


class Component(ABC):
    """A component that runs until cancelled. Its docstring states the state after a crash, and what wakes it."""

    name: str
    failure: Exception | None = None
    """Its last error, while it fails again and again."""

    @abstractmethod
    async def run(self) -> None:
        """Run until cancelled. The supervisor handles errors: it reports them, waits, and calls this again."""


class Periodic(Component):
    """Calls a function on the loop every few seconds, until it returns True. A crash leaves nothing behind."""

    def __init__(self, name: str, call: Callable[[], object], seconds: float) -> None:
        self.name, self._call, self._seconds = name, call, seconds

    async def run(self) -> None:
        """Call it until cancelled, or until it returns True."""
        while True:
            if self._call() is True:
                return
            await asyncio.sleep(self._seconds)


async def supervise(component: Component, events: EventBus, *, restart: Backoff = RESTART) -> None:
    """Run a component until it returns or this is cancelled; restart it after every failure.

    A run that lasted longer than the longest delay counts as recovered: the delays start again from the shortest.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started = loop.time()
        recovered = loop.call_later(restart.cap.total_seconds(), setattr, component, "failure", None)
        try:
            await component.run()
        except Exception as error:  # the one place where a component's failure ends
            if loop.time() - started > restart.cap.total_seconds():
                failures = 0
            failures += 1
            if failures >= _REPEATED:
                component.failure = error
            delay = restart(failures, error)
            events.emit(ComponentFailed(component.name, error, delay))
            await asyncio.sleep(delay.total_seconds())
        else:
            return
        finally:
            recovered.cancel()
