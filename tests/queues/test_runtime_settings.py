"""Settings of a queue or a type decide which lanes and types a claim is given, and never what its cursors may pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Engine, Table, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import WorkerFilter, pause_queues, resize_workers, upsert_job_type, upsert_queue
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.settings import QueueSettings, TypeSettings
from sa_jobqueue.worker.background.controls import DEFAULTS, Control, ControlReader, Controls
from sa_jobqueue.worker.claim.arrivals import Arrivals
from sa_jobqueue.worker.claim.division import Division
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.workers import shared

pytestmark = both_servers
PAUSED = Control(is_paused=True)
NARROW = 15
"""How many jobs of a third type a worker may run at once."""


class Slots:
    """Stands for the executor: takes claimed jobs and runs nothing."""

    def __init__(self) -> None:
        self.concurrency, self.running = 10, 0
        self.started: list[ClaimedJob] = []
        self.changed = asyncio.Event()

    def start(self, job: ClaimedJob) -> None:
        self.started.append(job)

    def free_in(self, queue: str) -> int:
        return self.free

    def free_for(self, type_name: str) -> int:
        return min(self.free, NARROW - self.running) if type_name == "narrow" else self.free

    @property
    def free(self) -> int:
        return self.concurrency - self.running


class Driven:
    """The division of a worker's slots, whose claims and settings are controlled by a test."""

    def __init__(self, connections: Connections) -> None:
        self.engine = connections.engine(2)
        self.settings = Controls()
        self.slots = Slots()
        self.connection: AsyncConnection
        queue = JobQueue()
        for name in ("test", "mail"):
            queue.handler(name)(lambda: None)
        queue.handler("narrow", concurrency=NARROW)(lambda: None)
        parts = shared(self.engine, queue, queues=("default", "other"))
        self._division = Division(parts, cast("Any", self.slots), lambda: self.settings)

    def apply(self, *, queues: dict[str, Control] | None = None, types: dict[str, Control] | None = None) -> None:
        of_queues = {QueueKey(name): control for name, control in (queues or {}).items()}
        self.settings = Controls(queues=of_queues, types=types or {})

    async def claim(self) -> set[Any]:
        await self._division.claim(self.connection, was_notified=False)
        claimed, self.slots.started = {job.id for job in self.slots.started}, []
        return claimed


@pytest.fixture
async def driven(engine: Engine) -> AsyncIterator[Driven]:
    new_driven = Driven(Connections(engine.url, worker_name="tester", patience=timedelta(seconds=15)))
    async with new_driven.engine.connect() as new_driven.connection:
        yield new_driven
    await new_driven.engine.dispose()


async def test_a_late_arrival_in_a_paused_queue_is_claimed_as_soon_as_it_is_resumed(
    driven: Driven, engine: Engine, jobs: Jobs
) -> None:
    job_id = uuid7()
    with engine.connect() as slow:
        slow.execute(
            insert(cast("Table", Job.__table__)).values(id=job_id, chain_id=job_id, type_name="test", chain_type_name="test")
        )
        on_time, elsewhere = jobs.add(), jobs.add(queue="other")
        assert await driven.claim() == {on_time, elsewhere}  # both cursors are past the late job's time now
        driven.apply(queues={"default": PAUSED})
        assert await driven.claim() == set()
        slow.commit()
    waits, elsewhere = jobs.add(), jobs.add(queue="other")
    assert await driven.claim() == {elsewhere}
    assert await driven.claim() == set()  # caught up: the watermark has moved on
    driven.apply()
    assert await driven.claim() == {job_id, waits}


async def test_a_type_limit_above_concurrency_applies_when_resized_during_a_claim(
    driven: Driven, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a type shares its lanes with others. When there are more slots, it is claimed alone."""
    keep_up = Arrivals.keep_up

    async def keep_up_late(self: Arrivals, connection: AsyncConnection) -> None:
        await keep_up(self, connection)
        driven.slots.concurrency = 40  # after the claim has begun, before it asks how many slots are free

    for _ in range(45):
        jobs.add(type_name="narrow")
    mail = jobs.add(type_name="mail")
    with monkeypatch.context() as patched:
        patched.setattr(Arrivals, "keep_up", keep_up_late)
        assert len(await driven.claim()) == 10
    driven.slots.running = 10
    claimed = await driven.claim()
    assert mail in claimed
    assert len(claimed) == NARROW - 10 + 1


async def test_runtime_settings_are_reread_only_when_the_workers_own_change(
    driven: Driven, engine: Engine, jobs: Jobs
) -> None:
    controls_seen: list[Controls] = []
    registry = JobQueue()
    registry.handler("send")(lambda: None)
    parts = shared(driven.engine, registry, queues=("mail",))
    reader = ControlReader(parts, on_change=controls_seen.append, is_notified=lambda: True)
    jobs.add_worker(WORKER)
    await reader.read()
    with Session(engine) as session:
        upsert_queue(session, QueueSettings(name="somebody_elses"))
        session.commit()
        await reader.read()
        assert (controls_seen, reader.current.queue("mail"), reader.current.type("send")) == ([], DEFAULTS, DEFAULTS)
        minute = timedelta(minutes=1)
        upsert_queue(
            session,
            QueueSettings(name="mail", weight=3, global_concurrency=2, rate_limit=5, rate_period=minute, rate_burst=9),
        )
        pause_queues(session, ["mail"])
        upsert_job_type(session, TypeSettings(type_name="send", global_concurrency=1))
        resize_workers(session, 4, where=WorkerFilter(ids=[WORKER]))
        session.commit()
    await reader.read()
    await reader.read()
    (changed,) = controls_seen
    assert changed is reader.current
    assert changed.queue("mail") == Control(
        is_paused=True, weight=3, global_concurrency=2, rate_limit=5, rate_period=minute, rate_burst=9
    )
    assert (changed.type("send"), changed.concurrency) == (Control(global_concurrency=1), 4)
    assert (set(changed.paused_queues), set(changed.paused_types)) == ({QueueKey("mail")}, set())
