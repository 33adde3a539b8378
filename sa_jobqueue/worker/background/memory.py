"""How much memory a process holds, the watch over that of a worker, and what its garbage collections walk."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from sa_jobqueue.worker.component import Component

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
CAN_BE_TOLD: Final = Path("/proc/self/statm").exists()
"""Whether this system tells what a process holds; Linux does."""


def resident_bytes(pid: int) -> int:
    """Return how much of a process is in memory, what it shares with others included; 0 where that cannot be told.

    Source: proc(5), statm.
    """
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    return 0


@contextmanager
def frozen() -> Iterator[None]:
    """Leave what is there now out of the process's garbage collections, for the length of a block.

    What was imported and mapped lives as long as the worker. A full collection walks all of it, with the event loop standing
    still: 60 to 100 ms were measured.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class MemoryGuard(Component):
    """Watches what its own process holds, and says once when that is too much. Woken by its rest alone."""

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
        """Look until it is too much, then return."""
        while True:
            if (held := self._held()) > self._limit:
                self._on_exceeded(held)
                return
            await asyncio.sleep(self._rest)
