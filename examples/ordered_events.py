"""Events of each customer in order, one at a time, those of different customers side by side.

Run it with `python examples/ordered_events.py`.
"""

import asyncio

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.operations import explain_job, trigger_jobs
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()
delivered: dict[str, list[str]] = {"ann": [], "bob": []}
down = {"bob"}


@jobs.handler("deliver")
async def deliver(event: dict[str, str]) -> None:
    """Tell a customer's server what happened to the order."""
    if event["customer"] in down:
        raise ConnectionError("no answer")
    delivered[event["customer"]].append(event["what"])


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        for step in ("paid", "packed", "sent"):
            for customer in ("ann", "bob"):
                with Session(engine) as session, session.begin():
                    session.add(deliver.job({"customer": customer, "what": step}, ordering_key=f"customer {customer}"))
        asyncio.run(Worker(jobs, engine).run_until_idle())
        print(delivered)
        down.clear()
        with Session(engine) as session, session.begin():
            first, *waiting_jobs = session.scalars(select(Job).where(Job.status == JobStatus.PENDING).order_by(Job.id)).all()
            print(first.input["what"], "holds up", [job.input["what"] for job in waiting_jobs])
            print(explain_job(session, waiting_jobs[0].id).evidence.get("waits_for", first.id) == first.id)
            trigger_jobs(session, [first.id])  # now, and not when its backoff is over
        asyncio.run(Worker(jobs, engine).run_until_idle())
        print(delivered)
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# {'ann': ['paid', 'packed', 'sent'], 'bob': []}
# paid holds up ['packed', 'sent']
# True
# {'ann': ['paid', 'packed', 'sent'], 'bob': ['paid', 'packed', 'sent']}
