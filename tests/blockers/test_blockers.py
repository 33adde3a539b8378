"""A job starts when the last of its blockers has completed, and receives their outputs and outcomes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import (
    AttemptContext,
    Blockers,
    Deduplicate,
    Discard,
    Enqueued,
    Job,
    JobMixin,
    JobQueue,
    JobStatus,
    enqueue_many,
    get_chain,
    operations,
)
from sa_jobqueue import enqueue as enqueue_once
from sa_jobqueue.context import BlockerOutcome
from sa_jobqueue.errors import InvalidJobError, NotFoundError
from sa_jobqueue.events import JobStarted, JobUnblocked
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import ChainMixin, WaitFor
from sa_jobqueue.operations import cancel_chains, complete_job
from sa_jobqueue.types import DeadReason
from sa_jobqueue.worker.finish.unblocker import Unblocker
from tests.fixtures.chains import chain_of
from tests.fixtures.database import both_servers
from tests.fixtures.handlers import FLAVOURS, HOUR, handle
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain, until

pytestmark = both_servers

DONE, DEAD, PENDING = JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.PENDING
BLOCKED, CANCELLED = JobStatus.BLOCKED, JobStatus.CANCELLED


class Base(DeclarativeBase):
    pass


class OtherJob(JobMixin, Base, queue_prefix="other_"):
    """Another queue, with ids of the same kind."""


@dataclass
class Page:
    number: int


class Types:
    """A queue with a few types: `page` gives one, `merge` counts its blockers, `tolerant` takes failures as well."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.works = True
        self.outcomes: dict[Any, tuple[BlockerOutcome, ...]] = {}

        @self.queue.handler("page")
        def page(n: int) -> Page:
            if not self.works:
                raise Discard("no paper")
            return Page(n)

        @self.queue.handler("late")
        async def late(n: int, ctx: AttemptContext) -> Any:
            return ctx.continue_with(page, n)

        @self.queue.handler("merge")
        async def merge(pages: Blockers[list[Page]], ctx: AttemptContext) -> list[int]:
            self.outcomes[ctx.job.id] = pages.outcomes
            assert not pages.failed
            return [output.number for output in pages.outputs]

        @self.queue.handler("tolerant")
        def tolerant(pages: Blockers[list[Page | None]], ctx: AttemptContext) -> list[int]:
            self.outcomes[ctx.job.id] = pages.outcomes
            return [0 if output is None else output.number for output in pages.outputs]

        @self.queue.handler("top")
        def top(merged: Blockers[list[list[int]]]) -> int:
            return len(merged.outputs)

        @self.queue.handler("gather")
        async def gather(everything: Blockers[Any]) -> Any:
            return everything.outputs

        self.top, self.gather = top, gather
        self.page, self.late, self.merge, self.tolerant = page, late, merge, tolerant


@pytest.fixture
def types() -> Types:
    return Types()


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_blocker_outputs_are_typed_and_ordered_like_the_blockers(engine: Engine, types: Types, flavour: str) -> None:
    outputs: list[Any] = []

    def note(pages: Blockers[tuple[Page, Page, int]]) -> None:
        outputs.append((pages.outputs, [(outcome.type_name, outcome.status, outcome.error) for outcome in pages.outcomes]))

    def sync(payload: str, pages: Blockers[tuple[Page, Page, int]]) -> None:
        note(pages)

    async def asynchronous(payload: str, pages: Blockers[tuple[Page, Page, int]]) -> None:
        note(pages)

    def sync_session(payload: str, pages: Blockers[tuple[Page, Page, int]], session: Session) -> None:
        note(pages)

    async def async_session(payload: str, *, session: AsyncSession, pages: Blockers[tuple[Page, Page, int]]) -> None:
        note(pages)

    @types.queue.handler("count")
    def count() -> int:
        return 7

    functions: list[Any] = [sync, asynchronous, sync_session, async_session]
    join = types.queue.handler("join")(functions[FLAVOURS.index(flavour)])
    last, middle, first = count.job(), types.page.job(1), types.late.job(2)  # their ids are in that order
    enqueue(engine, join.job("x", blockers=[first, middle, last]))
    log = await drain(types.queue, engine)
    expected = [("late", DONE, None), ("page", DONE, None), ("count", DONE, None)]
    assert outputs == [((Page(2), Page(1), 7), expected)]
    assert [event.type_name for event in log.of(JobStarted)][-1] == "join"
    assert len(log.of(JobUnblocked)) == 1


