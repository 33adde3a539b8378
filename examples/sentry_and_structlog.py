"""Errors in Sentry and lines of structlog, both with the job that they belong to."""

import asyncio

import sentry_sdk
import structlog
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker
from sa_jobqueue.integrations.sentry import report_jobs
from sa_jobqueue.integrations.structlog import bind_jobs
from sa_jobqueue.testing.servers import open_server

log = structlog.get_logger()
jobs = JobQueue()
bind_jobs(jobs)
report_jobs(jobs)


@jobs.handler("charge", max_attempts=1)
def charge(amount: int) -> None:
    log.info("charging", amount=amount)
    if amount < 0:
        raise ValueError("an amount cannot be negative")


def show(event, hint):
    """Print what would be sent to Sentry."""
    job, error = event["contexts"]["job"], event["exception"]["values"][-1]
    print(f"sentry: {error['type']}: {error['value']} [{job['type']} attempt {job['attempt']} of {job['max_attempts']}]")


def main() -> None:
    # A real application has a DSN, and no `before_send` that drops everything.
    sentry_sdk.init("https://key@sentry.invalid/1", before_send=show, auto_enabling_integrations=False)
    merge, shown_fields = structlog.contextvars.merge_contextvars, ["event", "amount", "job_type", "job_attempt"]
    structlog.configure([merge, lambda _, __, line: " ".join(f"{name}={line[name]}" for name in shown_fields)])
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all([charge.job(30, priority=1), charge.job(-1)])
        worker = Worker(jobs, engine)
        asyncio.run(worker.run_until_idle())
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# event=charging amount=30 job_type=charge job_attempt=1
# event=charging amount=-1 job_type=charge job_attempt=1
# sentry: ValueError: an amount cannot be negative [charge attempt 1 of 1]
