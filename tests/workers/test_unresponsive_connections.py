"""A connection that stops responding without closing: a caller that waits for a reply times out, and reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from sa_jobqueue import JobQueue, JobStatus, Worker
from sa_jobqueue.cli.worker import _engine as engine_of_the_command
from sa_jobqueue.db import timeouts as db_timeouts
from sa_jobqueue.db.timeouts import AnsweredConnection
from sa_jobqueue.events import HeartbeatFailing, JobStarted
from sa_jobqueue.worker import WorkerOptions
from tests.chaos.proxy import Proxy
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import PATIENCE, EventLog, quick, until, working


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    url = make_url(database_url)
    host = str(url.query.get("host") or url.host)
    if not host.startswith("/"):
        pytest.skip("the proxy forwards to a socket, and this server is reached by TCP")
    from pathlib import Path

    new_proxy = Proxy(Path(host) / f".s.PGSQL.{url.query.get('port', 5432)}")
    yield new_proxy
    new_proxy.close()


@pytest.fixture
def behind_proxy(database_url: str, proxy: Proxy) -> Iterator[Engine]:
    """Give an engine that reaches the test's database through the proxy."""
    url = make_url(database_url)
    engine = create_engine(f"postgresql+psycopg://{url.username or 'postgres'}@127.0.0.1:{proxy.port}/{url.database}")
    yield engine
    engine.dispose()


def two_kinds() -> tuple[JobQueue[Any], asyncio.Event]:
    """Return a queue with a handler that does nothing and one that waits for the event."""
    queue, release = JobQueue(), asyncio.Event()

    @queue.handler("nothing")
    async def nothing(payload: dict[str, Any]) -> None: ...

    @queue.handler("waits")
    async def waits(payload: dict[str, Any]) -> None:
        await release.wait()

    return queue, release


@pytest.mark.long
async def test_a_worker_recovers_when_all_its_connections_stop_responding(
    engine: Engine, jobs: Jobs, proxy: Proxy, behind_proxy: Engine
) -> None:
    queue, _ = two_kinds()
    (first,) = enqueue(engine, queue.job("nothing", {}))
    async with working(Worker(queue, behind_proxy, options=quick(heartbeat_timeout=timedelta(seconds=2)))):
        await until(lambda: jobs.status(first) is JobStatus.COMPLETED, description="the worker works")
        proxy.half_open()
        (second,) = enqueue(engine, queue.job("nothing", {}))
        await until(lambda: jobs.status(second) is JobStatus.COMPLETED, description="it works again, on new connections")


@pytest.mark.long
async def test_an_unanswered_heartbeat_is_abandoned_in_time_for_another(
    engine: Engine, jobs: Jobs, proxy: Proxy, behind_proxy: Engine
) -> None:
    queue, release = two_kinds()
    (job_id,) = enqueue(engine, queue.job("waits", {}))
    options = quick(heartbeat_interval=timedelta(milliseconds=500), heartbeat_timeout=timedelta(seconds=8))
    async with working(Worker(queue, behind_proxy, options=options)) as log:
        await log.until(JobStarted)
        before = _last_heartbeat(engine)
        proxy.half_open()
        await until(lambda: _last_heartbeat(engine) > before, description="a heartbeat on another connection")
        release.set()
        await until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the completion is written")
    assert log.of(HeartbeatFailing) == []
    assert jobs.get(job_id)["attempt"] == 1


@pytest.mark.long
async def test_shutdown_is_bounded_while_the_server_does_not_respond(
    engine: Engine, proxy: Proxy, behind_proxy: Engine
) -> None:
    queue, _ = two_kinds()
    enqueue(engine, queue.job("waits", {}))
    hasty = {"heartbeat_timeout": timedelta(seconds=2), "cancel_timeout": timedelta(milliseconds=200)}
    worker = Worker(queue, behind_proxy, options=quick(**hasty, shutdown_timeout=timedelta(0)))
    log = EventLog(worker)
    run = asyncio.create_task(worker.run())
    await log.until(JobStarted)
    proxy.stall()
    worker.stop()
    # Its own bounds, and what psycopg takes to give up statements that are cancelled.
    await asyncio.wait_for(run, PATIENCE)
    proxy.resume()


async def test_an_abandoned_statement_is_cancelled_in_the_server(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db_timeouts, "_CANCEL_SECONDS", PATIENCE)  # the server may take its time to obey
    conninfo = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await AnsweredConnection.connect(conninfo, autocommit=True, application_name="impatient")
    connection.patience = 0.2
    with pytest.raises(psycopg.errors.QueryCanceled):  # the server's own word: it has stopped
        await connection.execute("SELECT pg_sleep(60)")
    connection.patience = PATIENCE
    await connection.execute("SELECT 1")  # it answered after all: the connection is as good as before
    await connection.close()


def test_the_worker_command_sets_tcp_keepalives_and_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {}
    monkeypatch.setattr("sa_jobqueue.cli.worker.create_engine", lambda url, **options: settings.update(options))
    engine_of_the_command("postgresql://localhost/shop?keepalives_idle=60", WorkerOptions())
    assert settings["connect_args"] == {
        "connect_timeout": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }


def _last_heartbeat(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT heartbeat_at FROM worker")).scalar_one()