@pytest.mark.slow
async def test_a_job_waits_for_the_whole_of_each_chain(engine: Engine, jobs: Jobs, types: Types) -> None:
    merge = types.merge.job(blockers=[types.late.job(1), types.page.job(2, delay=HOUR)])
    (job_id, last) = enqueue(engine, merge, merge._blockers[1].chain)
    assert (jobs.status(job_id), jobs.get(job_id)["open_blockers"]) == (BLOCKED, 2)
    await drain(types.queue, engine)
    assert (jobs.status(job_id), jobs.get(job_id)["open_blockers"]) == (BLOCKED, 1)
    with Session(engine) as session, session.begin():
        complete_job(session, last, {"number": 5})
        assert session.get_one(Job, job_id).status is PENDING  # at once, in the same transaction
    await drain(types.queue, engine)
    assert jobs.get(job_id)["output"] == [1, 5]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_jobs_may_be_added_in_any_order(engine: Engine, jobs: Jobs, types: Types, order: tuple[int, ...]) -> None:
    page = types.page.job(1)
    middle = types.merge.job(blockers=[page])
    top = types.gather.job(blockers=[middle, page])
    new = [page, middle, top]
    enqueue(engine, *(new[index] for index in order))
    assert [jobs.status(job_id) for job_id in sorted(jobs.statuses())] == [PENDING, BLOCKED, BLOCKED]
    assert jobs.get(max(jobs.statuses()))["open_blockers"] == 2


async def test_a_blocker_is_a_job_a_chain_an_id_or_a_wait(engine: Engine, jobs: Jobs, types: Types) -> None:
    first, second, third = enqueue(engine, *(types.late.job(n) for n in (1, 2, 3)))
    with Session(engine) as session, session.begin():
        chain: ChainMixin[Any] = get_chain(session, first)
        merge = types.merge.job(blockers=[third, chain, WaitFor(session.get_one(Job, second)), types.page.job(4)])
        session.add(merge)
        job_id = merge.id
    await drain(types.queue, engine)
    assert jobs.get(job_id)["output"] == [3, 1, 2, 4]


async def test_a_continuation_object_blocks_as_its_chain_but_its_id_is_refused(engine: Engine, types: Types) -> None:
    (chain_id,) = enqueue(engine, types.page.job(1, delay=HOUR))
    with Session(engine) as session, session.begin():
        complete_job(session, chain_id, types.page.continuation(2))
        (_, second) = get_chain(session, chain_id).jobs
        session.add(types.merge.job(blockers=[second]))
        nested = session.begin_nested()
        session.add(types.merge.job(blockers=[second.id]))
        with pytest.raises(NotFoundError, match=r"blockers\[0\]") as caught:
            session.flush()
        nested.rollback()
        assert f"{second.id} belongs to chain {chain_id}" in str(caught.value)
    await drain(types.queue, engine)
    assert [row.output for row in _of_type(engine, "merge")] == [[2]]


def _of_type(engine: Engine, type_name: str) -> list[Job]:
    with Session(engine) as session:
        return list(session.query(Job).where(Job.type_name == type_name))


def test_a_missing_blocker_is_named_and_nothing_is_written(engine: Engine, jobs: Jobs, types: Types) -> None:
    missing = uuid7()
    with Session(engine) as session, session.begin():
        nested = session.begin_nested()
        session.add(types.merge.job(blockers=[types.page.job(1), missing]))
        with pytest.raises(NotFoundError, match=rf"blockers\[1\]: no such chain: {missing}"):
            session.flush()
        nested.rollback()
        session.add(types.page.job(2))
    assert jobs.count() == 1


