"""One process that serves several databases: shared slots, and one database that cannot be reached."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import ComponentFailed, JobCompleted, WorkerStarted
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from sa_jobqueue.worker import WorkerGroup
from sa_jobqueue.worker.claim.claimer import Claimer
from tests.fixtures.commands import StartWorker
from tests.fixtures.jobs import enqueue
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import PATIENCE, EventLog, quick, until

pytestmark = pytest.mark.every_python


@pytest.fixture
def databases(make_database: MakeDatabase, jobqueue_server: PostgresServer) -> Iterator[list[Engine]]:
    """Give the engines of three databases."""
    engines = [create_engine(make_database(jobqueue_server)) for _ in range(3)]
    yield engines
    for engine in engines:
        engine.dispose()


def count(engine: Engine, condition: str) -> int:
    return int(scalar(engine, f"SELECT count(*) FROM job WHERE {condition}") or 0)


class Watched:
    """A queue whose handler counts how many of its jobs run at the same time, in all databases."""

    def __init__(self) -> None:
        self.jobs: JobQueue[Any] = JobQueue()
        self.running = self.most = 0
        self.order: list[str] = []
        self.release = asyncio.Event()
        self.release.set()

        @self.jobs.handler("work")
        async def work(payload: str) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            self.order.append(payload)
            await self.release.wait()
            await asyncio.sleep(0)
            self.running -= 1


async def stopped(group: WorkerGroup, run: asyncio.Task[None]) -> None:
    group.stop()
    await asyncio.wait_for(run, PATIENCE)


@pytest.mark.slow
async def test_databases_share_the_slots_of_one_process(databases: list[Engine]) -> None:
    watched = Watched()
    for number, engine in enumerate(databases):
        enqueue(engine, *(watched.jobs.job("work", str(number)) for _ in range(30)))
    group = WorkerGroup(watched.jobs, databases, options=quick(concurrency=4))
    await asyncio.wait_for(group.run_until_idle(), PATIENCE)
    assert [count(engine, "status = 'completed'") for engine in databases] == [30] * 3
    assert Counter(watched.order) == {"0": 30, "1": 30, "2": 30}
    assert 1 < watched.most <= 4


async def test_a_slot_that_becomes_free_goes_to_the_database_that_runs_fewer_jobs(
    databases: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, waiting, wait = Watched(), set[Claimer](), Claimer._wait_for_slot

    async def noted(self: Claimer) -> None:
        waiting.add(self)
        await wait(self)

    monkeypatch.setattr(Claimer, "_wait_for_slot", noted)
    first, second, _ = databases
    enqueue(first, *(watched.jobs.job("work", "many") for _ in range(100)))
    group = WorkerGroup(watched.jobs, {first: 1, second: 1}, options=quick(concurrency=1))
    watched.release.clear()
    run = asyncio.create_task(group.run())
    await until(lambda: watched.running == 1, description="the first database has the only slot")
    enqueue(second, watched.jobs.job("work", "few"))
    await until(lambda: len(waiting) == 2, description="the second database waits for it")
    watched.release.set()
    await until(lambda: "few" in watched.order, description="the second database has had a slot")
    assert watched.order.index("few") <= 5
    await stopped(group, run)


async def test_a_database_that_cannot_be_reached_does_not_disturb_the_others(databases: list[Engine]) -> None:
    watched, gone = Watched(), databases[1]
    name, outside = str(gone.url.database), create_engine(gone.url.set(database="postgres"), isolation_level="AUTOCOMMIT")

    def rename(old: str, new: str) -> None:
        gone.dispose()
        with outside.connect() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :old"), {"old": old}
            )
            connection.execute(text(f'ALTER DATABASE "{old}" RENAME TO "{new}"'))

    (job_id,) = enqueue(gone, watched.jobs.job("work", "gone"))
    await asyncio.to_thread(rename, name, f"{name}_gone")
    group = WorkerGroup(watched.jobs, databases, options=quick())
    log = EventLog(group.workers[0])  # all share their events
    run = asyncio.create_task(group.run())
    (failed,) = (await log.until(ComponentFailed))[:1]
    assert failed.component == f"worker of {group.workers[1].database}"
    await log.until(WorkerStarted, 2)
    enqueue(databases[0], watched.jobs.job("work", "first"))
    enqueue(databases[2], watched.jobs.job("work", "third"))
    await log.until(JobCompleted, 2)
    assert not group.vitals.unready
    await asyncio.to_thread(rename, f"{name}_gone", name)
    await log.until(JobCompleted, 3)
    assert {event.job_id for event in log.of(JobCompleted)} >= {job_id}
    await stopped(group, run)
    outside.dispose()


async def test_stopping_a_group_ends_one_that_is_waiting_for_its_database(databases: list[Engine]) -> None:
    watched = Watched()
    nowhere = create_engine(make_url(databases[0].url).set(database="nowhere"))
    group = WorkerGroup(watched.jobs, [databases[0], nowhere], options=quick())
    log = EventLog(group.workers[0])
    run = asyncio.create_task(group.run())
    await log.until(ComponentFailed, 2)
    await stopped(group, run)


@pytest.mark.parametrize(("engines", "message"), [([], "at least one"), ({None: 0}, "from 1 to 100, got 0")])
def test_a_group_needs_engines_and_weights(engines: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        WorkerGroup(JobQueue(), engines)


def test_the_command_serves_all_urls_of_its_variable(databases: list[Engine], start_worker: StartWorker) -> None:
    for engine in databases:
        enqueue(engine, Job("pid", input={}))
    urls = " ".join(engine.url.render_as_string(hide_password=False) for engine in databases)
    process = start_worker("--until-idle", SA_JOBQUEUE_URL=urls)
    assert process.wait(PATIENCE) == 0
    assert [count(engine, "status = 'completed'") for engine in databases] == [1] * 3
