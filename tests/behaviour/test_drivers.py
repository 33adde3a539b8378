"""What an application does in its own session, and a worker on its engine, with each driver of PostgreSQL it may have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
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
    Schedule,
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
from sa_jobqueue.operations import DeadLetterFilter, JobFilter, WorkerFilter, delete_chains, enqueue_payloads
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.settings import QueueSettings, Retention, RetentionRules, TypeSettings
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import quick

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


@queue.handler("take")
def take(document: Any) -> None: ...


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
        second, made = enqueue(session, take.job("a"), deduplicate=Deduplicate("key"))
        found, again = enqueue(session, take.job("b"), deduplicate=Deduplicate("key"))
        assert (made, again, found.id) == (Enqueued.CREATED, Enqueued.EXISTING, second.id)
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


FINDING = {"get_job", "get_chain", "list_jobs", "list_chains", "list_chain_jobs", "list_blockers", "list_blocked_jobs"} | {
    *("trigger_jobs", "reschedule_jobs", "complete_job", "list_dead_letters", "group_dead_letters", "redrive_dead_letters"),
    *("cancel_jobs", "cancel_chains", "delete_chains", "list_queues", "pause_queues", "resume_queues", "delete_queues"),
    *("list_job_types", "pause_job_types", "resume_job_types", "delete_job_types", "list_schedules", "run_schedule"),
    *("pause_schedules", "resume_schedules", "delete_schedules", "list_workers", "drain_workers", "resize_workers"),
    *("list_writes", "list_rejected_rows", "prune_writes", "count_write_chains", "record_job_types"),
}
"""Operations that return something true below."""


def calls(ids: dict[str, Any], done: list[str]) -> dict[str, Callable[[Session], Any]]:
    """Return a call of every operation, by name, in the order in which they make sense."""
    hour = timedelta(hours=1)
    limits: dict[str, Any] = {"global_concurrency": 5, "rate_limit": 100, "rate_period": timedelta(minutes=1)}
    settings, schedule = QueueSettings(name="mail", **limits), Schedule(name="daily", cron="0 3 * * *", type_name="take")
    rules = RetentionRules(default=Retention(completed=timedelta(days=365)))
    dead_letters, workers = DeadLetterFilter(types=["fail"]), WorkerFilter(names=["nobody"])
    return {
        "check_schema": operations.check_schema,
        "after_commit": lambda session: operations.after_commit(session, done.append, "committed"),
        "enqueue": lambda session: enqueue(session, take.job("a"), deduplicate=Deduplicate("a", scope="any", window=hour)),
        "enqueue_many": lambda session: enqueue_many(session, [take.job("a", delay=hour, ordering_key="a")]),
        "enqueue_unique": lambda session: operations.enqueue_unique(session, [(take.job("b"), Deduplicate("b"))]),
        "enqueue_many_unique": lambda session: operations.enqueue_many_unique(session, [(take.job("c"), Deduplicate("c"))]),
        "enqueue_payloads": lambda session: enqueue_payloads(session, take, ["d", "e"]),
        "get_job": lambda session: operations.get_job(session, ids["blocked"]).blocked_by[0].chain.status,
        "get_chain": lambda session: get_chain(session, ids["root"]).jobs,
        "count_blockers": lambda session: operations.count_blockers(session, ids["blocked"]),
        "get_progress": lambda session: operations.get_progress(session, ids["blocked"]),
        "list_jobs": lambda session: list_jobs(session, matching=Job.input["number"].as_integer() == 1).items,
        "list_chains": lambda session: operations.list_chains(session).items,
        "list_chain_jobs": lambda session: operations.list_chain_jobs(session, ids["root"]).items,
        "list_blockers": lambda session: operations.list_blockers(session, ids["blocked"]).items,
        "list_blocked_jobs": lambda session: operations.list_blocked_jobs(session, ids["root"]).items,
        "list_attempts": lambda session: operations.list_attempts(session, ids["dead"]).items,
        "explain_job": lambda session: operations.explain_job(session, ids["blocked"]),
        "set_priority": lambda session: operations.set_priority(session, 3, where=JobFilter(types=["take"])),
        "reschedule_jobs": lambda session: operations.reschedule_jobs(session, [ids["root"]], delay=hour).ids,
        "trigger_jobs": lambda session: operations.trigger_jobs(session, [ids["root"]]).ids,
        "lock_chain": lambda session: operations.lock_chain(session, ids["root"]),
        "complete_job": lambda session: operations.complete_job(session, ids["root"], 7),
        "list_dead_letters": lambda session: operations.list_dead_letters(session, where=dead_letters),
        "group_dead_letters": lambda session: operations.group_dead_letters(session, where=dead_letters),
        "redrive_dead_letters": lambda session: operations.redrive_dead_letters(session, where=dead_letters, by="tester"),
        "dismiss_dead_letters": lambda session: operations.dismiss_dead_letters(session, by="tester"),
        "cancel_jobs": lambda session: cancel_jobs(session, [ids["dead"]]).ids,
        "cancel_chains": lambda session: operations.cancel_chains(session, [ids["blocked"]]).ids,
        "delete_chains": lambda session: delete_chains(session, [ids["dead"]]).ids,
        "upsert_queue": lambda session: operations.upsert_queue(session, settings),
        "sync_queues": lambda session: operations.sync_queues(session, [QueueSettings(name="mail", weight=3)]),
        "get_queue": lambda session: operations.get_queue(session, "mail", for_update=True),
        "list_queues": lambda session: operations.list_queues(session).items,
        "pause_queues": lambda session: operations.pause_queues(session, ["mail"], by="tester").ids,
        "resume_queues": lambda session: operations.resume_queues(session, ["mail"]).ids,
        "delete_queues": lambda session: operations.delete_queues(session, ["mail"]).ids,
        "upsert_job_type": lambda session: operations.upsert_job_type(session, TypeSettings(type_name="take", **limits)),
        "record_job_types": lambda session: operations.record_job_types(session, queue.registry),
        "get_job_type": lambda session: operations.get_job_type(session, "take"),
        "list_job_types": lambda session: operations.list_job_types(session).items,
        "pause_job_types": lambda session: operations.pause_job_types(session, ["take"]).ids,
        "resume_job_types": lambda session: operations.resume_job_types(session, ["take"]).ids,
        "delete_job_types": lambda session: operations.delete_job_types(session, ["take"]).ids,
        "upsert_schedule": lambda session: operations.upsert_schedule(session, schedule),
        "sync_schedules": lambda session: operations.sync_schedules(session, [schedule]),
        "get_schedule": lambda session: operations.get_schedule(session, "daily"),
        "list_schedules": lambda session: operations.list_schedules(session).items,
        "explain_schedule": lambda session: operations.explain_schedule(session, "daily"),
        "fire_schedules": operations.fire_schedules,
        "run_schedule": lambda session: operations.run_schedule(session, "daily"),
        "pause_schedules": lambda session: operations.pause_schedules(session, ["daily"]).ids,
        "resume_schedules": lambda session: operations.resume_schedules(session, ["daily"]).ids,
        "delete_schedules": lambda session: operations.delete_schedules(session, ["daily"]).ids,
        "list_workers": lambda session: operations.list_workers(session, where=workers).items == [],
        "drain_workers": lambda session: operations.drain_workers(session, where=workers).ids == [],
        "resize_workers": lambda session: operations.resize_workers(session, 3, where=workers).ids == [],
        "list_steps": lambda session: operations.list_steps(session, ids["root"]) == [],
        "list_awaited_events": lambda session: operations.list_awaited_events(session) == [],
        "send_event": lambda session: operations.send_event(session, "approved", {"by": "ann"}),
        "list_writes": lambda session: operations.list_writes(session).items == [],
        "list_rejected_rows": lambda session: operations.list_rejected_rows(session, "w").items == [],
        "count_write_chains": lambda session: operations.count_write_chains(session, "w") is None,
        "list_audit": lambda session: operations.list_audit(session).items,
        "prune_audit": lambda session: operations.prune_audit(session, timedelta(0)),
        "prune_writes": lambda session: operations.prune_writes(session, older_than=hour).ids == [],
        "prune": lambda session: operations.prune(session, rules),
        "prune_dead_letters": lambda session: operations.prune_dead_letters(session, rules),
    }


async def test_every_operation_works_in_the_applications_own_session(application: Application, jobs: Jobs) -> None:
    def add(session: Session) -> dict[str, Any]:
        root = note.job(Order(1))
        blocked = total.job(None, blockers=[root])
        session.add_all([root, blocked])
        session.flush()
        return {"root": root.id, "blocked": blocked.id, "dead": jobs.add(JobStatus.DEAD, type_name="fail")}

    ids, done = await application.run(add), list[str]()
    every = calls(ids, done)
    for name, call in every.items():
        try:
            found = await application.run(call)
        except Exception as error:
            error.add_note(f"operation {name}")
            raise
        assert found or name not in FINDING, name
    assert done == ["committed"]


async def test_database_errors_are_translated_to_library_errors(application: Application) -> None:
    taken = uuid4()
    await application.run(lambda session: enqueue_many(session, [take.job("a", id=taken)]))
    with pytest.raises(ConflictError) as conflict:
        await application.run(lambda session: enqueue_many(session, [take.job("b", id=taken)]))
    assert conflict.value.constraint == "pk_job"

    def leap(session: Session) -> None:
        with translated():
            session.execute(update(Job).values(status=JobStatus.DEAD, completed_at=func.now()))

    with pytest.raises(IllegalTransitionError):
        await application.run(leap)


async def test_payloads_are_copied_in_the_callers_transaction(application: Application) -> None:
    def copy(session: Session) -> int:
        return enqueue_payloads(session, take, iter(NASTY), priority=3)

    def back(session: Session) -> None:
        copy(session)
        session.rollback()

    await application.run(back)
    assert await application.run(copy) == len(NASTY)
    stored = await application.run(lambda session: session.execute(select(Job.input, Job.priority).order_by(Job.id)).all())
    assert [row.input for row in stored] == NASTY
    assert {row.priority for row in stored} == {3}
    keyed = {"deduplicate_by": lambda document: f"ä\t{document}"}
    copied = await application.run(lambda session: enqueue_payloads(session, take, ["a", "b", "a"], **keyed))
    again = await application.run(lambda session: enqueue_payloads(session, take, ["b", "c"], **keyed))
    assert (copied, again) == (2, 1)


async def test_an_error_while_copying_payloads_rolls_back_and_is_raised_unchanged(application: Application) -> None:
    def failing() -> Iterator[str]:
        yield from map(str, range(20_000))
        raise LookupError("no more")

    def reading(session: Session) -> Iterator[Any]:
        yield "a"
        yield session.scalar(select(Job.id).limit(1))

    with pytest.raises(LookupError, match="no more"):
        await application.run(lambda session: enqueue_payloads(session, take, failing()))
    with pytest.raises(InvalidPayloadError, match=r"payloads\[1\]"):
        await application.run(lambda session: enqueue_payloads(session, take, ["a", object()]))
    with pytest.raises(JobQueueError, match="connection is busy"):
        await application.run(lambda session: enqueue_payloads(session, take, reading(session)))
    with pytest.raises(InvalidJobError):
        await application.run(lambda session: enqueue_payloads(session, take, ["a"], queue=""))
    assert await application.run(lambda session: session.scalars(select(Job)).all()) == []


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
    assert set(calls({}, [])) == {name for name in operations.__all__ if name[0].islower()}
