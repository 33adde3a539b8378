"""Type checker results for waiting for chains. Read by `test_types.py`, not run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import Job, JobQueue, aio, wait_chain, wait_chains
from sa_jobqueue.errors import ChainFailedError
from sa_jobqueue.models import ChainMixin
from sa_jobqueue.types import ChainResult

jobs = JobQueue()
LONG = timedelta(minutes=1)


@dataclass
class Receipt:
    number: int


@jobs.handler("pay")
def pay(order: int) -> Receipt:
    return Receipt(order)


@jobs.handler("collect")
async def collect() -> list[int]:
    return []


def use(engine: Engine, chain: ChainMixin[UUID], chain_id: UUID) -> None:
    assert_type(wait_chain(engine, chain_id, timeout=LONG), ChainResult[Any])
    assert_type(wait_chain(engine, chain, timeout=LONG), ChainResult[Any])
    assert_type(wait_chain(engine, pay.job(7), timeout=LONG, output=Receipt), ChainResult[Receipt])
    assert_type(wait_chain(engine, "text", timeout=LONG, output=pay), ChainResult[Receipt])
    assert_type(wait_chain(engine, chain_id, timeout=LONG, output=collect).output, list[int])
    assert_type(wait_chain(engine, chain_id, timeout=LONG, output=list[int]).output, list[int])
    for result in wait_chains(engine, [chain_id], timeout=LONG, output=pay):
        assert_type(result, ChainResult[Receipt | None])
    wait_chain(engine, chain_id)  # E: Missing named argument "timeout" for "wait_chain"
    wait_chain(engine, 7, timeout=LONG)  # E: Argument 2 to "wait_chain" has incompatible type "int"
    wait_chain(engine, chain_id, timeout=5)  # E: Argument "timeout" to "wait_chain" has incompatible type "int"
    try:
        wait_chain(engine, chain_id, timeout=LONG)
    except ChainFailedError as failed:
        assert_type(failed.result, ChainResult[Any])


async def use_async(engine: AsyncEngine, sync_engine: Engine, job: Job) -> None:
    assert_type(await aio.wait_chain(engine, job, timeout=LONG), ChainResult[Any])
    assert_type(await aio.wait_chain(engine, job.chain_id, timeout=LONG, output=pay), ChainResult[Receipt])
    assert_type((await aio.wait_chain(engine, job, timeout=LONG, output=Receipt)).output, Receipt)
    await aio.wait_chain(sync_engine, job, timeout=LONG)  # E: has incompatible type "Engine"
