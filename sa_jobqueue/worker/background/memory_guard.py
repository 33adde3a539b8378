"""Stops a worker whose process outgrew its memory limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta

from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.memory import resident_bytes


class MemoryGuard(Component):
    """Watches its own process's memory and reports once when it exceeds the limit. Woken by its timer only."""

    name = "memory guard"

    def __init__(
        self,
        limit: int,
        on_exceeded: Callable[[int], None],
        *,
        held: Callable[[], int] = lambda: resident_bytes(os.getpid()),
        rest: timedelta = timedelta(seconds=1),
    ) -> None:
        self._limit = limit
        self._on_exceeded = on_exceeded
        self._held = held
        self._rest = rest.total_seconds()

    async def run(self) -> None:
        """Check until the limit is exceeded, then return."""
        while True:
            if (held := self._held()) > self._limit:
                self._on_exceeded(held)
                return
            await asyncio.sleep(self._rest)
