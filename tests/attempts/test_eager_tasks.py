"""Attempts begin at once since Python 3.12, and in the application's own tasks where it makes them."""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from typing import Any

from sa_jobqueue.worker.run.executor import _begun

seen: ContextVar[str] = ContextVar("seen", default="nothing")


async def test_a_task_starts_eagerly_in_its_own_context() -> None:
    async def attempt() -> None:
        seen.set("the attempt")
        begun.append(asyncio.current_task())

    begun: list[Any] = []
    task = _begun(asyncio.get_running_loop(), attempt(), "test")
    assert len(begun) == (sys.version_info >= (3, 12))
    await task
    assert begun == [task]
    assert (task.get_name(), seen.get()) == ("test", "nothing")


async def test_the_applications_task_factory_creates_the_task() -> None:
    made: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        made.append(task)
        return task

    async def attempt() -> None: ...

    loop: Any = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        task = _begun(loop, attempt(), "test")
    finally:
        loop.set_task_factory(None)
    await task
    assert made == [task]
