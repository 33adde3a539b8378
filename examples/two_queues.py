"""Two queues in one application, and two lanes of traffic in one of them.

Run it with `python examples/two_queues.py`.
"""

import asyncio

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, Worker, WorkerOptions
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    """Tables `job`, `job_attempt`, ... ; the application adds a column."""

    tenant: Mapped[str | None] = mapped_column(index=True)


class MailJob(JobMixin[str], Base, queue_schema="mail", queue_prefix="out_"):
    """Tables `mail.out_job`, `mail.out_job_attempt`, ... ; ids are text, the application's own or UUIDs as text."""


jobs = JobQueue(Job)
mail = JobQueue(MailJob)


@jobs.handler("report", queue="reports")
def report(month: str) -> str:
    return f"report of {month}"


@jobs.handler("thumbnail")
def thumbnail(image: str) -> str:
    return f"thumbnail of {image}"


@mail.handler("send")
def send(address: str) -> str:
    return f"sent to {address}"


async def work(url: str) -> None:
    """Run a worker for each table; the first serves two queues, and at most one report at a time."""
    engine = create_engine(url)
    options = WorkerOptions(queues={"default": None, "reports": 1}, concurrency=20)
    await asyncio.gather(Worker(jobs, engine, options=options).run_until_idle(), Worker(mail, engine).run_until_idle())
    engine.dispose()


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():  # both in one transaction
            session.add(report.job("May", tenant="acme"))
            session.add(thumbnail.job("cat.png", priority=5))
            session.add(send.job("ann@example.com", id="welcome-ann"))
        asyncio.run(work(server.url))
        with engine.connect() as connection:
            for row in connection.execute(text("SELECT queue, tenant, output FROM job ORDER BY id")):
                print(*row)
            for row in connection.execute(text("SELECT id, status::text, output FROM mail.out_job")):
                print(*row)
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# reports acme report of May
# default None thumbnail of cat.png
# welcome-ann completed sent to ann@example.com
