"""Coroutine functions behind plain decorators run, and what cannot run is refused with a clear error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import JobQueue, JobStatus
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import Start, until

pytestmark = pytest.mark.every_python


def traced(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


@pytest.mark.parametrize("is_by_fields", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_coroutine_function_under_a_plain_decorator_is_awaited(
    depth: int, is_by_fields: bool, engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = JobQueue()

    async def add(x: int, session: AsyncSession) -> int:
        return x + 1

    func: Any = add
    for _ in range(depth):
        func = traced(func)
    declared: Any = (queue.keyword_handler if is_by_fields else queue.handler)("add", max_attempts=1)(func)
    (job_id,) = enqueue(engine, declared.job(x=1) if is_by_fields else declared.job(1))
    async with start(queue):
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="it has run")
    assert jobs.get(job_id)["output"] == 2


async def test_a_synchronous_handler_that_returns_a_coroutine_fails_with_the_cure(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = JobQueue()

    async def other() -> int:
        return 1

    @queue.handler("lazy", max_attempts=1)
    def lazy() -> Any:
        return other()

    (job_id,) = enqueue(engine, lazy.job())
    async with start(queue):
        await until(lambda: jobs.status(job_id) is JobStatus.DEAD, description="it has failed")
    assert "declare it with `async def`" in jobs.get(job_id)["last_error"]["message"]
