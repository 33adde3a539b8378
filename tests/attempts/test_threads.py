"""Threads of sync handlers: each call begins at once, results come back, nothing begins after the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sa_jobqueue.worker.escapes import EscapedError
from sa_jobqueue.worker.run.threads import Threads

pytestmark = pytest.mark.every_python

PATIENCE = 60.0


async def test_as_many_calls_as_threads_run_at_once() -> None:
    threads = Threads(8, "test")
    for _ in range(3):  # threads that are there already, as well
        together = threading.Barrier(8, timeout=PATIENCE)
        await asyncio.gather(*(threads.run(together.wait) for _ in range(8)))
    threads.close()


async def test_stop_iteration_in_a_thread_is_raised_as_escaped_error() -> None:
    threads = Threads(1, "test")
    with pytest.raises(EscapedError, match="StopIteration"):
        await asyncio.wait_for(threads.run(lambda: next(iter(()))), PATIENCE)
    threads.close()


async def test_calls_not_begun_when_the_threads_are_closed_never_begin() -> None:
    threads = Threads(1, "test")
    is_running, release, begun = threading.Event(), threading.Event(), threading.Event()

    def wait() -> bool:
        is_running.set()
        return release.wait(PATIENCE)

    first = threads.run(wait)
    assert await asyncio.to_thread(is_running.wait, PATIENCE)
    second = threads.run(begun.set)
    threads.close()
    release.set()
    assert await asyncio.wait_for(first, PATIENCE)
    for thread in threading.enumerate():
        if thread.name.startswith("test_"):
            await asyncio.to_thread(thread.join, PATIENCE)
    assert not begun.is_set()
    assert not second.done()
