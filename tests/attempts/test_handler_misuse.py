"""A handler does anything at all with its session; the next one on the same connection finds nothing of it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only

from sa_jobqueue import JobQueue, JobStatus, Worker
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python

WRITE: Final = text("INSERT INTO effect VALUES (:job)")


def _driver(session: Session) -> Any:
    return session.connection().connection.dbapi_connection


def _autocommit(session: Session) -> None:
    _driver(session).rollback()
    _driver(session).autocommit = True


def _write_in_autocommit(session: Session) -> None:
    _autocommit(session)
    _driver(session).cursor().execute("INSERT INTO effect VALUES ('misuser')")


def _with_driver(session: Session) -> None:
    """As the driver's own connection, under SQLAlchemy's adapter."""
    driver: Any = session.connection().connection.driver_connection
    cursor = driver.cursor(binary=True)
    sent = cursor.execute(sql.SQL("/* so */ END"))
    if asyncio.iscoroutine(sent):
        await_only(sent)


def _in_thread(act: Callable[[Session], object]) -> Callable[[Session], None]:
    def run(session: Session) -> None:
        thread = threading.Thread(target=lambda: _quietly(act, session))
        thread.start()
        thread.join()

    return run


def _quietly(act: Callable[[Session], object], session: Session) -> None:
    try:
        act(session)
    except Exception:  # as an application does that logs and goes on
        return


def _savepoint(session: Session) -> None:
    with session.begin_nested():
        session.execute(WRITE, {"job": "misuser"})


def _in_the_pool(setting: str) -> Callable[[Session], None]:
    """Return an act that changes the driver's connection after the rollback has returned it to the pool."""

    def act(session: Session) -> None:
        driver: Any = session.connection().connection.driver_connection
        session.rollback()
        changed = getattr(driver, f"set_{setting}")(True)
        if asyncio.iscoroutine(changed):
            await_only(changed)

    return act


ACTS: Final[dict[str, Callable[[Session], object]]] = {
    "write": lambda session: session.execute(WRITE, {"job": "misuser"}),
    "savepoint": _savepoint,
    "open savepoint": lambda session: session.execute(text("SAVEPOINT mine")),
    "session.commit": lambda session: session.commit(),
    "session.rollback": lambda session: session.rollback(),
    "session.close": lambda session: session.close(),
    "connection.commit": lambda session: session.connection().commit(),
    "connection.rollback": lambda session: session.connection().rollback(),
    "driver commit": lambda session: _driver(session).commit(),
    "driver rollback": lambda session: _driver(session).rollback(),
    "driver autocommit": _autocommit,
    "raw commit": lambda session: session.execute(text("COMMIT")),
    "raw rollback": lambda session: session.execute(text("ROLLBACK")),
    "an error": lambda session: session.execute(text("SELECT 1 / 0")),
    "commit in a thread": _in_thread(lambda session: session.connection().commit()),
    "COMMIT with the driver's cursor": lambda session: _driver(session).cursor().execute("COMMIT"),
    "END with the driver's connection": _with_driver,
    "a write in autocommit": _write_in_autocommit,
    "autocommit in the pool": _in_the_pool("autocommit"),
    "read only in the pool": _in_the_pool("read_only"),
}


