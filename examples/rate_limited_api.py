"""An API that limits calls at a time, and in any period by their cost: all workers together keep to both limits.

Run it with `python examples/rate_limited_api.py`.
"""

import asyncio
from datetime import timedelta

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Retry, Worker
from sa_jobqueue.testing.servers import open_server

PERIOD = timedelta(milliseconds=300)
jobs = JobQueue()
# In any period at most the rate and the burst start: 10 by their cost. No call costs more than the burst.
jobs.queue("models", global_concurrency=3, rate_limit=6, rate_burst=4, rate_period=PERIOD)
refused = {4}  # calls that the provider refuses, once
running: list[int] = []
most: list[int] = []


@jobs.handler("ask", queue="models", timeout=timedelta(seconds=30))
async def ask(number: int) -> str:
    """Send one request; if the provider asks to wait, retry after that time."""
    if number in refused:
        refused.remove(number)
        raise Retry(timedelta(milliseconds=50), reason="429")
    running.append(number)
    most.append(len(running))
    await asyncio.sleep(0.01)
    running.remove(number)
    return f"answer {number}"


async def work(url: str) -> None:
    engines = [create_engine(url) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        workers = [Worker(jobs, engine) for engine in engines]
        for worker in workers:
            group.create_task(worker.run())
        with Session(engines[0]) as session:
            while session.scalars(select(Job.id).where(Job.completed_at.is_(None)).limit(1)).first() is not None:
                session.rollback()
                await asyncio.sleep(0.05)
        for worker in workers:
            worker.stop()
    for engine in engines:
        engine.dispose()


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all(ask.job(number, rate_cost=1 + number % 4) for number in range(12))
        asyncio.run(work(server.url))
        with Session(engine) as session:
            starts = [(job.started_at, job.rate_cost) for job in session.scalars(select(Job))]
            within = [
                sum(weight for at, weight in starts if period_end - PERIOD < at <= period_end) for period_end, _ in starts
            ]
            print("answered", session.scalars(select(Job.output)).all().count("answer 4"), "of those refused")
        print("at most three at a time:", max(most) <= 3)
        print("at most ten by weight in any period:", max(within) <= 10)
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# answered 1 of those refused
# at most three at a time: True
# at most ten by weight in any period: True
