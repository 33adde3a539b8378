"""A worker in the process of a Litestar application, by a plugin that also answers `/livez` and `/readyz`."""

import asyncio
from datetime import timedelta
from uuid import UUID

import httpx
from litestar import Litestar, Request, get, post
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from sa_jobqueue import Job, JobQueue, Worker, aio
from sa_jobqueue.integrations.litestar import JobQueuePlugin
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()


@jobs.handler("thumbnail")
async def thumbnail(name: str) -> str:
    return f"{name}.thumb"


def create_app(url: str) -> Litestar:
    engine = create_async_engine(url)

    @post("/images", status_code=202)
    async def upload(request: Request) -> dict[str, UUID]:
        name = (await request.json())["name"]
        async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
            job = thumbnail.job(name)
            session.add(job)
        return {"job_id": job.id}

    @get("/thumbnails")
    async def show(request: Request) -> dict[str, str]:
        job_id = UUID(request.query_params["job_id"])
        chain = await aio.wait_chain(engine, job_id, timeout=timedelta(seconds=20))
        return {"thumbnail": thumbnail.output(chain)}

    # What is closed on shutdown is closed after the worker has stopped.
    plugin = JobQueuePlugin(Worker(jobs, engine))
    return Litestar([upload, show], plugins=[plugin], on_shutdown=[engine.dispose])


async def walk(url: str) -> None:
    app = create_app(url)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://images") as client,
    ):
        ready = await client.get("/readyz")
        print("GET /readyz", ready.status_code, ready.json()["phase"])
        answer = (await client.post("/images", json={"name": "cat"})).json()
        print("GET /thumbnails", (await client.get("/thumbnails", params=answer)).json()["thumbnail"])


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