@pytest.mark.slow
@pytest.mark.parametrize("examples", [10, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_misuse_of_a_session_never_reaches_the_next_attempt_on_its_connection(
    engine: Engine, jobs: Jobs, is_async: bool, examples: int
) -> None:
    write(engine, "CREATE TABLE effect (job text)")

    # An AsyncSession works in its own task alone: SQLAlchemy refuses it in a thread.
    acts_of = [name for name in ACTS if not (is_async and name.endswith("thread"))]

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        acts=st.lists(st.sampled_from(acts_of), min_size=1, max_size=4),
        swallows=st.booleans(),
        fails=st.booleans(),
    )
    def check(acts: list[str], swallows: bool, fails: bool) -> None:
        queue: JobQueue[Any] = JobQueue()

        def misuse(session: Session) -> None:
            for name in acts:
                if swallows:
                    _quietly(ACTS[name], session)
                else:
                    ACTS[name](session)
            if fails:
                raise ValueError("after all")

        if is_async:

            @queue.handler("misuser", max_attempts=1)
            async def misuser(payload: None, session: AsyncSession) -> None:
                await session.run_sync(misuse)

            @queue.handler("innocent", max_attempts=1)
            async def innocent(payload: None, session: AsyncSession) -> None:
                await session.execute(WRITE, {"job": "innocent"})
        else:

            @queue.handler("misuser", max_attempts=1)
            def misuser_sync(payload: None, session: Session) -> None:
                misuse(session)

            @queue.handler("innocent", max_attempts=1)
            def innocent_sync(payload: None, session: Session) -> None:
                session.execute(WRITE, {"job": "innocent"})

        write(engine, "TRUNCATE effect")
        first, second = (
            jobs.add(type_name="misuser", priority=5, max_attempts=1),
            jobs.add(type_name="innocent", max_attempts=1),
        )

        async def run() -> None:
            one_connection = {"pool_size": 1, "max_overflow": 0}
            if is_async:
                pool_engine = create_async_engine(engine.url, **one_connection)
                factory: dict[str, Any] = {"async_session_factory": async_sessionmaker(pool_engine)}
            else:
                plain = create_engine(engine.url, **one_connection)
                factory = {"session_factory": sessionmaker(plain)}
            worker = Worker(queue, engine, options=quick(concurrency=1), **factory)
            await worker.run_until_idle()
            if is_async:
                await pool_engine.dispose()
            else:
                plain.dispose()

        asyncio.run(run())
        with engine.connect() as connection:
            job_numbers = list(connection.execute(text("SELECT job FROM effect")).scalars())
        assert jobs.status(second) is JobStatus.COMPLETED
        assert job_numbers.count("innocent") == 1
        completed = jobs.status(first) is JobStatus.COMPLETED
        if not completed:
            assert "misuser" not in job_numbers

    check()


@pytest.mark.parametrize("setting", ["autocommit", "read_only"])
async def test_a_setting_of_the_driver_that_changes_in_the_pool_reaches_no_other_attempt(
    engine: Engine, jobs: Jobs, setting: str
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("misuser", max_attempts=1)
    def misuser(payload: None, session: Session) -> None:
        _in_the_pool(setting)(session)

    @queue.handler("innocent", max_attempts=1)
    def innocent(payload: None, session: Session) -> None:
        session.execute(text("CREATE TEMPORARY TABLE mine (n int) ON COMMIT DROP"))

    jobs.add(type_name="misuser", priority=5)
    neighbours = [jobs.add(type_name="innocent", max_attempts=1) for _ in range(3)]
    pool_engine = create_engine(engine.url, pool_size=1, max_overflow=0)
    await Worker(queue, engine, options=quick(concurrency=1), session_factory=sessionmaker(pool_engine)).run_until_idle()
    assert [jobs.status(job_id) for job_id in neighbours] == [JobStatus.COMPLETED] * 3
    pool_engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["returns", "exits"])
@pytest.mark.parametrize("takes_session", [True, False])
def test_a_process_that_a_handler_forks_neither_works_on_nor_touches_its_connections(
    engine: Engine, jobs: Jobs, ends: str, takes_session: bool
) -> None:
    write(engine, "CREATE TABLE effect (job text)")
    queue: JobQueue[Any] = JobQueue()

    def fork() -> bool:
        """Return whether this is the child."""
        pid = os.fork()
        if pid == 0:
            if ends == "exits":
                raise SystemExit(3)
            return True
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == (3 if ends == "exits" else 0)
        return False

    if takes_session:

        @queue.handler("forks", max_attempts=1)
        def forks(payload: None, session: Session) -> None:
            session.execute(WRITE, {"job": "before"})
            if not fork():
                session.execute(WRITE, {"job": "after"})
    else:

        @queue.handler("forks", max_attempts=1)
        def forks_alone(payload: None) -> None:
            fork()

    ids = [jobs.add(type_name="forks", max_attempts=1) for _ in range(3)]
    asyncio.run(Worker(queue, engine, options=quick(concurrency=1)).run_until_idle())
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 3
    with engine.connect() as connection:
        job_numbers = sorted(connection.execute(text("SELECT job FROM effect")).scalars())
    assert job_numbers == (["after"] * 3 + ["before"] * 3 if takes_session else [])
