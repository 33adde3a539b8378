"""Operations take the `scoped_session` of an application, such as Flask-SQLAlchemy's `db.session`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import aio, operations
from sa_jobqueue.errors import JobQueueError, UnsupportedServerError
from tests.fixtures.operations import calls, take

SOME = ["enqueue", "get_job", "list_jobs", "cancel_jobs", "sync_queues", "send_event"]
some_operations = pytest.mark.parametrize("name", SOME)
"""One decorator gives all of them their session (`test_aio_parity`)."""


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, as far as two calls are comparable, or the class of our error that it raises."""
    try:
        return type(call())
    except JobQueueError as error:
        return type(error)


@pytest.fixture
def ids(engine: Engine) -> dict[str, Any]:
    """Make the schedule and the queue of the calls, and one job for all their ids."""
    with Session(engine) as session, session.begin():
        session.add(job := take.job(1))
        ids = dict.fromkeys(("root", "blocked", "dead"), job.id)
        for name in ("upsert_schedule", "upsert_queue"):
            calls(ids)[name](partial(getattr(operations, name), session))
    return ids


@some_operations
def test_an_operation_takes_a_scoped_session(name: str, engine: Engine, ids: dict[str, Any]) -> None:
    current: Any = scoped_session(sessionmaker(engine))
    operation = getattr(operations, name)
    with Session(engine) as session:
        expected = outcome(lambda: calls(ids)[name](partial(operation, session)))
    try:
        assert outcome(lambda: calls(ids)[name](partial(operation, current))) is expected
        assert current().in_transaction()  # of the scope's own session
    finally:
        current.remove()


@some_operations
async def test_an_operation_takes_an_async_scoped_session(name: str, async_engine: AsyncEngine, ids: dict[str, Any]) -> None:
    current: Any = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    try:
        with suppress(JobQueueError):
            await calls(ids)[name](partial(getattr(aio, name), current))
        assert current().in_transaction()
    finally:
        await current.remove()


@some_operations
def test_an_operation_refuses_another_database_with_one_sentence(name: str) -> None:
    sqlite = create_engine("sqlite://")
    ids = dict.fromkeys(("root", "blocked", "dead"), take.job(1).id)
    with (
        Session(sqlite) as session,
        pytest.raises(UnsupportedServerError, match="needs PostgreSQL, and this database is sqlite"),
    ):
        calls(ids)[name](partial(getattr(operations, name), session))
    sqlite.dispose()
