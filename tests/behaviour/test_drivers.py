"""An application's session, and a worker on its engine, with each driver of PostgreSQL it may have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import Engine, create_engine, func, make_url, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    Backoff,
    Blockers,
    Continuation,
    Deduplicate,
    Enqueued,
    Job,
    JobQueue,
    JobStatus,
    Worker,
    aio,
    cancel_jobs,
    enqueue,
    enqueue_many,
    get_chain,
    list_jobs,
    operations,
    wait_chain,
)
from sa_jobqueue.errors import ConflictError, IllegalTransitionError, InvalidJobError, InvalidPayloadError, JobQueueError
from sa_jobqueue.operations import JobFilter, delete_chains
from sa_jobqueue.operations.transactions import translated
from tests.fixtures.jobs import Jobs
from tests.fixtures.operations import calls, take
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python

T = TypeVar("T")

OPTIONS = {
    "psycopg2": "sslmode=prefer&connect_timeout=10",
    "asyncpg": "ssl=prefer&command_timeout=60&prepared_statement_cache_size=0",
}
NASTY: list[Any] = [
    "tab\t, line\n, \\N, \\., ä, \U0001f600",
    {"": [None, 1.5]},
    *map(str, range(30_000)),
]

PATIENCE = timedelta(seconds=60)

queue = JobQueue()


@dataclass
class Order:
    number: int


@queue.handler("note")
def note(order: Order, session: Session) -> int:
    return int(session.scalar(text("SELECT CAST(:number AS int) + 1"), {"number": order.number}) or 0)


@queue.handler("begin")
async def begin(order: Order, session: AsyncSession, ctx: AttemptContext) -> Continuation[int]:
    await session.execute(text("SELECT 1"))
    return ctx.continue_with(note, order)


@queue.handler("sum")
def total(payload: None, blockers: Blockers[list[int]]) -> int:
    return sum(blockers.outputs)


@queue.handler("fail", retry=Backoff(), max_attempts=1)
def fail(payload: None, session: Session) -> None:
    session.execute(text("SELECT 1 / 0"))


@dataclass
class Application:
    """An engine, and sessions of it whose work is written once."""

    engine: Engine | AsyncEngine

    async def run(self, work: Callable[[Session], T]) -> T:
        if isinstance(self.engine, AsyncEngine):
            async with AsyncSession(self.engine, expire_on_commit=False) as asynchronous, asynchronous.begin():
                return await asynchronous.run_sync(work)
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            return work(session)


@pytest_asyncio.fixture(params=OPTIONS)
async def application(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Application]:
    url = make_url(database_url).set(drivername=f"postgresql+{request.param}").update_query_string(OPTIONS[request.param])
    if request.param == "asyncpg":
        asynchronous = create_async_engine(url)
        yield Application(asynchronous)
        await asynchronous.dispose()
    else:
        engine = create_engine(url)
        yield Application(engine)
        engine.dispose()


async def test_an_application_enqueues_lists_and_changes_jobs_in_its_own_session(application: Application) -> None:
    def add(session: Session) -> list[Any]:
        first = note.job(Order(1))
        session.add(first)
        second, creation = enqueue(session, take.job("a"), deduplicate=Deduplicate("key"))
        existing, again = enqueue(session, take.job("b"), deduplicate=Deduplicate("key"))
        assert (creation, again, existing.id) == (Enqueued.CREATED, Enqueued.EXISTING, second.id)
        many = enqueue_many(session, [take.job([1, "ä"]), take.job(None, delay=None)])
        many.append(take.enqueue(session, {"ä": [1]}, delay=timedelta(hours=1), timeout=timedelta(minutes=1)))
        waiting = total.job(None, blockers=[first])
        session.add(waiting)
        session.flush()
        return [first.id, second.id, *many, waiting.id]

    ids = await application.run(add)
    page = await application.run(lambda session: list_jobs(session, where=JobFilter(ids=ids)))
    assert sorted(job.id for job in page.items) == sorted(ids)
    assert await application.run(lambda session: cancel_jobs(session, ids[1:3]).ids) == ids[1:3]
    assert await application.run(lambda session: get_chain(session, ids[1]).status) is JobStatus.CANCELLED
    deleted = await application.run(lambda session: delete_chains(session, [ids[1]]).ids)
    assert len(deleted) == 1


EMPTY = {"get_progress", "list_attempts", "dismiss_dead_letters", "fire_schedules", "list_workers", "drain_workers"} | {
    *("resize_workers", "list_steps", "list_awaited_events"),
}
"""Operations that find nothing below."""


def finds(name: str, call: Callable[[Callable[..., Any]], Any], session: Session) -> bool:
    """Call an operation, and load attributes that are loaded on access; return whether it found something."""
    outcome = call(partial(getattr(operations, name), session))
    if name == "get_job":
        outcome = outcome.blocked_by[0].chain.status
    elif name == "get_chain":
        outcome = outcome.jobs
    return bool(
        next((getattr(outcome, attribute) for attribute in ("items", "ids") if hasattr(outcome, attribute)), outcome)
    )


@pytest.mark.slow
async def test_every_operation_works_in_the_applications_own_session(application: Application, jobs: Jobs) -> None:
    def add(session: Session) -> dict[str, Any]:
        root = note.job(Order(1))
        blocked = total.job(None, blockers=[root])
        session.add_all([root, blocked])
        session.flush()
        return {"root": root.id, "blocked": blocked.id, "dead": jobs.add(JobStatus.DEAD, type_name="fail")}

    called, completed = set[str](), list[str]()
    for name, call in calls(await application.run(add)).items():
        try:
            if await application.run(partial(finds, name, call)):
                called.add(name)
        except Exception as error:
            error.add_note(f"operation {name}")
            raise
    assert called == calls({}).keys() - EMPTY
    await application.run(lambda session: operations.after_commit(session, completed.append, "committed"))
    assert completed == ["committed"]


async def test_database_errors_are_translated_to_library_errors(application: Application) -> None:
    existing_id = uuid4()
    await application.run(lambda session: enqueue_many(session, [take.job("a", id=existing_id)]))
    with pytest.raises(ConflictError) as conflict:
        await application.run(lambda session: enqueue_many(session, [take.job("b", id=existing_id)]))
    assert conflict.value.constraint == "pk_job"

    def leap(session: Session) -> None:
        with translated():
            session.execute(update(Job).values(status=JobStatus.DEAD, completed_at=func.now()))

    with pytest.raises(IllegalTransitionError):
        await application.run(leap)


@pytest.mark.slow
async def test_payloads_are_copied_in_the_callers_transaction(application: Application) -> None:
    def copy(session: Session) -> int:
        return take.enqueue_many(session, iter(NASTY), priority=3)

    def back(session: Session) -> None:
        copy(session)
        session.rollback()

    await application.run(back)
    assert await application.run(copy) == len(NASTY)
    stored = await application.run(lambda session: session.execute(select(Job.input, Job.priority).order_by(Job.id)).all())
    assert [row.input for row in stored] == NASTY
    assert {row.priority for row in stored} == {3}
    keyed: dict[str, Any] = {"deduplicate_by": lambda document: f"ä\t{document}"}
    copied = await application.run(lambda session: take.enqueue_many(session, ["a", "b", "a"], **keyed))
    again = await application.run(lambda session: take.enqueue_many(session, ["b", "c"], **keyed))
    assert (copied, again) == (2, 1)


async def test_an_error_while_copying_payloads_rolls_back_and_is_raised_unchanged(application: Application) -> None:
    cause = ValueError("the cause")

    def failing() -> Iterator[str]:
        yield from map(str, range(20_000))
        raise LookupError("no more", "x" * 20_000) from cause  # the server refuses the text of a longer one

    def reading(session: Session) -> Iterator[Any]:
        yield "a"
        yield session.scalar(select(Job.id).limit(1))

    with pytest.raises(LookupError, match="no more") as caught:
        await application.run(lambda session: take.enqueue_many(session, failing()))
    assert caught.value.__cause__ is cause
    with pytest.raises(InvalidPayloadError, match=r"payloads\[1\]"):
        await application.run(lambda session: take.enqueue_many(session, ["a", object()]))
    with pytest.raises(JobQueueError, match="connection is busy"):
        await application.run(lambda session: take.enqueue_many(session, reading(session)))
    with pytest.raises(InvalidJobError):
        await application.run(lambda session: take.enqueue_many(session, ["a"], queue=""))
    assert await application.run(lambda session: session.scalars(select(Job)).all()) == []


@pytest.mark.slow
async def test_a_worker_on_the_applications_engine_runs_handlers_of_both_kinds(application: Application) -> None:
    def add(session: Session) -> tuple[Any, Any]:
        chains = [begin.job(Order(number)) for number in range(3)]
        last, bad = total.job(None, blockers=chains), fail.job(None)
        session.add_all([*chains, last, bad])
        session.flush()
        return last.id, bad.id

    last, bad = await application.run(add)
    await Worker(queue, application.engine, options=quick()).run_until_idle()
    if isinstance(application.engine, AsyncEngine):
        result = await aio.wait_chain(application.engine, last, timeout=PATIENCE)
    else:
        result = wait_chain(application.engine, last, timeout=PATIENCE)
    assert result.output == 1 + 2 + 3
    assert await application.run(lambda session: get_chain(session, bad).status) is JobStatus.DEAD


def test_every_operation_is_tested_with_each_driver() -> None:
    assert {*calls({}), "after_commit"} == {name for name in operations.__all__ if name[0].islower()}
