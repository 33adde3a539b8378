"""A worker that has nothing to do asks for little and sleeps between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.events import JobStarted
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.background.rescuer import Rescuer
from sa_jobqueue.worker.claim import arrivals
from sa_jobqueue.worker.claim.claimer import Claimer
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick, until, working


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """Record the statements that look for jobs: `claim` and `catch-up`."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        if statement.startswith("WITH picked"):
            statements.append("claim")
        elif statement.startswith("WITH read"):
            statements.append("catch-up")

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)


async def test_a_late_arrival_is_found_by_the_first_poll_after_its_notification(engine: Engine, asked: list[str]) -> None:
    """It lies behind the cursor: stamped before the worker's last catch-up, which did not see it."""
    queue, claims_seen = JobQueue(), []

    @queue.handler("nothing")
    async def nothing(payload: dict[str, Any]) -> None:
        claims_seen.append(asked.count("claim"))

    async with working(Worker(queue, engine, options=quick(poll_interval=timedelta(seconds=30)))) as log:
        with Session(engine) as session:
            session.add(nothing.job({}))
            session.flush()
            enqueue(engine, nothing.job({}))
            await log.until(JobStarted)
            await until(
                lambda: asked[-2:] == ["catch-up"] * 2, description="it has fallen asleep, all cursors at its last claim"
            )
            asked.clear()
            session.commit()
        await log.until(JobStarted, 2)
    assert claims_seen[1] <= 2  # of lanes that were empty a moment ago, and of what the catch-up found


async def test_a_worker_without_capacity_under_a_limit_does_not_catch_up(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CATCH_UP_EVERY", 1e9)  # so that only being idle has it ask
    queue, statements = JobQueue(), list[str]()

    @queue.handler("test")
    async def nothing() -> None: ...

    def note(_connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        statements.extend(kind for kind in ("limits", "read") if statement.startswith((f"SELECT {kind}.", f"WITH {kind} ")))

    call(engine, upsert_queue, QueueSettings(name="default", global_concurrency=1))
    jobs.add_worker("other:1")
    jobs.add(JobStatus.RUNNING, worker_id="other:1")
    jobs.add()
    event.listen(Engine, "before_cursor_execute", note)
    try:
        async with working(Worker(queue, engine, options=quick(listen=False))):
            await until(lambda: statements.count("limits") > 5, description="it has asked for room")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert statements.count("read") <= 1  # before it first asked


async def test_a_waiting_connection_does_not_wake_the_event_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(engine.url, worker_name="tester", patience=timedelta(seconds=20))
    connection = await connections.listen()
    loop, rests = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noted(delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        rests.append(delay)
        return call_later(delay, *arguments, **options)

    monkeypatch.setattr(loop, "call_later", noted)
    await connection.execute("SELECT pg_sleep(0.3)")
    await connections.close(timedelta(seconds=1))
    assert all(pause >= 20 for pause in rests)


def _enqueued(connection: Connection) -> None:
    connection.execute(text("INSERT INTO job_queue (type_name) VALUES ('test')"))


def _ended(connection: Connection) -> None:
    connection.execute(text("UPDATE job_queue SET status = 'cancelled' WHERE scheduled_at > now()"))


@pytest.mark.parametrize(("claim_number", "arrive"), [(1, _enqueued), (1, _ended), (2, _ended)])
async def test_run_until_idle_finds_work_committed_after_a_claim_that_found_nothing(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, arrive: Callable[[Connection], None], claim_number: int
) -> None:
    """A job, or the end of an awaited chain, without a notification: committed after this claim found nothing."""
    queue, ran, claims = JobQueue(), list[str](), 0

    @queue.handler("test")
    async def note() -> None:
        ran.append("test")

    enqueue(engine, Job("test", blockers=[WaitFor(jobs.add(due_in=3600), "continue")]))
    claim = Claimer.claim

    async def claimed(self: Claimer, connection: AsyncConnection) -> int:
        nonlocal claims
        started = await claim(self, connection)
        claims += 1
        if claims == claim_number:
            with engine.begin() as other:
                arrive(other)
        return started

    monkeypatch.setattr(Claimer, "claim", claimed)
    # The first rescue run of a worker looks for such chains, and might do so in time.
    monkeypatch.setattr(Rescuer, "run", lambda _: asyncio.Event().wait())
    await asyncio.wait_for(Worker(queue, engine, options=quick()).run_until_idle(), 30)
    assert claims > claim_number
    assert ran == ["test"]