def test_circular_blockers_are_refused(engine: Engine, jobs: Jobs, types: Types) -> None:
    first, two, three = uuid7(), uuid7(), uuid7()
    cycle = [types.merge.job(id=job, blockers=[next_]) for job, next_ in [(first, two), (two, three), (three, first)]]
    with Session(engine) as session:
        session.add_all(cycle)
        with pytest.raises(InvalidJobError, match=r"blockers: wait for each other in a cycle: merge .* waits for merge"):
            session.flush()
    with Session(engine) as session:
        session.add(types.merge.job(id=first, blockers=[first]))
        with pytest.raises(InvalidJobError, match=r"blockers\[0\]: is the job's own chain"):
            session.flush()
    with Session(engine) as session, pytest.raises(InvalidJobError, match="cycle"):
        enqueue_many(session, [types.merge.job(id=first, blockers=[two]), types.merge.job(id=two, blockers=[first])])
    assert jobs.count() == 0


async def test_a_savepoint_rollback_undoes_a_blocked_job_and_its_new_blockers(
    engine: Engine, jobs: Jobs, types: Types
) -> None:
    page = types.page.job(1, delay=HOUR)
    with Session(engine) as session, session.begin():
        session.add(page)
        session.flush()
        nested = session.begin_nested()
        session.add(types.merge.job(blockers=[page, types.page.job(2)]))
        session.flush()
        nested.rollback()
        page_id = page.id
    row = jobs.get(page_id)
    assert (jobs.count(), row["has_waiters"], row["status"]) == (1, False, PENDING)


async def test_a_rolled_back_job_added_again_is_pending_if_its_blocker_has_completed(engine: Engine, types: Types) -> None:
    (page_id,) = enqueue(engine, types.page.job(1))
    merge = types.merge.job(blockers=[page_id])
    with Session(engine) as session:
        session.add(merge)
        session.flush()
        assert merge.status is BLOCKED
        session.rollback()
    await drain(types.queue, engine)
    with Session(engine) as session, session.begin():
        session.add(merge)
        session.flush()
        assert (merge.status, merge.open_blockers) == (PENDING, 0)


async def test_enqueue_many_enqueues_jobs_with_their_blockers(engine: Engine, jobs: Jobs, types: Types) -> None:
    pages = [types.page.job(n) for n in range(5)]
    there = types.page.job(5)
    merges = [types.merge.job(blockers=[*pages[:n], there]) for n in range(5)]
    with Session(engine) as session, session.begin():
        session.add(there)
        ids = enqueue_many(session, [*merges, *pages])
    await drain(types.queue, engine)
    assert [jobs.get(job_id)["output"] for job_id in ids[:5]] == [[*range(n), 5] for n in range(5)]


