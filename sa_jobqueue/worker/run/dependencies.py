"""Dependencies of handlers, open for the duration of the call."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, Final, TypeVar

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.worker.run.threads import Threads

T = TypeVar("T")


_NONE: Final = nullcontext[dict[str, Any]]({})


def open_dependencies(attempt: AttemptContext, job_type: JobType) -> AbstractContextManager[dict[str, Any]]:
    """Return a context manager of a handler's dependencies by name, in this thread. The handler's errors are raised."""
    return _opened(attempt, job_type) if job_type.signature.provided else _NONE


def open_dependencies_in_thread(
    attempt: AttemptContext, job_type: JobType, threads: Threads
) -> AbstractAsyncContextManager[dict[str, Any]]:
    """Do the same for an async handler: opened and closed in a thread, because either may block.

    If a handler is cancelled before it starts, its dependencies are still closed.
    """
    return _opened_in_thread(attempt, job_type, threads) if job_type.signature.provided else _NONE


@contextmanager
def _opened(attempt: AttemptContext, job_type: JobType) -> Iterator[dict[str, Any]]:
    failed: BaseException | None = None
    with ExitStack() as stack:
        dependencies = {
            name: stack.enter_context(provider.open(attempt)) for name, provider in job_type.signature.provided.items()
        }
        try:
            yield dependencies
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed  # a dependency must not turn it into a success


@asynccontextmanager
async def _opened_in_thread(attempt: AttemptContext, job_type: JobType, threads: Threads) -> AsyncIterator[dict[str, Any]]:
    context = contextvars.copy_context()

    def beside(func: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return threads.run(partial(context.run, func, *arguments))

    providing = _opened(attempt, job_type)
    opening = beside(providing.__enter__)
    try:
        dependencies = await asyncio.shield(opening)
    except asyncio.CancelledError:

        def close_unused(opened: asyncio.Future[Any]) -> None:
            if opened.exception() is None:
                beside(providing.__exit__, None, None, None).add_done_callback(_retrieve_exception)

        opening.add_done_callback(close_unused)
        raise
    raised: Any = (None, None, None)
    try:
        yield dependencies
    except BaseException:
        raised = sys.exc_info()
        raise
    finally:
        closing = beside(providing.__exit__, *raised)
        closing.add_done_callback(_retrieve_exception)  # if this is cancelled, no caller awaits the result
        await asyncio.shield(closing)


def _retrieve_exception(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()
