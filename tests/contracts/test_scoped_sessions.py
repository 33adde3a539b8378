"""Every operation takes the `scoped_session` of an application, such as Flask-SQLAlchemy's `db.session`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import Deduplicate, Job, JobQueue, aio, operations
from sa_jobqueue.errors import JobQueueError, UnsupportedServerError
from sa_jobqueue.operations import JobFilter, WorkerFilter
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.registry.settings import QueueSettings, TypeSettings
from tests.fixtures.jobs import Jobs

NAMES = [name for name in operations.__all__ if inspect.isfunction(getattr(operations, name)) and name != "after_commit"]

jobs_ = JobQueue()


@jobs_.handler("send")
def send(order_id: int) -> None: ...


jobs_.schedule("nightly", handler=send, cron="0 3 * * *", payload=1)
(nightly,) = jobs_.schedules

HOUR = timedelta(hours=1)
RULES = RetentionRules(default=Retention(completed=HOUR, dead=HOUR, dead_letters=HOUR))
BY_NAME: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "complete_job": lambda given: ((given,), {}),
    "count_write_chains": lambda given: (("load",), {}),
    "dismiss_dead_letters": lambda given: ((), {"by": "me"}),
    "drain_workers": lambda given: ((), {"where": WorkerFilter(ids=["w"])}),
    "enqueue": lambda given: ((send.job(2),), {"deduplicate": "k"}),
    "enqueue_many": lambda given: (([send.job(2), send.job(3)],), {}),
    "enqueue_many_unique": lambda given: (([(send.job(2), Deduplicate("k"))],), {}),
    "enqueue_payloads": lambda given: ((send, [2, 3]), {}),
    "enqueue_unique": lambda given: (([(send.job(2), Deduplicate("k"))],), {}),
    "prune": lambda given: ((RULES,), {}),
    "prune_audit": lambda given: ((), {"older_than": HOUR}),
    "prune_dead_letters": lambda given: ((RULES,), {}),
    "prune_writes": lambda given: ((), {"older_than": HOUR}),
    "record_job_types": lambda given: ((jobs_.registry,), {}),
    "reschedule_jobs": lambda given: (([given],), {"delay": HOUR}),
    "resize_workers": lambda given: ((3,), {"where": WorkerFilter(ids=["w"])}),
    "set_priority": lambda given: ((3,), {"where": JobFilter(ids=[given])}),
    "sync_queues": lambda given: (([QueueSettings(name="mail")],), {}),
    "sync_schedules": lambda given: (([nightly],), {}),
    "upsert_job_type": lambda given: ((TypeSettings(type_name="send"),), {}),
    "upsert_queue": lambda given: ((QueueSettings(name="mail"),), {}),
    "upsert_schedule": lambda given: ((nightly,), {}),
}
"""Arguments of operations that take more than ids or names."""
BY_PARAMETER: dict[str, Callable[[Any], Any]] = {
    "ids": lambda given: [given],
    "chain_ids": lambda given: [given],
    "job_id": lambda given: given,
    "chain_id": lambda given: given,
    "name": lambda given: "nightly",
    "event": lambda given: "paid",
    "names": lambda given: ["nightly"],
    "write_id": lambda given: "load",
}


def arguments(name: str, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if name in BY_NAME:
        return BY_NAME[name](given)
    _, *parameters = inspect.signature(getattr(operations, name)).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    assert set(needed) <= set(BY_PARAMETER), f"add the arguments of {name} to this test"
    return tuple(BY_PARAMETER[one](given) for one in needed), {}


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, as far as two calls are comparable, or the class of our error that it raises."""
    try:
        return type(call())
    except JobQueueError as error:
        return type(error)


@pytest.fixture
def job_id(engine: Engine, jobs: Jobs) -> Any:
    with Session(engine) as session, session.begin():
        job = send.job(1)
        session.add(job)
        operations.upsert_schedule(session, nightly)
        return job.id


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_takes_a_scoped_session(name: str, engine: Engine, job_id: Any) -> None:
    current: Any = scoped_session(sessionmaker(engine))
    operation = getattr(operations, name)
    with Session(engine) as session:
        positional, options = arguments(name, job_id)
        expected = outcome(lambda: operation(session, *positional, **options))
    try:
        positional, options = arguments(name, job_id)
        assert outcome(lambda: operation(current, *positional, **options)) is expected
        assert current().in_transaction()  # of the scope's own session
    finally:
        current.remove()


@pytest.mark.parametrize("name", NAMES)
async def test_an_operation_takes_an_async_scoped_session(name: str, async_engine: AsyncEngine, job_id: Any) -> None:
    current: Any = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    try:
        positional, options = arguments(name, job_id)
        with suppress(JobQueueError):
            await getattr(aio, name)(current, *positional, **options)
        assert current().in_transaction()
    finally:
        await current.remove()


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_refuses_another_database_with_one_sentence(name: str) -> None:
    sqlite = create_engine("sqlite://")
    positional, options = arguments(name, send.job(1).id)
    with (
        Session(sqlite) as session,
        pytest.raises(UnsupportedServerError, match="needs PostgreSQL, and this database is sqlite"),
    ):
        getattr(operations, name)(session, *positional, **options)
    sqlite.dispose()


def test_the_model_is_the_ready_made_one() -> None:
    assert jobs_.model is Job