@pytest.mark.slow
async def test_the_search_for_ended_chains_unblocks_each_page_before_reading_the_next(
    engine: Engine, jobs: Jobs, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [types.page.job(n) for n in range(20)]
    with Session(engine) as session, session.begin():
        merge, *waited_for = enqueue_many(session, [types.merge.job(blockers=pages), *pages])
    with monkeypatch.context() as patch:  # a worker that is lost as soon as its jobs have ended
        patch.setattr(Unblocker, "put", lambda *_: None)
        patch.setattr(Unblocker, "search", lambda *_: None)
        lost = asyncio.create_task(drain(types.queue, engine))
        await until(
            lambda: all(jobs.get(page)["status"] == DONE for page in waited_for), description="the ends of all pages"
        )
        lost.cancel()
        await asyncio.wait({lost})
    assert jobs.get(merge)["status"] == BLOCKED
    steps: list[str] = []

    def noted(name: str) -> Callable[[Unblocker], Awaitable[None]]:
        step = getattr(Unblocker, name)

        async def call(unblocker: Unblocker) -> None:
            steps.append(name)
            await step(unblocker)

        return call

    monkeypatch.setattr("sa_jobqueue.worker.finish.unblocker.BATCH", 4)
    for name in ("_find", "flush"):
        monkeypatch.setattr(Unblocker, name, noted(name))
    await drain(types.queue, engine)
    assert jobs.get(merge)["output"] == [*range(20)]
    assert steps[:10] == ["_find", "flush"] * 5


async def test_a_deduplicated_enqueue_adds_blockers_only_when_it_creates_the_job(
    engine: Engine, jobs: Jobs, types: Types
) -> None:
    with Session(engine) as session, session.begin():
        once = Deduplicate("k")
        job, is_new = enqueue_once(session, types.merge.job(blockers=[types.page.job(1)]), deduplicate=once)
        existing, again = enqueue_once(session, types.merge.job(blockers=[types.page.job(2)]), deduplicate=once)
        assert (is_new, again, existing is job) == (Enqueued.CREATED, Enqueued.EXISTING, True)
        assert job.status is BLOCKED
        gathering, _ = operations.enqueue(session, types.gather.job(blockers=[job, types.page.job(3)]), deduplicate="o")
        ids = job.id, gathering.id
    assert jobs.count() == 4  # the page of the one that was found is not there
    call(engine, cancel_chains, [ids[1]])
    await drain(types.queue, engine)
    assert jobs.get(ids[0])["output"] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_continuation_is_blocked_by_existing_and_new_jobs(engine: Engine, types: Types, flavour: str) -> None:
    (old,) = enqueue(engine, types.late.job(1))

    def fork(n: int, ctx: AttemptContext) -> Any:
        return ctx.continue_with(types.merge, None, blockers=[old, *(types.page.job(n + i) for i in range(3))])

    forks = handle(types.queue, flavour, "fork", fork)
    (chain_id,) = enqueue(engine, forks.job(10))
    await drain(types.queue, engine)
    assert chain_of(engine, chain_id).output == [1, 10, 11, 12]
    assert chain_of(engine, chain_id).length == 2


WAITING: list[tuple[Any, JobStatus, list[int] | None]] = [
    ("wait", BLOCKED, None),
    ("fail", DEAD, None),
    ("continue", DONE, [0, 2]),
]
by_policy = pytest.mark.parametrize(("on_failure", "status", "output"), WAITING)


@pytest.mark.slow
@by_policy
@pytest.mark.parametrize("end", ["dies", "is cancelled", "died before"])
async def test_on_failure_of_each_blocker_decides_what_its_failure_does(
    engine: Engine, jobs: Jobs, types: Types, on_failure: Any, status: JobStatus, output: Any, end: str
) -> None:
    page, other_job = types.late.job(1), types.page.job(2, delay=HOUR)
    types.works = False
    page_id, other_id = enqueue(engine, page, other_job)
    if end == "died before":
        await drain(types.queue, engine)
    waiting = types.tolerant.job(blockers=[WaitFor(page_id, on_failure=on_failure), other_id])
    (job_id,) = enqueue(engine, waiting)
    if end == "is cancelled":
        call(engine, cancel_chains, [page_id])
    await drain(types.queue, engine)
    call(engine, complete_job, other_id, {"number": 2})
    await drain(types.queue, engine)
    assert (jobs.status(job_id), jobs.get(job_id)["output"]) == (status, output)
    if status is DEAD:
        (dead_letter,) = jobs.dead_letters(job_id)
        assert dead_letter["reason"] == DeadReason.BLOCKER_FAILED
    if status is DONE:
        failed = CANCELLED if end == "is cancelled" else DEAD
        assert [outcome.status for outcome in types.outcomes[job_id]] == [failed, DONE]
        if failed is DEAD:
            assert types.outcomes[job_id][0].error["message"] == "no paper"


def test_a_blocker_from_another_queues_tables_is_refused(session: Session, types: Types) -> None:
    session.add(types.merge.job(blockers=[OtherJob("x")]))
    with pytest.raises(InvalidJobError, match=r"blockers\[0\]: is a OtherJob, of another Job class"):
        session.flush()


def test_jobs_of_two_databases_are_flushed_together_with_their_blockers(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    other_engine = create_engine(engine.url)  # other connections, as those of another database are
    with Session(binds={Job: engine, OtherJob: other_engine}) as session, session.begin():
        session.add_all([Job("a", blockers=[Job("b")]), OtherJob("c", blockers=[OtherJob("d")])])
    with Session(engine) as session:
        edges = [session.scalars(select(model.Blocker.on_failure)).all() for model in (Job, OtherJob)]
    other_engine.dispose()
    assert edges == [["wait"], ["wait"]]
