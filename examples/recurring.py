"""A recurring job: each run enqueues the next, as a separate chain, under a key that only one of them can have.

Run it with `python examples/recurring.py`.
"""

import asyncio
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Deduplicate, Enqueued, Job, JobQueue, JobStatus, Worker, enqueue, list_jobs
from sa_jobqueue.operations import ChainFilter, JobFilter, list_chains, trigger_jobs
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()


@jobs.handler("nightly")
def nightly(shop: int, session: Session, ctx: AttemptContext) -> str:
    """Enqueue the next run in the commit that completes this one, whose chain gives its key up for it."""
    following = nightly.job(shop, delay=timedelta(days=1))
    _, outcome = enqueue(session, following, deduplicate=Deduplicate(f"shop {shop}", exclude=[ctx.job.chain_id]))
    return f"run, the next one {'enqueued' if outcome is Enqueued.CREATED else 'was there'}"


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        for _ in range(3):  # as each process of the application does when it starts
            with Session(engine) as session, session.begin():
                _, outcome = enqueue(session, nightly.job(7), deduplicate=Deduplicate("shop 7"))
                print("started" if outcome is Enqueued.CREATED else "runs already")
        for _ in range(3):
            asyncio.run(Worker(jobs, engine).run_until_idle())
            with Session(engine) as session, session.begin():
                pending = list_jobs(session, where=JobFilter(statuses=[JobStatus.PENDING]))
                trigger_jobs(session, [job.id for job in pending])  # a day passes
        with Session(engine) as session:
            for chain in list_chains(session, where=ChainFilter(types=["nightly"])):
                print(f"{chain.status}, {chain.length} job, key {chain.deduplication_key}: {chain.output}")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# started
# runs already
# runs already
# pending, 1 job, key shop 7: None
# completed, 1 job, key None: run, the next one enqueued
# completed, 1 job, key None: run, the next one enqueued
# completed, 1 job, key None: run, the next one enqueued
