"""Wait until a chain has ended, in synchronous code."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any, Final, TypeVar, cast, overload

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.types import ChainResult, Progress
from sa_jobqueue.waiting.listeners import Ear
from sa_jobqueue.waiting.steps import Answer, Ask, ChainOrId, Listen, Rest, Wait

OutT = TypeVar("OutT")

POLL_INTERVAL: Final = timedelta(seconds=2)


@overload
def wait_chain(
    engine: Engine,
    chain: ChainOrId,
    *,
    timeout: timedelta,
    output: type[OutT] | Handler[Any, OutT, Any],
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    on_progress: Callable[[Progress], object] | None = None,
    model: type[JobMixin[Any]] | None = None,
) -> ChainResult[OutT]: ...
@overload
def wait_chain(
    engine: Engine,
    chain: ChainOrId,
    *,
    timeout: timedelta,
    output: None = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    on_progress: Callable[[Progress], object] | None = None,
    model: type[JobMixin[Any]] | None = None,
) -> ChainResult[Any]: ...
def wait_chain(
    engine: Engine,
    chain: ChainOrId,
    *,
    timeout: timedelta,
    output: Any = None,
    poll_interval: timedelta = POLL_INTERVAL,
    listen: bool = True,
    on_progress: Callable[[Progress], object] | None = None,
    model: type[JobMixin[Any]] | None = None,
) -> ChainResult[Any]:
    """Wait until a chain ends, and return how; blocks this thread. `aio.wait_chain` is the same for asynchronous code.

    `chain`: a chain's id, a chain, or any job of it; what is not loaded of an object is not loaded now.
    `timeout`: of this wait, by this machine's monotonic clock; above zero. The chain knows nothing of it.
    `output`: the type that the chain's output is made of, or the handler that the chain began or ended with; JSON as it is
    without. `poll_interval`: how long a lost notification can cost, above zero; each look is one short statement.
    `listen`: False opens no connection to hear of the end, and finds it by looking alone: behind a pooler that does
    not keep sessions, for example. `on_progress`: called with each new report that a look finds the chain's running job
    to have made with `AttemptContext.progress`; it must be quick, and what it raises ends the wait. `model`: the queue's
    class; that of the object given, else the ready-made `Job`.

    Never wait in the transaction that enqueues, which no worker can see until it commits, and not in a handler, which
    occupies a worker's slot meanwhile: give the job a blocker, or continue its chain.

    Shape: the result of a chain that completed. Changes: the root's `has_waiters`, so that its end sends a notification.
    Locks: the root, briefly; never waits for it. Between polls no connection of the engine is held; one
    made from its URL listens.
    Raises: ChainFailedError when the chain died or was cancelled; ChainNotFoundError when there is none, or none any
    more; NotAChainError for the id of a continuation; ChainTimeoutError; InvalidPayloadError when the output does not
    fit its type; WrongJobTypeError when the chain neither began nor ended with the handler given as `output`;
    InvalidOptionError. An outage of the database while waiting is waited through.
    """
    if not isinstance(engine, Engine):
        raise InvalidOptionError(
            "engine", f"must be an Engine, got a {type(engine).__name__}: use sa_jobqueue.aio.wait_chain"
        )
    wait = Wait(
        chain,
        timeout=timeout,
        poll_interval=poll_interval,
        listen=listen,
        output=output,
        model=model,
        on_progress=on_progress,
    )
    with closing(Ear(engine.url, wait.channel)) as ear, closing(wait.steps()) as steps:
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return cast("ChainResult[Any]", end.value)
            answer = None
            match step:
                case Ask():
                    answer = _ask(engine, step)
                case Listen():
                    ear.listen(step.payload)
                case Rest():
                    time.sleep(step.least)
                    ear.rest(step.seconds - step.least)


def _ask(engine: Engine, ask: Ask) -> Answer:
    try:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            return connection.execute(ask.statement, ask.parameters).one_or_none()
    except (DBAPIError, OSError) as error:
        return error
