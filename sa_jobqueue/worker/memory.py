"""The memory of a process: reading it, limiting a worker's, and excluding startup objects from garbage collection."""

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
"""Whether this system reports a process's memory; Linux does."""


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory in bytes, including shared pages; 0 if unknown.

    Source: proc(5), statm.
    """
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    return 0


@contextmanager
def frozen() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection for the length of a block.

    Imported modules and mappers live as long as the worker. A full collection walks them all while the event loop stands
    still: 60 to 100 ms were measured.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
