"""Progress: a handler reports how far it is, and the caller that waits for it sees each report.

Run it with `python examples/progress.py`. It uses the database of SA_JOBQUEUE_URL, or starts one for itself.
"""

import asyncio
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, Worker, WorkerOptions, aio
from sa_jobqueue.operations import get_progress
from sa_jobqueue.testing.servers import open_server
from sa_jobqueue.types import Progress

jobs = JobQueue()
seen_half = asyncio.Event()


@jobs.handler("resize")
async def resize(names: list[str], ctx: AttemptContext) -> int:
    async def images():
        for number, name in enumerate(names):
            if number == len(names) // 2:
                await seen_half.wait()  # a real handler just works on
            yield name

    async for _ in ctx.track(images(), total=len(names), message="resizing"):
        await asyncio.sleep(0)
    return len(names)


def show(progress: Progress) -> None:
    if progress.fraction == 0.5:
        print(progress)
        seen_half.set()


async def main(engine: AsyncEngine, job_id: object) -> None:
    worker = Worker(jobs, engine, options=WorkerOptions(heartbeat_interval=timedelta(milliseconds=200)))
    working = asyncio.create_task(worker.run())
    result = await aio.wait_chain(
        engine, job_id, timeout=timedelta(minutes=1), poll_interval=timedelta(milliseconds=100), on_progress=show
    )
    print("resized:", result.output)
    worker.stop()
    await working
    await engine.dispose()


with open_server() as server:
    engine = create_engine(server.url)
    Job.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        job = resize.job([f"{number}.png" for number in range(10)])
        session.add(job)
        job_id = job.id
    asyncio.run(main(create_async_engine(server.url), job_id))
    with Session(engine) as session:
        print("afterwards:", get_progress(session, job_id))
    engine.dispose()

# Output:
# 5 of 10 (50%): resizing
# resized: 10
# afterwards: None
