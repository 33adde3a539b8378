"""Runs one synchronous function on whichever session a test has, and one coroutine wherever the test is."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from sa_jobqueue.errors import InvalidOptionError

T = TypeVar("T")


def opened(session: Any) -> Session | AsyncSession:
    """Return the session itself, of a scoped one. Raises: InvalidOptionError for anything else."""
    plain_session = session() if isinstance(session, scoped_session | async_scoped_session) else session
    if not isinstance(plain_session, Session | AsyncSession):
        raise InvalidOptionError("session", f"must be a Session or an AsyncSession, got {session!r}")
    return plain_session


def on_session(session: Any, work: Callable[[Session], T]) -> Any:
    """Return what `work` returns for a session; for an `AsyncSession`, a coroutine of it."""
    plain_session = opened(session)
    return plain_session.run_sync(work) if isinstance(plain_session, AsyncSession) else work(plain_session)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in this thread unless it has a running event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(contextvars.copy_context().run, _run, work).result()


def _run(work: Coroutine[Any, Any, T]) -> T:
    # With a factory the runner leaves the thread's current event loop alone, which is the suite's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)
