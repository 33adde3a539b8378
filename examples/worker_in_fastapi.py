"""A worker in the process of a FastAPI application: one process serves requests and runs jobs.

For a small service this saves a second deployment. Every process of the server runs a worker, `uvicorn --workers 4` four.
`sa_jobqueue.integrations.starlette` has the same for Starlette.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import httpx
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from sa_jobqueue import Job, JobQueue, Worker, aio
from sa_jobqueue.integrations.embedding import running
from sa_jobqueue.integrations.fastapi import health_router
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()


@jobs.handler("thumbnail")
async def thumbnail(name: str) -> str:
    return f"{name}.thumb"


def create_app(url: str) -> FastAPI:
    engine = create_async_engine(url)
    worker = Worker(jobs, engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running(worker):  # started before the first request; at shutdown its jobs may finish
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)  # with nothing else to open: FastAPI(lifespan=worker_lifespan(worker))
    app.include_router(health_router(worker))

    @app.post("/images/{name}", status_code=202)
    async def upload(name: str) -> dict[str, UUID]:
        async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
            job = thumbnail.job(name)
            session.add(job)
        return {"job_id": job.id}

    @app.get("/thumbnails/{job_id}")
    async def show(job_id: UUID) -> str:
        chain = await aio.wait_chain(engine, job_id, timeout=timedelta(seconds=20))
        return thumbnail.output(chain)

    return app


async def walk(url: str) -> None:
    app = create_app(url)
    # `uvicorn --factory` does the same: it starts the lifespan, serves, and ends it on SIGTERM.
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://images") as client,
    ):
        ready = await client.get("/readyz")
        print("GET /readyz", ready.status_code, ready.json()["phase"])
        answer = (await client.post("/images/cat")).json()
        print("GET /thumbnails", (await client.get(f"/thumbnails/{answer['job_id']}")).json())


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)  # a real application has a migration
        engine.dispose()
        asyncio.run(walk(server.url))


if __name__ == "__main__":
    main()

# Output:
# GET /readyz 200 running
# GET /thumbnails cat.thumb
