"""Tasks that are stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sa_jobqueue.db.timeouts import cancelled


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    """As `asyncio.wait_for` loses one before Python 3.12, which psycopg before 3.3.6 calls for every answer."""
    started = asyncio.Event()

    async def loses_the_first() -> None:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    stubborn, prompt = asyncio.create_task(loses_the_first()), asyncio.create_task(asyncio.Event().wait())
    await started.wait()
    await asyncio.wait_for(cancelled(stubborn, prompt, again=0.01), 60)
    assert (stubborn.cancelled(), prompt.cancelled()) == (True, True)


async def test_errors_of_cancelled_tasks_are_ignored() -> None:
    async def fails() -> None:
        raise RuntimeError("anything")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    await cancelled(task)
    await cancelled()
