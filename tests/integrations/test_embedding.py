"""A worker in the process of a web application: with Starlette, FastAPI and Litestar, and under a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from litestar import Litestar
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from sa_jobqueue import JobQueue, Worker, list_jobs
from sa_jobqueue.errors import SchemaError
from sa_jobqueue.events import JobCompleted, JobStarted, WorkerStarted, WorkerStopped
from sa_jobqueue.integrations import fastapi, starlette
from sa_jobqueue.integrations.embedding import running
from sa_jobqueue.integrations.litestar import JobQueuePlugin
from sa_jobqueue.operations import WorkerFilter, drain_workers
from tests.fixtures.jobs import enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, EventLog, quick, until

pytestmark = pytest.mark.every_python

Application = tuple[Any, Callable[[], AbstractAsyncContextManager[Any]]]

jobs = JobQueue()
begun, release = threading.Event(), threading.Event()


@jobs.handler("greet")
def greet(name: str, session: Session) -> str:
    return f"hello {name}"


@jobs.handler("hold")
def hold(payload: None) -> str:
    begun.set()
    assert release.wait(PATIENCE)
    return "held"


@jobs.handler("wait")
async def wait(payload: None) -> None:
    await asyncio.Event().wait()


def with_starlette(worker: Worker) -> Application:
    app = Starlette(routes=starlette.health_routes(worker), lifespan=starlette.worker_lifespan(worker))
    return app, lambda: app.router.lifespan_context(app)


def with_fastapi(worker: Worker) -> Application:
    app = FastAPI(lifespan=fastapi.worker_lifespan(worker))
    router = fastapi.health_router(worker)
    assert not any(getattr(route, "include_in_schema", True) for route in router.routes)
    app.include_router(router)
    return app, lambda: app.router.lifespan_context(app)


def with_litestar(worker: Worker) -> Application:
    app = Litestar(plugins=[JobQueuePlugin(worker)])
    return app, app.lifespan


async def probe(app: Any, path: str) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        response = await client.get(path)
    return response.status_code, response.json()


@pytest.mark.slow
@pytest.mark.parametrize("build", [with_starlette, with_fastapi, with_litestar])
async def test_a_worker_runs_while_the_application_does(build: Callable[[Worker], Application], engine: Engine) -> None:
    worker = Worker(jobs, engine, options=quick())
    log = EventLog(worker)
    app, lifespan = build(worker)
    assert (await probe(app, "/readyz"))[1]["causes"] == ["the worker is starting"]
    for round_number in (1, 2):  # as in tests, which start an application again and again
        async with lifespan():
            assert (await probe(app, "/readyz"))[0] == 200
            assert (await probe(app, "/livez"))[1]["status"] == "ok"
            enqueue(engine, greet.job("ada"))
            await log.until(JobCompleted, round_number)
        assert len(log.of(WorkerStopped)) == round_number
        status, document = await probe(app, "/readyz")
        assert (status, document["causes"]) == (503, ["the worker is stopped"])


@pytest.mark.slow
async def test_stopping_the_server_lets_a_running_job_finish_first(engine: Engine) -> None:
    worker = Worker(jobs, engine, options=quick())
    log = EventLog(worker)
    app, _ = with_starlette(worker)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started, description="the server's start")
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        enqueue(engine, hold.job(None))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
    finally:
        server.should_exit = True  # as on SIGTERM
        await until(lambda: worker.vitals.phase == "draining", description="the worker's shutdown")
        release.set()
        await asyncio.wait_for(serving, PATIENCE)
    assert [event.released for event in log.of(WorkerStopped)] == [0]
    assert [job.output for job in call(engine, list_jobs)] == ["held"]


async def test_a_second_cancellation_releases_the_jobs_that_still_run(engine: Engine) -> None:
    worker = Worker(jobs, engine, options=quick())
    log = EventLog(worker)

    async def serve() -> None:
        async with running(worker):
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await log.until(WorkerStarted)
    enqueue(engine, wait.job(None))
    await log.until(JobStarted)
    serving.cancel()
    await until(lambda: worker.vitals.phase == "draining", description="the worker's shutdown")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, PATIENCE)
    assert [event.released for event in log.of(WorkerStopped)] == [1]
    assert [job.status for job in call(engine, list_jobs)] == ["pending"]


async def test_a_drained_worker_is_alive_but_not_ready(engine: Engine) -> None:
    worker = Worker(jobs, engine, options=quick())
    app, lifespan = with_litestar(worker)
    async with lifespan():
        log = EventLog(worker)
        call(engine, drain_workers, where=WorkerFilter(ids=[worker.id]))
        await log.until(WorkerStopped)
        assert (await probe(app, "/livez"))[0] == 200
        assert (await probe(app, "/readyz"))[0] == 503


async def test_an_application_whose_worker_cannot_start_does_not_start(database_url: str) -> None:
    engine = create_engine(make_url(database_url).update_query_dict({"options": "-c search_path=elsewhere"}))
    with pytest.raises(SchemaError):
        async with running(Worker(jobs, engine, options=quick())):
            raise AssertionError("it started")
    engine.dispose()


async def test_an_error_of_the_application_stops_its_worker(database_url: str) -> None:
    engine = create_async_engine(database_url)
    worker = Worker(jobs, engine, options=quick())
    with pytest.raises(LookupError, match="of the application"):
        async with running(worker):
            raise LookupError("of the application")
    assert worker.vitals.phase == "stopped"
    await engine.dispose()
