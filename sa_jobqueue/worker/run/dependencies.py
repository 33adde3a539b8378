"""What handlers are given: what their job waited for, and what providers lend for as long as they run."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, ClaimedJob
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.worker.run.threads import Threads

T = TypeVar("T")


async def load_blockers(engine: AsyncEngine, statement: Executable, job: ClaimedJob, job_type: JobType) -> Blockers[Any]:
    """Return what a job waited for, as `statements.blockers.outcomes` tells it. Raises: UnreadableInputError."""
    async with engine.connect() as connection:
        rows = await connection.execute(statement, {"job_id": job.id})
        outcomes = tuple(BlockerOutcome(*row) for row in rows)
    return Blockers(job_type.decode_blockers([outcome.output for outcome in outcomes]), outcomes)


@contextmanager
def lent(attempt: AttemptContext, job_type: JobType) -> Iterator[dict[str, Any]]:
    """Give a handler's provided arguments by name, in this thread. What the handler raises is raised, come what may."""
    failed: BaseException | None = None
    with ExitStack() as stack:
        given = {name: stack.enter_context(provider.lend(attempt)) for name, provider in job_type.provided.items()}
        try:
            yield given
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed  # a provider must not make a success of it


@asynccontextmanager
async def lent_beside(attempt: AttemptContext, job_type: JobType, threads: Threads) -> AsyncIterator[dict[str, Any]]:
    """Do the same for an asynchronous handler: opened and closed in a thread, for either may block.

    A handler that is cancelled before it began has what was opened for it closed, whenever that is done.
    """
    if not job_type.provided:
        yield {}
        return
    context = contextvars.copy_context()

    def beside(func: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return threads.run(partial(context.run, func, *arguments))

    lending = lent(attempt, job_type)
    opening = beside(lending.__enter__)
    try:
        given = await asyncio.shield(opening)
    except asyncio.CancelledError:

        def close_unused(opened: asyncio.Future[Any]) -> None:
            if opened.exception() is None:
                beside(lending.__exit__, None, None, None).add_done_callback(_heard)

        opening.add_done_callback(close_unused)
        raise
    raised: Any = (None, None, None)
    try:
        yield given
    except BaseException:
        raised = sys.exc_info()
        raise
    finally:
        closing = beside(lending.__exit__, *raised)
        closing.add_done_callback(_heard)  # should this be cancelled: nobody else asks how it ended
        await asyncio.shield(closing)


def _heard(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()
