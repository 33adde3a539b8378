"""Runs an attempt within its middleware, and checks that each middleware proceeds exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import MiddlewareError
from sa_jobqueue.registry.middleware import Middleware, Proceed, name_of


async def surround(layers: Sequence[Middleware], attempt: AttemptContext, within: Proceed) -> None:
    """Run `within` inside `layers`; the first layer is the outermost.

    A middleware can replace an exception from inside with another one, but cannot suppress it.
    Raises: the exception of `within`, the one that a middleware raised instead, or MiddlewareError for a middleware that did
    not proceed exactly once. When this returns or raises, nothing inside is still running.
    """
    if not layers:
        await within()
        return
    outermost, *inner = layers
    proceed = _Proceed(outermost, lambda: surround(inner, attempt, within))
    try:
        await outermost(attempt, proceed)
    finally:
        await proceed.stop()
    proceed.check()


class _Proceed:
    """The `proceed` function of one middleware."""

    def __init__(self, caller: Middleware, within: Proceed) -> None:
        self._caller = caller
        self._within = within
        self._task: asyncio.Task[object] | None = None
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._fault: str | None = None

    async def __call__(self) -> None:
        if self._task is not None:
            self._fault = "called proceed() twice, but an attempt calls its handler once: raise Retry for another attempt"
            self.check()
        self._task = asyncio.current_task()
        if self._task is not None:  # may be a task that the middleware created and never awaits
            self._task.add_done_callback(_retrieve)
        try:
            await self._within()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Cancel the tasks that a middleware started and did not await."""
        if self._task is not None and not self._ended.is_set():
            self._fault = self._fault or "ended before proceed() did: await it"
            self._task.cancel()
            await self._ended.wait()

    def check(self) -> None:
        """Raise an error for misuse of `proceed`, or the exception that the middleware suppressed."""
        if self._task is None:
            self._fault = "returned without calling proceed(), or without awaiting it"
        if self._fault is not None:
            raise MiddlewareError(name_of(self._caller), self._fault)
        if self._error is not None:
            raise self._error


def _retrieve(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()  # `_Proceed` has it and raises it in `check`
