"""Wait until chains have ended, in asynchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from typing_extensions import TypeVar

from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.models import JobClass
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.types import ChainResult, Progress
from sa_jobqueue.waiting.chains import POLL_INTERVAL
from sa_jobqueue.waiting.listeners import listening_for
from sa_jobqueue.waiting.steps import Access, Answer, ChainOrId, Wait, check_engine, completed

OutT = TypeVar("OutT", default=Any)


async def wait_chain(
    engine: AsyncEngine,
    chain: ChainOrId,
    *,
    timeout: timedelta,
    output: type[OutT] | Handler[Any, OutT, Any] | None = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    on_progress: Callable[[Progress], object] | None = None,
    model: JobClass | None = None,
) -> ChainResult[OutT]:
    """Wait until a chain ends, and return its result.

    `engine`: an `AsyncEngine`. The other parameters, locks and errors: as in `sa_jobqueue.wait_chain`. All waits for chains
    of one queue on one event loop share a connection for notifications.
    """
    check_engine(engine, AsyncEngine, "wait_chain")
    wait = Wait(
        [chain],
        timeout=timeout,
        poll_interval=poll_interval,
        listen=listen,
        output=output,
        model=model,
        field="chain",
        on_progress=on_progress,
    )
    async with aclosing(_results(engine, wait)) as results:
        return completed(await anext(results))


def wait_chains(
    engine: AsyncEngine,
    chains: Iterable[ChainOrId],
    *,
    timeout: timedelta,
    output: type[OutT] | Handler[Any, OutT, Any] | None = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    model: JobClass | None = None,
) -> AsyncIterator[ChainResult[OutT | None]]:
    """Yield the result of each chain as it ends: `async for result in wait_chains(...)`.

    `engine`: an `AsyncEngine`. The other parameters, results and errors: as in `sa_jobqueue.wait_chains`.
    """
    check_engine(engine, AsyncEngine, "wait_chains")
    wait = Wait(chains, timeout=timeout, poll_interval=poll_interval, listen=listen, output=output, model=model)
    return _results(engine, wait)


async def _results(engine: AsyncEngine, wait: Wait) -> AsyncGenerator[ChainResult[Any], None]:
    async with AsyncExitStack() as stack, aclosing(wait.results(_OnLoop(engine, wait.channel, stack))) as results:
        async for result in results:
            yield result


class _OnLoop(Access):
    """Access on an event loop. `stack`: closes the listener at the end."""

    def __init__(self, engine: AsyncEngine, channel: str, stack: AsyncExitStack) -> None:
        self._engine, self._channel, self._stack = engine, channel, stack
        self._notified = asyncio.Event()

    async def ask(self, statement: Executable, parameters: dict[str, Any]) -> Answer:
        try:
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return (await connection.execute(statement, parameters)).all()
        except (DBAPIError, OSError) as error:
            return error

    async def listen(self, payloads: frozenset[str]) -> None:
        listening = listening_for(self._engine.url, self._channel, payloads)
        self._notified = await self._stack.enter_async_context(listening)

    async def rest(self, seconds: float, least: float) -> None:
        await asyncio.sleep(least)
        await waited(self._notified, seconds - least)
        self._notified.clear()
