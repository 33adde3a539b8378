"""Thirty workers on a server with sixty connections: what they cannot have they do without, and no job suffers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, func, select, text

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, WorkerOptions
from sa_jobqueue.errors import DatabaseUnavailableError
from sa_jobqueue.testing.databases import create_schema
from sa_jobqueue.testing.servers import open_server
from tests.fixtures.transactions import call
from tests.fixtures.workers import until

WORKERS, CONNECTIONS, JOBS = 30, 60, 3000

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


async def test_thirty_workers_on_sixty_connections_lose_and_strand_nothing() -> None:
    queue, runs = JobQueue(), Counter[int]()

    @queue.handler("test")
    async def test(number: int) -> None:
        runs[number] += 1
        await asyncio.sleep(0)

    with open_server("newest", settings={"max_connections": str(CONNECTIONS)}) as server:
        engine = create_engine(server.url, poolclass=NullPool)
        create_schema(server.url, Job.metadata)
        call(engine, test.enqueue_many, list(range(JOBS)))
        observer = engine.execution_options(isolation_level="AUTOCOMMIT").connect()  # before the workers have them all
        options = WorkerOptions(concurrency=10, poll_interval=timedelta(milliseconds=200))
        workers = [Worker(queue, engine, options=options) for _ in range(WORKERS)]
        refused = Counter[int]()
        is_over = asyncio.Event()

        async def keep(number: int) -> None:
            """Start a worker again whenever it finds no connection, as a supervisor does."""
            while not is_over.is_set():
                try:
                    await workers[number].run()
                except DatabaseUnavailableError:
                    refused[number] += 1
                    with suppress(TimeoutError):
                        await asyncio.wait_for(is_over.wait(), 0.2)

        running = [asyncio.create_task(keep(number)) for number in range(WORKERS)]

        def left() -> dict[Any, int]:
            statement = select(Job.status, func.count()).group_by(Job.status)
            return {row.status: row[1] for row in observer.execute(statement)}

        await until(lambda: left() == {JobStatus.COMPLETED: JOBS}, description="all jobs have completed")
        is_over.set()
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        assert observer.execute(text("SELECT count(*) FROM worker")).scalar_one() == 0
        observer.close()
    print(f"{WORKERS} workers, {CONNECTIONS} connections: {sum(refused.values())} starts refused, {runs.total()} attempts")
    assert runs.keys() == set(range(JOBS))
