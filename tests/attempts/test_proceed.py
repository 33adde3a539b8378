"""What surrounds an attempt: registered on a `JobQueue`, run in order, and each proceeds exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sa_jobqueue import AttemptContext, JobQueue
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError, MiddlewareError
from sa_jobqueue.registry.middleware import Middleware, Proceed
from sa_jobqueue.worker.run.middleware import surround

pytestmark = pytest.mark.every_python

ATTEMPT: Any = object()


@pytest.fixture
def calls() -> list[str]:
    """Give the names of the calls, in order."""
    return []


def around(calls: list[str], name: str) -> Middleware:
    async def middleware(attempt: AttemptContext, proceed: Proceed) -> None:
        assert attempt is ATTEMPT
        calls.append(f"{name} in")
        await proceed()
        calls.append(f"{name} out")

    return middleware


def within(calls: list[str], error: BaseException | None = None) -> Proceed:
    async def attempt() -> None:
        calls.append("attempt")
        if error is not None:
            raise error

    return attempt


async def _never(attempt: AttemptContext, proceed: Proceed) -> None: ...


async def _twice(attempt: AttemptContext, proceed: Proceed) -> None:
    await proceed()
    await proceed()


async def _twice_in_silence(attempt: AttemptContext, proceed: Proceed) -> None:
    await asyncio.gather(proceed(), proceed(), return_exceptions=True)


async def _tries_again(attempt: AttemptContext, proceed: Proceed) -> None:
    try:
        await proceed()
    except ValueError:
        await proceed()


@pytest.mark.parametrize(
    ("middleware", "error", "reason", "attempts"),
    [
        (_never, None, "returned without calling proceed", 0),
        (_twice, None, r"called proceed\(\) twice", 1),
        (_twice_in_silence, None, r"called proceed\(\) twice", 1),
        (_tries_again, ValueError(), "raise Retry for another attempt", 1),
    ],
)
async def test_middleware_that_does_not_proceed_exactly_once_fails_the_attempt(
    calls: list[str], middleware: Middleware, error: Exception | None, reason: str, attempts: int
) -> None:
    with pytest.raises(MiddlewareError, match=reason) as caught:
        await surround([middleware], ATTEMPT, within(calls, error))
    assert caught.value.middleware == f"{__name__}:{middleware.__qualname__}"  # type: ignore[attr-defined]
    assert calls.count("attempt") == attempts


async def test_an_attempt_left_running_by_middleware_is_cancelled_first(calls: list[str]) -> None:
    tasks: list[asyncio.Task[None]] = []
    started = asyncio.Event()

    async def attempt() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("ended")

    async def leaves(attempt: AttemptContext, proceed: Proceed) -> None:
        async def go_on() -> None:
            await proceed()

        tasks.append(asyncio.create_task(go_on()))
        await started.wait()

    with pytest.raises(MiddlewareError, match=r"ended before proceed\(\) did: await it"):
        await surround([leaves], ATTEMPT, attempt)
    assert calls == ["ended"]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


# Registration.


def _synchronous(attempt: AttemptContext, proceed: Proceed) -> None: ...


async def _narrow(attempt: AttemptContext) -> None: ...


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (_synchronous, r":_synchronous: middleware is a coroutine function: async def \.\.\.\(attempt, proceed\)"),
        (_narrow, ":_narrow: middleware takes two arguments, attempt and proceed"),
        (7, "builtins:int: middleware is a coroutine function"),
    ],
)
def test_an_invalid_middleware_function_is_refused(func: Any, reason: str) -> None:
    jobs = JobQueue()
    with pytest.raises(InvalidHandlerError, match=reason):
        jobs.middleware(func)
    jobs.handler("a")(lambda: None)
    assert jobs["a"].job_type.middleware == []


def test_a_registry_cannot_be_included_twice_or_in_itself() -> None:
    jobs, feature, other_queue = JobQueue(), JobQueue(), JobQueue()
    jobs.handler("ours")(lambda: None)
    feature.handler("theirs")(lambda: None)
    for registry in (jobs, other_queue):  # also one without handlers
        with pytest.raises(InvalidOptionError, match="jobs: is this registry itself"):
            registry.include(registry)
    jobs.include(feature)
    here = r"jobs: brings 'theirs' \(.*lambda.*\), which is here already: include it once"
    with pytest.raises(InvalidOptionError, match=here):
        jobs.include(feature)
    other_queue.include(feature)  # two applications may share a feature
    other_queue.handler("another")(lambda: None)
    with pytest.raises(InvalidOptionError, match=here):
        jobs.include(other_queue)
    with pytest.raises(InvalidOptionError, match=here):
        feature.include(jobs)
    assert [handler.name for handler in jobs] == ["ours", "theirs"]
    assert [handler.name for handler in feature] == ["theirs"]
