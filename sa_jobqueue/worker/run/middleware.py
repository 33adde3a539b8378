"""Runs an attempt within its middleware, and sees to it that each of them proceeds exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import MiddlewareError
from sa_jobqueue.registry.middleware import Middleware, Proceed, name_of


async def surround(layers: Sequence[Middleware], attempt: AttemptContext, within: Proceed) -> None:
    """Run `within` inside of `layers`, the first of them outermost.

    A failure of what is within is one whatever a middleware makes of it: it may raise something else, not nothing.
    Raises: what is within, what a middleware raised instead, or MiddlewareError for one that did not proceed exactly once.
    When this returns or raises, nothing that was started within is running any more.
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
    """What one middleware calls."""

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
        if self._task is not None:  # perhaps one of the middleware's own, which it may not look at again
            self._task.add_done_callback(_retrieve)
        try:
            await self._within()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End what a middleware has started in a task of its own and did not wait for."""
        if self._task is not None and not self._ended.is_set():
            self._fault = self._fault or "ended before proceed() did: await it"
            self._task.cancel()
            await self._ended.wait()

    def check(self) -> None:
        """Raise what the middleware has done wrong, or what it has kept to itself."""
        if self._task is None:
            self._fault = "returned without calling proceed(), or without awaiting it"
        if self._fault is not None:
            raise MiddlewareError(name_of(self._caller), self._fault)
        if self._error is not None:
            raise self._error


def _retrieve(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()  # kept by `_Proceed`, whose middleware is asked for it
