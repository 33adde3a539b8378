"""Many tenants in one queue: each customer is a fairness key, and the keys take turns, so that a flood delays no other.

Run it with `python examples/many_customers.py`.
"""

import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()
started: list[str] = []


@jobs.handler("send", queue="mail", fairness_by="customer")
async def send(mail: dict[str, str]) -> None:
    """Send one mail."""
    started.append(mail["customer"])


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all([send.job({"customer": "flood"}) for _ in range(300)])
        with Session(engine) as session, session.begin():  # who come later, and those who pay for more
            session.add_all([send.job({"customer": f"small-{number}"}) for number in range(5)])
            session.add_all([send.job({"customer": "large"}) for _ in range(30)])
            upsert_queue(session, QueueSettings(name="mail", fairness_key="large", weight=5))
        asyncio.run(Worker(jobs, engine, options=WorkerOptions(concurrency=10)).run_until_idle())
        print("jobs", len(started))
        print("small ones among the first 30:", sum(name.startswith("small") for name in started[:30]))
        large, flood = (started[:30].count(name) for name in ("large", "flood"))
        print("large has more than twice what the flood has:", large > 2 * flood)
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# jobs 335
# small ones among the first 30: 5
# large has more than twice what the flood has: True
