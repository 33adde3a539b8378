"""Producers and workers through a real PgBouncer in transaction mode: everything works, and logs where it listens."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker, enqueue_many
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import ComponentFailed, PoolerFound
from sa_jobqueue.worker.logs import describe
from tests.fixtures.database import own_database
from tests.fixtures.poolers import MakePooler
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import quick, until, working

pytestmark = own_database

DROPS: dict[str, object] = {"ignore_startup_parameters": "options,extra_float_digits"}
SETTINGS: dict[str, dict[str, object]] = {
    "refuses options": {},
    "drops options": DROPS,
    "keeps track of what is prepared": DROPS | {"max_prepared_statements": 5},
}


def everything() -> JobQueue[Any]:
    """Handlers of each kind: alone, with either session, failing first, continuing, blocked by others."""
    queue = JobQueue()

    @queue.handler("alone")
    async def alone(n: int) -> int:
        return n

    @queue.handler("sync")
    def in_thread(n: int, session: Session) -> Any:
        for _ in range(6):  # more than psycopg needs to prepare
            session.execute(text("SELECT 1"))
        return alone.continuation(n)

    @queue.handler("async")
    async def in_loop(n: int, session: AsyncSession) -> int:
        return sum([(await session.execute(text("SELECT 1"))).scalar_one() for _ in range(6)])

    @queue.handler("again", retry=lambda attempt, error: timedelta(0))
    async def again(n: int, ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    return queue


@pytest.mark.slow
@pytest.mark.parametrize(
    "tracked",
    [pytest.param(None, marks=pytest.mark.long), pytest.param(0, marks=pytest.mark.long), 100],
    ids=["old", "new, nothing is prepared", "new, producers prepare"],
)
async def test_producers_and_workers_run_through_a_transaction_pooler(
    engine: Engine, pooler: MakePooler, tracked: int | None
) -> None:
    """Many jobs on few server sessions: nothing prepared, listened to or set on one of them is looked for on another.

    Unless the pooler keeps track of prepared statements, and makes them on whichever session comes.
    """
    settings = {} if tracked is None else {"max_prepared_statements": tracked}
    url = pooler(pool=3, **settings).url
    prepare = {"prepare_threshold": 2 if tracked else None}
    through = create_engine(url, pool_size=5, max_overflow=15, connect_args=prepare)
    queue = everything()
    with Session(through) as session, session.begin():
        first = Job("alone", 0)
        session.add_all([first, Job("alone", 1, blockers=[first])])
    for _ in range(10):
        with Session(through) as session, session.begin():
            enqueue_many(session, [Job(name, n) for n in range(2) for name in ("alone", "sync", "async", "again")])
    # As an application may have made it, preparing what it repeats: the worker stops that.
    careless = create_engine(url, pool_size=12, max_overflow=0)
    worker = Worker(queue, careless, options=quick(concurrency=10, heartbeat_timeout=timedelta(seconds=15)))
    async with working(worker) as log:
        await log.until(PoolerFound)

        def all_done() -> bool:
            return not scalar(engine, select(Job.id).where(Job.status != JobStatus.COMPLETED).limit(1))

        await until(all_done, description="the end of all jobs")
    with engine.connect() as connection:
        ended = Counter(connection.scalars(select(Job.type_name).where(Job.status == JobStatus.COMPLETED)))
        tried = text("SELECT outcome, error FROM job_attempt WHERE error->>'message' IS DISTINCT FROM 'once'")
        attempts = list(connection.execute(tried))
    assert ended == {"alone": 42, "sync": 20, "async": 20, "again": 20}
    assert attempts == []  # none failed for want of what another session had
    assert log.of(ComponentFailed) == []
    (event,) = log.of(PoolerFound)
    record = describe(event)
    assert (record.message % record.arguments).endswith("is connected through a connection pooler; it polls every 0.1 s")
    if tracked is not None:
        assert (_prepared_by_clients(url) > 0) is (tracked > 0)
    through.dispose()
    careless.dispose()


def _prepared_by_clients(url: str) -> int:
    """Return how many statements clients of a new PgBouncer have prepared, by its own account."""
    console = make_url(url).set(drivername="postgresql", database="pgbouncer").render_as_string(hide_password=False)
    with psycopg.connect(console, autocommit=True, row_factory=dict_row) as connection:
        return int(sum(row["total_client_parse_count"] for row in connection.execute("SHOW STATS")))


async def test_a_worker_behind_a_pooler_listens_at_listen_url(engine: Engine, database_url: str, pooler: MakePooler) -> None:
    url = pooler().url
    queue = everything()
    through = create_engine(url, poolclass=NullPool)
    options = quick(poll_interval=timedelta(minutes=5))
    async with working(Worker(queue, through, options=options, listen_url=database_url)) as log:
        (event,) = await log.until(PoolerFound)
        assert event.listens

        def has_listener() -> bool:
            return bool(
                scalar(
                    engine, "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'SELECT 1$|LISTEN|SELECT bool_and.pg_try'"
                )
            )

        await until(has_listener)
        with Session(through) as session, session.begin():
            session.add(job := Job("alone", 1))
            job_id = job.id

        def done() -> bool:
            return scalar(engine, select(Job.status).where(Job.id == job_id)) is JobStatus.COMPLETED

        await until(done)  # notified: the next poll is in five minutes
    with pytest.raises(InvalidOptionError, match="listen_url: leads to a connection pooler as well"):
        await Worker(queue, through, options=options, listen_url=url).run()
    secret = make_url(database_url).set(password="geheim").render_as_string(hide_password=False)
    with pytest.raises(InvalidOptionError) as raised:
        Worker(queue, through, listen_url=secret.replace("postgresql", "mysql"))
    assert "geheim" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
async def test_session_guards_apply_per_transaction_and_do_not_leak(pooler: MakePooler, settings: dict[str, object]) -> None:
    """Each transaction of a worker has them; the next user of the server's session has not."""
    url = make_url(pooler(pool=1, **settings).url)
    connections = Connections(url, worker_name="w", patience=quick().heartbeat_timeout)
    await connections.find_pooler()
    assert connections.is_pooled
    assert not connections.can_listen
    guarded = connections.engine(2)
    other_engine = create_async_engine(url)
    names = ", ".join(f"current_setting('{name}')" for name in GUARDS)
    try:
        for _ in range(10):  # more than psycopg needs to prepare
            async with guarded.connect() as connection:
                assert list((await connection.exec_driver_sql(f"SELECT {names}")).one()) == list(GUARDS.values())
            async with guarded.execution_options(isolation_level="READ COMMITTED").begin() as connection:
                assert list((await connection.exec_driver_sql(f"SELECT {names}")).one()) == list(GUARDS.values())
            with suppress(DBAPIError):
                async with guarded.connect() as connection:
                    await connection.exec_driver_sql("SELECT 1 / 0")
            async with guarded.connect() as connection:
                with pytest.raises(DBAPIError, match="division by zero"):
                    await connection.exec_driver_sql("SELECT 1 / 0")
                assert (await connection.exec_driver_sql("SELECT 7")).scalar_one() == 7  # the connection lives on
            async with other_engine.connect() as connection:
                found = list((await connection.exec_driver_sql(f"SELECT {names}")).one())
                assert set(found) == {"on", "auto"}
            await asyncio.sleep(0)
    finally:
        await guarded.dispose()
        await other_engine.dispose()


async def test_a_direct_connection_is_not_detected_as_a_pooler(database_url: str) -> None:
    direct = Connections(make_url(database_url), worker_name="w", patience=quick().heartbeat_timeout)
    await direct.find_pooler()
    assert (direct.is_pooled, direct.can_listen) == (False, True)
    nowhere = Connections(make_url("postgresql://127.0.0.1:9/none"), worker_name="w", patience=quick().heartbeat_timeout)
    await nowhere.find_pooler()  # the first connection attempt reports the failure
    assert nowhere.is_pooled is False
