"""Chains deleted and cancelled in queues of an application's own, and from asynchronous code."""

from __future__ import annotations

from sqlalchemy import Engine, insert, text
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import JobMixin, JobStatus
from sa_jobqueue.operations import cancel_chains, delete_chains
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_schema="app", queue_prefix="t_"):
    pass


@own_database
@both_servers
def test_chains_with_text_ids_are_locked_in_code_point_order(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    jobs = Jobs(engine, TextJob)
    for name in ("a", "B", "ä", "_"):
        jobs.add(id=name)
    jobs.add(JobStatus.RUNNING, id="A", chain_id="a", chain_index=1)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # an edge that came before the trigger
        edge = {"job_id": "A", "blocked_by_chain_id": "B", "index": 0}
        connection.execute(insert(TextJob.Blocker).values(edge))
    with Session(engine) as session, session.begin():
        assert cancel_chains(session, ["ä", "a"], model=TextJob).ids == ["a", "ä"]
        assert delete_chains(session, ["_", "a"], cascade=True, model=TextJob).ids == ["B", "_", "a"]
    assert jobs.statuses() == {"ä": JobStatus.CANCELLED}
