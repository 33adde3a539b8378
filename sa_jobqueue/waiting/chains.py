"""Wait until chains have ended, in synchronous code."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Engine
from typing_extensions import TypeVar

from sa_jobqueue.db.blocking import blocking_items
from sa_jobqueue.models import JobClass
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.types import ChainResult, Progress
from sa_jobqueue.waiting.listeners import Blocking
from sa_jobqueue.waiting.steps import ChainOrId, Wait, check_engine, completed

OutT = TypeVar("OutT", default=Any)

POLL_INTERVAL: Final = timedelta(seconds=2)


def wait_chain(
    engine: Engine,
    chain: ChainOrId,
    *,
    timeout: timedelta,
    output: type[OutT] | Handler[Any, OutT, Any] | None = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    on_progress: Callable[[Progress], object] | None = None,
    model: JobClass | None = None,
) -> ChainResult[OutT]:
    """Wait until a chain ends, and return its result; blocks this thread. Use `aio.wait_chain` in asynchronous code.

    Do not wait in the transaction that enqueues, because no worker sees the job before the commit, nor in a handler: give
    the job a blocker, or continue its chain.

    `engine`: reads the chain.
    `chain`: a chain's id, a chain, or any of its jobs.
    `timeout`: of this wait, above zero, by this machine's monotonic clock; the chain continues.
    `output`: type of the chain's output, or the handler that the chain starts or ends with; JSON by default.
    `poll_interval`: how long a lost notification can delay the result; above zero.
    `listen`: False only polls, for instance behind a pooler in transaction mode.
    `on_progress`: called with each new `Progress` that a poll finds; an exception ends the wait.
    Changes: the root's `has_waiters`, so that its end sends a notification.
    Locks: the root, briefly; never waits for it. Between polls it uses no connection of the engine; a separate one listens.
    Raises: ChainFailedError if the chain died or was cancelled; NotFoundError, including for the id of a
    continuation; ChainTimeoutError; InvalidPayloadError if the output does not match its type; InvalidOptionError if the
    chain neither starts nor ends with the handler. It waits through outages of the database.
    """
    check_engine(engine, Engine, "aio.wait_chain")
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
    with closing(_results(engine, wait)) as results:
        return completed(next(results))


def wait_chains(
    engine: Engine,
    chains: Iterable[ChainOrId],
    *,
    timeout: timedelta,
    output: type[OutT] | Handler[Any, OutT, Any] | None = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    model: JobClass | None = None,
) -> Iterator[ChainResult[OutT | None]]:
    """Yield the result of each chain as it ends; blocks this thread. Use `aio.wait_chains` in asynchronous code.

    A chain that dies or is cancelled is a result too: its `status` and `error` show it, and its output is None.

    `chains`: ids, chains or jobs; one that is given twice is yielded once.
    `timeout`: for all of them.
    `output`, `poll_interval`, `listen`: as in `wait_chain`, and so is where not to wait.
    Changes, Locks: as `wait_chain`, of each.
    Cost: two or three short statements for each 1,000 open chains, at a notified end or a poll.
    Raises: NotFoundError, before the first result, which name all that are wrong; ChainTimeoutError
    if chains are still open after `timeout`. After all other results: NotFoundError if chains were deleted meanwhile,
    InvalidPayloadError and InvalidOptionError as `wait_chain`, for the first such chain.
    """
    check_engine(engine, Engine, "aio.wait_chains")
    wait = Wait(chains, timeout=timeout, poll_interval=poll_interval, listen=listen, output=output, model=model)
    return _results(engine, wait)


def _results(engine: Engine, wait: Wait) -> Generator[ChainResult[Any], None, None]:
    with closing(Blocking(engine, wait.channel)) as access:
        yield from blocking_items(wait.results(access))
