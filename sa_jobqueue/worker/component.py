"""One background duty of a worker, and the supervisor that keeps it going."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta

from sa_jobqueue.events import ComponentFailed, EventBus
from sa_jobqueue.policies.retry import Backoff

RESTART = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=5))
"""How long a failed duty rests before it starts again: an outage is noticed to be over within seconds."""


class Component(ABC):
    """A duty that runs until it is cancelled. Its docstring says what a crash leaves, and what wakes it."""

    name: str

    @abstractmethod
    async def run(self) -> None:
        """Do the duty until cancelled. Errors are the supervisor's: it tells them, rests, and runs this again."""


async def supervise(component: Component, events: EventBus, *, restart: Backoff = RESTART) -> None:
    """Run a component until it returns or this is cancelled; start it again after every failure.

    A run that lasted longer than the longest rest counts as recovered: the rests start small again.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started = loop.time()
        try:
            await component.run()
        except Exception as error:  # the one place where a duty's failure ends
            if loop.time() - started > restart.cap.total_seconds():
                failures = 0
            failures += 1
            delay = restart(failures, error)
            events.emit(ComponentFailed(component.name, error, delay))
            await asyncio.sleep(delay.total_seconds())
        else:
            return
