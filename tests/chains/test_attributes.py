"""Chains and edges as ORM attributes: what leads from a job to its chain, from a chain to its jobs, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, declared_attr, mapped_column, selectinload

from sa_jobqueue import Job, JobMixin, JobStatus
from sa_jobqueue.errors import ReadOnlyError
from tests.fixtures.chains import Chains
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.plans import Plan
from tests.fixtures.transactions import write

DONE, PENDING, DEAD, BLOCKED = JobStatus.COMPLETED, JobStatus.PENDING, JobStatus.DEAD, JobStatus.BLOCKED


class Base(DeclarativeBase):
    """An application's base that gives every table two columns, in the two ways there are."""

    note: Mapped[str | None]

    @declared_attr
    def tenant(cls) -> Mapped[str | None]:
        return mapped_column()


class TextJob(JobMixin[str], Base, queue_schema="shop", queue_prefix="t_"):
    """A queue with a schema, a prefix and text ids."""


class OtherJob(JobMixin, Base, queue_schema="shop", queue_prefix="o_"):
    """Another in the same application."""


class Special(OtherJob):
    """The same queue by another name."""


@both_servers
def test_job_chain_and_chain_jobs_are_related_both_ways(session: Session, chains: Chains) -> None:
    root, middle, last = chains.add(DONE, DONE, DONE, input={"n": 1}, queue="q", deduplication_key="k")
    job = session.get_one(Job, middle)
    chain = job.chain
    assert (chain.id, chain.queue, chain.type_name, chain.input, chain.input_version) == (root, "q", "test", {"n": 1}, 1)
    assert (chain.status, chain.output, chain.error) == (DONE, None, None)
    assert (chain.length, chain.last_job_id, chain.last_type_name, chain.deduplication_key) == (3, last, "test2", "k")
    assert chain.created_at <= chain.completed_at  # type: ignore[operator]
    assert [job.id for job in chain.jobs] == [root, middle, last]
    assert chain.jobs[1] is job
    assert chain.jobs[0].chain is chain
    assert repr(chain) == f"<JobChain {root} test completed>"


@both_servers
def test_the_state_of_a_chain_is_that_of_its_last_job(session: Session, engine: Engine, chains: Chains) -> None:
    finished, _ = chains.add(DONE, DONE)
    died = chains.add(DONE, DEAD)[0]
    alone, open_one = chains.add(DEAD)[0], chains.add(DONE, PENDING)[0]
    write(engine, "UPDATE job SET output = '[7]', last_error = '{\"type\": \"E\"}'")

    def seen(chain_id: Any) -> Any:
        chain = session.get_one(Job, chain_id).chain
        return chain.status, chain.output, chain.error, chain.completed_at is not None, chain.length

    assert seen(finished) == (DONE, [7], None, True, 2)
    assert seen(died) == (DEAD, None, {"type": "E"}, True, 2)
    assert seen(alone) == (DEAD, None, {"type": "E"}, True, 1)
    assert seen(open_one) == (PENDING, None, None, False, 2)


@both_servers
def test_blockers_are_related_both_ways_in_their_order(session: Session, chains: Chains) -> None:
    waited = [chains.add(DONE, DONE)[0], *(chains.add(PENDING)[0] for _ in range(2))]
    waiting = chains.add(BLOCKED)[0]
    chains.block(waiting, *reversed(waited), on_failure="fail")
    job = session.get_one(Job, waiting)
    assert [(edge.index, edge.blocked_by_chain_id) for edge in job.blocked_by] == list(enumerate(reversed(waited)))
    assert [(edge.chain.id, edge.chain.length, edge.on_failure) for edge in job.blocked_by][-1] == (waited[0], 2, "fail")
    assert [edge.job for edge in job.blocked_by[0].chain.blocking] == [job]
    assert job.chain.blocking == []
    assert session.get_one(Job, waited[0]).blocked_by == []


@both_servers
def test_a_new_job_has_its_chain_after_the_flush(session: Session) -> None:
    job = Job("test")
    session.add(job)
    session.flush()
    assert (job.chain.id, job.chain.status, job.chain.jobs) == (job.id, PENDING, [job])
    assert job.blocked_by == []


@both_servers
def test_a_query_loads_chains_and_jobs_with_as_many_statements_as_steps(
    session: Session, engine: Engine, chains: Chains
) -> None:
    for _ in range(5):
        chains.add(DONE, DONE, PENDING)
    waiting = chains.add(BLOCKED)[0]
    chains.block(waiting, *session.scalars(select(Job.id).where(Job.chain_index == 0, Job.id != waiting)))
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    edges = selectinload(Job.blocked_by)
    chained = edges.selectinload(Job.Blocker.chain).selectinload(Job.Chain.jobs)
    (job,) = session.scalars(select(Job).where(Job.id == waiting).options(chained, selectinload(Job.chain)))
    assert [len(edge.chain.jobs) for edge in job.blocked_by] == [3] * 5
    assert job.chain.id == waiting
    assert len(statements) == 5


