"""Queues share the slots; a flood in one, or of a priority, keeps nothing else waiting for long."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobQueue, Worker
from tests.fixtures.jobs import Jobs
from tests.fixtures.lanes import fill, recorder
from tests.fixtures.workers import PATIENCE, drain, quick


async def test_without_fair_scheduling_a_flood_of_higher_priority_starts_first(engine: Engine) -> None:
    queue, runs = recorder()
    fill(engine, 300, queue="flood", priority=9)
    fill(engine, 10, queue="few")
    await drain(queue, engine, queues=["flood", "few"], concurrency=20, fair=False)
    assert [name for name, _ in runs[-10:]] == ["few"] * 10


@pytest.mark.slow
@pytest.mark.parametrize("limits", [["a", "b", "c"], {"a": None, "b": 7, "c": 7}], ids=["one claim", "limits of their own"])
async def test_backlogged_queues_share_slots_evenly_as_workers_come_and_go(engine: Engine, limits: Any) -> None:
    queue, runs = recorder()
    for name in ("a", "b", "c"):
        fill(engine, 2000, queue=name)
    enough, half = asyncio.Event(), asyncio.Event()
    workers = [Worker(queue, engine, options=quick(queues=limits, concurrency=21)) for _ in range(2)]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]

    async def watch() -> None:
        while len(runs) < 1800:
            if len(runs) > 600:
                half.set()
            await asyncio.sleep(0.002)
        enough.set()

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(PATIENCE):
        await half.wait()
        workers[0].stop(now=True)
        await enough.wait()
    counts = Counter(name for name, _ in runs[:1800])
    workers[1].stop(now=True)
    await asyncio.wait_for(asyncio.gather(*tasks, watching), PATIENCE)
    # Two workers, each within a claim of its shares.
    assert all(abs(count - next_count) <= 4 * 21 for count, next_count in pairwise(sorted(counts.values()))), counts
    assert len(counts) == 3


async def test_a_job_types_concurrency_leaves_slots_for_other_types(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    running, most, other_types = 0, 0, []
    gate = asyncio.Event()

    @queue.handler("slow", concurrency=2)
    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    @queue.handler("quick")
    async def quick_one() -> None:
        other_types.append(running)
        if len(other_types) == 20:
            gate.set()

    for _ in range(20):
        jobs.add(type_name="slow", due_in=-100)
    for _ in range(20):
        jobs.add(type_name="quick")
    await drain(queue, engine, concurrency=8)
    assert most == 2
    # All of them ran while two slots were held by the type that was there first.
    assert len(other_types) == 20
