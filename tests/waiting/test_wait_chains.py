"""`wait_chains`, sync and async, yields the result of each chain as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Backoff, Job, JobQueue, JobStatus, Worker, aio, errors, wait_chains
from sa_jobqueue.context import AttemptContext, Continuation
from sa_jobqueue.ids import uuid7
from sa_jobqueue.integrations.embedding import running
from sa_jobqueue.types import ChainResult
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.waits import NEVER, SOON, end, listening
from tests.fixtures.workers import PATIENCE, until

Waiting = Callable[..., AsyncGenerator[ChainResult[Any]]]


@dataclass
class Receipt:
    number: int


@pytest.fixture(params=["sync", "async"])
def results(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> Waiting:
    """Give a function that iterates over results, sync or async."""

    async def call(chains: Iterable[Any], **options: Any) -> AsyncGenerator[ChainResult[Any]]:
        all_options: dict[str, Any] = {"timeout": timedelta(seconds=2 * PATIENCE), "poll_interval": NEVER} | options
        if request.param == "async":
            async for result in aio.wait_chains(async_engine, chains, **all_options):
                yield result
            return
        iterator = wait_chains(engine, chains, **all_options)
        while True:
            async with asyncio.timeout(PATIENCE):
                chain_result = await asyncio.to_thread(lambda: next(iterator, None))
            if chain_result is None:
                return
            yield chain_result

    return call


async def every(
    results: AsyncIterator[ChainResult[Any]], into: list[ChainResult[Any]] | None = None
) -> list[ChainResult[Any]]:
    """Return all results; those that came before an error are in `into`."""
    results_found = [] if into is None else into
    async with asyncio.timeout(PATIENCE):
        async for result in results:
            results_found.append(result)
    return results_found


async def marked(jobs: Jobs, *chain_ids: Any) -> None:
    await until(lambda: all(jobs.get(chain_id)["has_waiters"] for chain_id in chain_ids), description="the marks")


@pytest.mark.slow
async def test_each_result_is_yielded_when_its_chain_ends_whatever_the_order(
    results: Waiting, engine: Engine, jobs: Jobs
) -> None:
    ended, *still_open = jobs.add(JobStatus.COMPLETED), jobs.add(), jobs.add(), jobs.add()
    chain_results = results([*still_open, ended, ended])
    assert (await anext(chain_results)).id == ended
    second = asyncio.create_task(chain_results.__anext__())
    await marked(jobs, *still_open)
    statuses = (JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.COMPLETED)
    for chain_id, status in zip(reversed(still_open), statuses, strict=True):
        end(engine, chain_id, status, output={"n": 1} if status is JobStatus.COMPLETED else None)
        result = await second
        assert (result.id, result.status, result.output is None) == (chain_id, status, status is not JobStatus.COMPLETED)
        second = asyncio.create_task(chain_results.__anext__())
    with pytest.raises(StopAsyncIteration):
        await second
    await until(lambda: not listening(engine), description="the end of the connection")


@pytest.mark.slow
async def test_what_a_script_enqueues_is_waited_for_through_its_retries(
    results: Waiting, engine: Engine, async_engine: AsyncEngine
) -> None:
    queue = JobQueue()

    @queue.handler("pay", retry=Backoff(base=timedelta(milliseconds=1)), max_attempts=2)
    def pay(order: int, ctx: AttemptContext) -> Receipt:
        if (order % 3 == 1 and ctx.job.attempt == 1) or order == 5:
            raise ValueError(order)
        return Receipt(order)

    @queue.handler("order", max_attempts=1)
    def place(order: int, ctx: AttemptContext) -> Continuation[Receipt]:
        return ctx.continue_with(pay, order)

    with Session(engine, expire_on_commit=True) as session, session.begin():
        new_jobs = [place.job(order) for order in range(12)]
        session.add_all(new_jobs)
    async with running(Worker(queue, async_engine)):
        chain_results = await every(results(new_jobs, output=Receipt, poll_interval=timedelta(seconds=2)))
    assert {result.id for result in chain_results} == {job.id for job in new_jobs}
    assert sorted(result.output.number for result in chain_results if result.output) == [*range(5), *range(6, 12)]
    (dead,) = [result for result in chain_results if result.status is JobStatus.DEAD]
    assert (dead.error["message"], dead.output) == ("5", None)


async def test_no_chain_is_waited_for_if_one_is_missing_or_none(results: Waiting, jobs: Jobs, session: Session) -> None:
    assert await every(results([])) == []
    there, missing = jobs.add(JobStatus.COMPLETED), [uuid7(), uuid7()]
    with pytest.raises(errors.NotFoundError) as caught:
        await every(results([there, *missing]))
    assert (caught.value.ids, caught.value.field) == (tuple(missing), "chains")
    root = Job("a")
    session.add(root)
    session.commit()
    continuation = jobs.add(chain_id=root.id, chain_index=1, chain_type_name="a")
    with pytest.raises(errors.NotFoundError, match=f"{continuation} belongs to chain {root.id}"):
        await every(results([there, continuation]))


async def test_a_deleted_chain_and_a_wrong_output_stop_no_others(results: Waiting, jobs: Jobs, engine: Engine) -> None:
    wrong, deleted, last = jobs.add(JobStatus.COMPLETED, output="no receipt"), jobs.add(), jobs.add()
    chain_results: list[ChainResult[Any]] = []
    iterator = results([wrong, deleted, last], output=Receipt, poll_interval=SOON)
    reading = asyncio.create_task(every(iterator, chain_results))
    await marked(jobs, deleted, last)
    write(engine, delete(Job).where(Job.id == deleted))
    end(engine, last, output={"number": 7})
    with pytest.raises(errors.InvalidPayloadError, match="output"):
        await reading
    assert [result.output for result in chain_results] == [Receipt(7)]


async def test_the_timeout_names_a_chain_and_counts_the_others(results: Waiting, jobs: Jobs) -> None:
    ended, *still_open = jobs.add(JobStatus.COMPLETED), jobs.add(), jobs.add(), jobs.add()
    chain_results: list[ChainResult[Any]] = []
    with pytest.raises(errors.ChainTimeoutError, match="nor have 2 others") as caught:
        await every(results([*still_open, ended], timeout=SOON), chain_results)
    assert (chain_results[0].id, caught.value.more_chains, caught.value.chain_id in still_open) == (ended, 2, True)


@pytest.mark.slow
async def test_thousands_of_chains_are_read_in_batches(
    results: Waiting, engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    chains = jobs.add_many(2500)
    with engine.begin() as connection:
        ended = "UPDATE job SET status = 'completed', completed_at = now(), chain_completed_at = now(), leased_by = NULL"
        connection.execute(text(ended))
    statements: list[str] = []

    def count(*arguments: Any) -> None:
        statements.append(arguments[2])

    for target in (engine, async_engine.sync_engine):
        event.listen(target, "before_cursor_execute", count)
    assert {result.id for result in await every(results(chains))} == set(chains)
    assert len(statements) == 3 * 3  # for each batch its ids, the ends and the results; nothing is to be marked


def test_wrong_options_are_refused_before_the_first_result(engine: Engine, async_engine: AsyncEngine) -> None:
    wrong: Any = async_engine
    with pytest.raises(errors.InvalidOptionError, match=r"use sa_jobqueue\.aio\.wait_chains"):
        wait_chains(wrong, [uuid7()], timeout=SOON)
    wrong = engine
    with pytest.raises(errors.InvalidOptionError, match=r"use sa_jobqueue\.wait_chains"):
        aio.wait_chains(wrong, [uuid7()], timeout=SOON)
    with pytest.raises(errors.InvalidOptionError, match="timeout: must be a timedelta"):
        wait_chains(engine, [uuid7()], timeout=5)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOptionError, match="chain: must be a chain, a job or an id"):
        wait_chains(engine, ["x"], timeout=SOON)