@both_servers
def test_jobs_can_be_filtered_by_attributes_of_their_chain(session: Session, chains: Chains) -> None:
    chains.add(DONE, DEAD)
    (pending,) = chains.add(PENDING)
    ids = session.scalars(select(Job.id).join(Job.chain).where(Job.Chain.status == PENDING))
    assert list(ids) == [pending]


@both_servers
async def test_an_async_session_loads_chains_by_refresh_or_selectinload(
    async_sessions: async_sessionmaker[AsyncSession], chains: Chains
) -> None:
    root, last = chains.add(DONE, PENDING)
    async with async_sessions() as session:
        job = await session.get_one(Job, last)
        with pytest.raises(StatementError, match="MissingGreenlet"):
            _ = job.chain
        await session.refresh(job, ["chain"])
        assert job.chain.id == root
        assert [one.id for one in await job.chain.awaitable_attrs.jobs] == [root, last]
    async with async_sessions() as session:
        (job,) = await session.scalars(select(Job).where(Job.id == root).options(selectinload(Job.chain)))
        assert job.chain.status is PENDING


@both_servers
def test_chain_objects_are_read_only(session: Session, chains: Chains) -> None:
    (root,) = chains.add(PENDING)
    with pytest.raises(ReadOnlyError, match="add its first job"):
        Job.Chain(id=root)
    chain = session.get_one(Job.Chain, root)
    chain.queue = "other"
    with pytest.raises(ReadOnlyError, match=f"chain {root} is read from a view"):
        session.flush()
    session.rollback()
    session.delete(session.get_one(Job.Chain, root))
    with pytest.raises(ReadOnlyError, match="delete its jobs"):
        session.flush()
    session.rollback()
    with pytest.raises(DBAPIError, match="cannot update view"):
        session.execute(update(Job.Chain).values(queue="other"))


@both_servers
def test_changing_the_relationships_of_a_job_writes_nothing(session: Session, engine: Engine, chains: Chains) -> None:
    """Taken out of a collection, an edge stays; a job that is deleted takes nothing with it."""
    (waited,), (waiting,), (lonely,) = chains.add(PENDING), chains.add(BLOCKED), chains.add(DONE)
    chains.block(waiting, waited)
    job = session.get_one(Job, waiting)
    job.blocked_by.clear()
    job.chain.jobs.clear()
    session.delete(session.get_one(Job, lonely).chain.jobs[0])
    session.commit()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job_blocker WHERE NOT is_resolved")) == 1
        assert connection.scalar(text("SELECT count(*) FROM job")) == 2


@own_database
@both_servers
def test_chain_relationships_work_with_schema_prefix_text_ids_and_two_job_classes(
    session: Session, engine: Engine, make_chains: Callable[[type[Any]], Chains]
) -> None:
    Base.metadata.create_all(engine)
    texts, other_chains = make_chains(TextJob), make_chains(OtherJob)
    root, last = texts.add(DONE, PENDING, id="a", last={"id": "b"})
    other_id, _ = other_chains.add(DONE, DONE)
    (waiting,) = texts.add(BLOCKED, id="c")
    texts.block(waiting, root)
    assert [job.id for job in session.get_one(TextJob, last).chain.jobs] == ["a", "b"]
    assert session.get_one(TextJob, waiting).blocked_by[0].chain.status is PENDING
    special = session.get_one(Special, other_id)
    assert type(special.chain) is OtherJob.Chain
    assert special.chain.status is DONE


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_chain_view_is_in_no_metadata() -> None:
    configure_mappers()
    assert not [name for name in (*Job.metadata.tables, *Base.metadata.tables) if "job_chain" in name]
    assert Special.Chain is OtherJob.Chain
    assert "tenant" not in OtherJob.Chain.__mapper__.columns  # type: ignore[attr-defined]


@pytest.mark.slow
@own_database
@both_servers
def test_loading_a_chain_and_its_jobs_uses_an_index(session: Session, engine: Engine, chains: Chains) -> None:
    """Among many, whatever the table's statistics say: the root by its key, the others by their place in the chain."""
    root, *_ = chains.add(DONE, DONE, PENDING)
    many = "SELECT job_uuid7() AS id FROM generate_series(1, 30000)"
    write(
        engine, f"INSERT INTO job (id, chain_id, type_name, chain_type_name) SELECT id, id, 'a', 'a' FROM ({many}) AS made"
    )
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
    chain = session.get_one(Job, root).chain
    assert len(chain.jobs) == 3
    assert session.scalars(select(Job).where(Job.id == root).options(selectinload(Job.chain).selectinload(Job.Chain.jobs)))
    reads = list(statements)
    for analysed in (False, True):
        if analysed:
            session.execute(text("ANALYZE job"))
        for statement, parameters in reads:
            explained = session.connection().exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
            )
            plan = Plan(explained.scalar_one()[0]["Plan"])
            assert plan.buffers < 60, f"{statement}\n{plan.shape}"
