"""Ends a statement of a step that waits for a lock of the session of the same handler.

The handler waits for the step, and the session ends after the handler: PostgreSQL does not see this deadlock, because one of
the two waits in Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import StepBlockedError
from sa_jobqueue.models import JobClass
from sa_jobqueue.statements import sessions
from sa_jobqueue.statements.session_names import session_name

_LOOK_AFTER: Final = 1.0
"""How many seconds a statement of a step may wait before the server is asked for which lock, and again."""


class OwnLocks:
    """Finds statements of steps that wait for sessions of the same attempt, on connections of the worker."""

    def __init__(self, model: JobClass, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._model, self._engine, self._loop = model, engine, loop

    @contextmanager
    def watching(
        self, context: AttemptContext, step: str, waiter: Callable[[], int | None], holders: Callable[[], Collection[int]]
    ) -> Iterator[None]:
        """Within, cancel the statement of the backend `waiter` that waits for one of `holders`. From any thread.

        `step`: of the error. `holders`: backends with open transactions of the attempt, which end after the step.
        Raises: StepBlockedError in place of the error of the cancelled statement.
        """
        is_cancelled: list[bool] = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(_LOOK_AFTER)
                try:
                    if await self._is_blocked(session_name(context.job.id), waiter(), set(holders())):
                        is_cancelled.append(True)  # first, because its error may arrive before the answer
                        await self._cancel(waiter())
                except DBAPIError as error:
                    context.logger.warning("the lock that step %s waits for could not be read: %s", step, error.orig)

        watching = asyncio.run_coroutine_threadsafe(watch(), self._loop)
        try:
            yield
        except Exception as error:
            if not is_cancelled:
                raise
            raise StepBlockedError(step, session_name(context.job.id)) from error
        finally:
            watching.cancel()

    async def _cancel(self, waiter: int | None) -> None:
        async with self._engine.connect() as connection:
            await connection.execute(sessions.cancel_statement(), {"pid": waiter})

    async def _is_blocked(self, name: str, waiter: int | None, holders: set[int]) -> bool:
        """Return whether `waiter` waits for one of `holders`, or behind others that do."""
        if waiter is None or not holders:
            return False
        async with self._engine.connect() as connection:
            rows = {row.pid: row for row in await connection.execute(sessions.lock_waits(self._model))}
            blockers, unread = set[int](), [waiter]
            while unread:
                row: Any = rows.get(unread.pop())
                added = set(() if row is None else row.blockers or ()) - blockers
                blockers |= added
                unread += added
            # Behind a pooler the pid that the driver knows is another session's: the name is not.
            return any(pid in rows and rows[pid].name == name for pid in blockers & holders)
