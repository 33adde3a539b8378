"""Side effects registered in a transaction: run once after its commit, in order, and never after a rollback."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import Job, aio
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import after_commit
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

pytestmark = both_servers


@pytest.fixture
def ran() -> list[str]:
    """Give what callbacks appended, in that order."""
    return []


def test_callbacks_run_once_after_the_outermost_commit_in_order(
    sessions: sessionmaker[Session], jobs: Jobs, ran: list[str]
) -> None:
    def third(*, end: str) -> None:
        ran.append(end)

    with sessions() as session:
        after_commit(session, lambda: ran.append(f"sees {jobs.count()} job"))
        session.add(Job("test"))
        after_commit(session, ran.append, "second")
        session.flush()
        after_commit(session, third, end="third")
        assert ran == []
        session.commit()
        assert ran == ["sees 1 job", "second", "third"]
        session.add(Job("test"))
        session.commit()
    assert ran == ["sees 1 job", "second", "third"]


def test_a_rollback_drops_callbacks(sessions: sessionmaker[Session], ran: list[str]) -> None:
    with sessions() as session:
        after_commit(session, ran.append, "rolled back")
        session.connection()
        session.rollback()
        after_commit(session, ran.append, "kept")
        session.commit()
    assert ran == ["kept"]


def test_a_failed_commit_drops_callbacks(sessions: sessionmaker[Session], jobs: Jobs, ran: list[str]) -> None:
    existing_id = jobs.add()
    with sessions() as session:
        after_commit(session, ran.append, "failed")
        session.add(Job("test", id=existing_id))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.commit()
    assert ran == []


def test_a_savepoint_keeps_or_drops_callbacks_registered_within_it(sessions: sessionmaker[Session], ran: list[str]) -> None:
    with sessions.begin() as session:
        after_commit(session, ran.append, "1")
        with session.begin_nested():
            after_commit(session, ran.append, "2, released")
            with session.begin_nested() as inner:
                after_commit(session, ran.append, "lost: its own savepoint")
                inner.rollback()
            with session.begin_nested():
                after_commit(session, ran.append, "3, released twice")
        with session.begin_nested() as outer:
            with session.begin_nested():
                after_commit(session, ran.append, "lost: released into a savepoint that is rolled back")
            after_commit(session, ran.append, "lost: the same")
            outer.rollback()
        with session.begin_nested() as outer:
            session.begin_nested()
            after_commit(session, ran.append, "lost: still open when the one around it is rolled back")
            outer.rollback()
        after_commit(session, ran.append, "4")
        assert ran == []
    assert ran == ["1", "2, released", "3, released twice", "4"]


def test_callbacks_registered_during_flush_or_commit_run_too(sessions: sessionmaker[Session], ran: list[str]) -> None:
    with sessions() as session:
        for name in ("before_flush", "before_commit", "after_commit"):
            event.listen(session, name, lambda session, *_, name=name: after_commit(session, ran.append, name))
        session.add(Job("test"))
        session.flush()
        with session.begin_nested() as savepoint:
            session.add(Job("test"))
            session.flush()
            savepoint.rollback()
        session.commit()
    assert ran == ["before_flush", "before_commit", "after_commit"]


def test_a_failing_callback_is_logged_and_the_next_one_runs(
    sessions: sessionmaker[Session], jobs: Jobs, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ZeroDivisionError("in the callback")

    with sessions.begin() as session:
        session.add(Job("test"))
        after_commit(session, fails)
        after_commit(session, ran.append, "next")
    assert (jobs.count(), ran) == (1, ["next"])
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("sa_jobqueue.hooks", logging.ERROR)
    assert "fails failed after the commit, which stands" in record.message
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_callbacks_run_after_the_connection_returned_to_its_pool(engine: Engine, ran: list[str]) -> None:
    """So a callback may open a session of its own, also where the pool has one connection."""
    single = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=1)

    def other_session() -> None:
        with Session(single) as session:
            ran.append(session.execute(text("SELECT 'answered'")).scalar_one())

    with Session(single) as session:
        session.add(Job("test"))
        after_commit(session, other_session)
        session.commit()
        assert not session.in_transaction()
    single.dispose()
    assert ran == ["answered"]


async def _coroutine() -> None: ...


class _CoroutineObject:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (_coroutine, "_coroutine is a coroutine function.* starts a task"),
        (partial(_coroutine), "is a coroutine function"),
        (_CoroutineObject(), "is a coroutine function"),
        (None, "must be a function, got None"),
    ],
)
def test_an_invalid_callback_is_refused_when_registered(session: Session, callback: Any, reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"callback: .*{reason}"):
        after_commit(session, callback)
    assert not session.in_transaction()


def test_a_callback_that_returns_a_coroutine_is_reported(
    session: Session, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    after_commit(session, lambda: _coroutine())  # noqa: PLW0108 - hides what it calls
    after_commit(session, ran.append, "next")
    session.commit()
    assert ran == ["next"]
    assert "returned a coroutine after the commit; it is not awaited" in caplog.text


def test_a_callback_needs_a_session_in_a_transaction(sessions: sessionmaker[Session], ran: list[str]) -> None:
    with pytest.raises(InvalidOptionError, match="session: must be a Session or an AsyncSession"):
        after_commit(object(), ran.append, "x")  # type: ignore[arg-type]
    with sessions(autobegin=False) as session:
        with pytest.raises(InvalidOptionError, match="session: is not in a transaction and has autobegin disabled"):
            after_commit(session, ran.append, "x")
        with session.begin():
            after_commit(session, ran.append, "begun")
    assert ran == ["begun"]


def test_callbacks_can_be_registered_on_a_scoped_session(sessions: sessionmaker[Session], ran: list[str]) -> None:
    scoped = scoped_session(sessions)
    after_commit(scoped, ran.append, "ran")
    scoped.commit()
    scoped.remove()
    assert ran == ["ran"]


def test_callbacks_do_not_keep_their_session_alive(sessions: sessionmaker[Session]) -> None:
    session = sessions()
    after_commit(session, session.refresh, object())
    reference = weakref.ref(session)
    del session
    gc.collect()
    assert reference() is None


async def test_callbacks_run_after_the_commit_of_an_async_session(
    async_sessions: async_sessionmaker[AsyncSession], jobs: Jobs
) -> None:
    ran: list[Any] = []
    tasks: list[asyncio.Task[None]] = []
    register: Callable[..., None] = aio.after_commit

    async def effect() -> None:
        ran.append("in a task")

    async with async_sessions() as session:
        register(session, ran.append, "rolled back")
        await session.rollback()
        register(session, lambda: 1 / 0)
        session.add(Job("test"))
        async with session.begin_nested() as savepoint:
            register(session, ran.append, "lost")
            await savepoint.rollback()
        async with session.begin_nested():
            register(session, ran.append, "released")
        # What has to be awaited becomes a task: callbacks run on the event loop.
        register(session, lambda: tasks.append(asyncio.get_running_loop().create_task(effect())))
        assert ran == []
        await session.commit()
        assert (ran, jobs.count()) == (["released"], 1)
    await asyncio.gather(*tasks)
    assert ran == ["released", "in a task"]

    scoped = async_scoped_session(async_sessions, scopefunc=asyncio.current_task)
    register(scoped, ran.append, "scoped")
    await scoped.commit()
    await scoped.remove()
    assert ran[-1] == "scoped"


def test_closing_a_session_without_a_commit_drops_callbacks(sessions: sessionmaker[Session], ran: list[str]) -> None:
    session = sessions()
    for end in (session.close, session.reset):
        after_commit(session, ran.append, "closed")
        end()
        session.add(Job("test"))
        session.commit()
    session.close()
    assert ran == []


def test_committing_the_session_runs_callbacks_of_open_savepoints(sessions: sessionmaker[Session], ran: list[str]) -> None:
    with sessions() as session:
        session.begin_nested()
        after_commit(session, ran.append, "1")
        session.begin_nested()
        after_commit(session, ran.append, "2")
        session.commit()
        assert ran == ["1", "2"]
