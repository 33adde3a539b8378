"""Failing jobs: retried by their policy, then kept as dead letters until they are redriven or dismissed.

Run it with `python examples/retries_and_dead_letters.py`.
"""

import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, Job, JobQueue, Worker, get_job
from sa_jobqueue.operations import (
    DeadLetterFilter,
    dismiss_dead_letters,
    group_dead_letters,
    list_attempts,
    redrive_dead_letters,
)
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing.servers import open_server
from sa_jobqueue.types import DeadReason

jobs = JobQueue()
bank = {"up": False}


# Left to itself a job waits one second after its first failure, then up to an hour, and is tried 20 times.
@jobs.handler("charge", max_attempts=3, retry=immediately)
def charge(order_id: int, ctx: AttemptContext) -> str:
    if order_id < 0:
        raise Discard(f"there is no order {order_id}")  # no attempt could ever succeed: die now
    if not bank["up"]:
        raise ConnectionError("the bank does not answer")
    return f"charged at attempt {ctx.attempt}"


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            good, bad = charge.job(7), charge.job(-1)
            good_id = good.id
            session.add_all([good, bad])
        asyncio.run(Worker(jobs, engine).run_until_idle())

        with Session(engine) as session, session.begin():
            for attempt in list_attempts(session, good_id):
                print(f"attempt {attempt.attempt} {attempt.outcome}: {attempt.error['message']}")
            for group in group_dead_letters(session):
                print(f"dead: {group.count} {group.type_name}, {group.reason}, {group.error_type}")

            # The bank is back: jobs that failed because of it get three fresh attempts, hopeless ones are closed.
            bank["up"] = True
            exhausted = DeadLetterFilter(types=["charge"], reasons=[DeadReason.EXHAUSTED])
            print(f"redriven: {redrive_dead_letters(session, where=exhausted, by='ann').changed}")
            print(f"dismissed: {dismiss_dead_letters(session, by='ann').changed}")

        asyncio.run(Worker(jobs, engine).run_until_idle())
        with Session(engine) as session:
            job = get_job(session, good_id)
            print(f"{job.status}: {job.output}")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# attempt 1 failed: the bank does not answer
# attempt 2 failed: the bank does not answer
# attempt 3 failed: the bank does not answer
# dead: 1 charge, exhausted, ConnectionError
# dead: 1 charge, discarded, sa_jobqueue.errors.Discard
# redriven: 1
# dismissed: 1
# completed: charged at attempt 4
