"""The threads that sync handlers run in. Their results come back to the loop many at a time.

A `ThreadPoolExecutor` wakes the loop for each result, through a socket: for handlers of a few microseconds that is most
of the cost of a job.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from sa_jobqueue.worker.escapes import contained

T = TypeVar("T")


class Threads:
    """A pool of at most `size` daemon threads, started as needed. Used from the event loop.

    Nothing joins them: a handler that never returns does not keep the process from exiting.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_reported = False
        self._unfinished = 0
        self._threads = 0

    def resize(self, size: int) -> None:
        """Change the maximum number of threads; existing threads stay."""
        self._size = size

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in a thread; immediately if fewer than `size` calls are unfinished."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._unfinished += 1
        if self._threads < min(self._unfinished, self._size):
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}_{self._threads}", daemon=True).start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Let each thread exit after its current call; calls that have not started are dropped."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (queued_call := self._calls.get()) is not None:
            future, call = queued_call
            try:
                self._ended.append((future, call(), None))
            except BaseException as error:
                self._ended.append((future, None, contained(error, of_thread=True)))
            del queued_call, future, call  # not kept until the next one comes
            if not self._is_reported:
                # Cleared before the loop is woken, so that results appended later wake it again.
                self._is_reported = True
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_reported = False
        while self._ended:
            future, result, error = self._ended.popleft()
            self._unfinished -= 1
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
