"""A session with several databases: jobs are written to the one of the queue's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, Update, create_engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.operations import enqueue_many, enqueue_payloads

JOBS = JobQueue()


@JOBS.handler("bound")
def bound(number: int) -> None: ...


WRITERS: dict[str, Callable[[Session], Any]] = {
    "add": lambda session: session.add(bound.job(1)),
    "handler.enqueue": lambda session: bound.enqueue(session, 1),
    "enqueue_many": lambda session: enqueue_many(session, [bound.job(1)]),
    "enqueue_payloads": lambda session: enqueue_payloads(session, bound, [1]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_job_is_written_where_its_class_is_bound(engine: Engine, writer: str) -> None:
    elsewhere = create_engine("postgresql+psycopg://nowhere.invalid/none")
    with Session(elsewhere, binds={Job: engine}) as session, session.begin():
        WRITERS[writer](session)
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


@pytest.mark.parametrize("writer", ["add", "handler.enqueue", "enqueue_many", "enqueue_payloads"])
def test_a_routing_session_writes_jobs_to_the_primary(engine: Engine, writer: str) -> None:
    replica = create_engine("postgresql+psycopg://replica.invalid/none")

    class Routing(Session):
        def get_bind(self, mapper: Any = None, clause: Any = None, **_: Any) -> Any:
            return engine if self._flushing or isinstance(clause, Update) else replica

    with Routing() as session, session.begin():
        WRITERS[writer](session)
    with Session(engine) as plain:
        assert plain.scalar(select(func.count()).select_from(Job)) == 1
