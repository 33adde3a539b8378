"""What holds locks until its transaction ends is refused on a connection in AUTOCOMMIT, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Deduplicate, Job, JobStatus, aio, enqueue, enqueue_many
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import complete_job, delete_chains
from tests.fixtures.jobs import Jobs


def add(session: Session, job_id: Any) -> None:
    session.add(Job(type_name="waits", blockers=[job_id]))
    session.flush()


CALLS: dict[str, Callable[[Session, Any], object]] = {
    "add": add,
    "enqueue_many": lambda session, job_id: enqueue_many(session, [Job(type_name="waits", blockers=[job_id])]),
    "enqueue": lambda session, job_id: enqueue(session, Job(type_name="once"), deduplicate=Deduplicate("key")),
    "enqueue_many by key": lambda session, job_id: enqueue_many(
        session, [Job(type_name="once")], deduplicate_by=lambda _: "key"
    ),
    "complete_job": complete_job,
    "delete_chains": lambda session, job_id: delete_chains(session, [job_id]),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations_that_hold_locks_are_refused_in_autocommit(engine: Engine, jobs: Jobs, name: str) -> None:
    job_id = jobs.add()
    session = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with session, pytest.raises(InvalidOptionError, match=r"is in AUTOCOMMIT, and .* needs a transaction: use an engine"):
        CALLS[name](session, job_id)
    assert jobs.statuses() == {job_id: JobStatus.PENDING}


async def test_operations_that_hold_locks_are_refused_on_autocommit_async_sessions(
    async_engine: AsyncEngine, jobs: Jobs
) -> None:
    async with AsyncSession(async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(InvalidOptionError):
            await aio.enqueue(session, Job(type_name="once"), deduplicate=Deduplicate("key"))
    assert jobs.count() == 0
