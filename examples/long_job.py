"""A job with steps whose worker is killed ten times with `kill -9`: it pays once, and repeats one call.

Run it with `python examples/long_job.py`. It takes about 30 seconds.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, JobMixin, JobQueue, JobStatus, Worker, WorkerOptions
from sa_jobqueue.errors import IllegalTransitionError
from sa_jobqueue.operations import trigger_jobs
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Invoice(Base):
    __tablename__ = "invoice"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


jobs = JobQueue(Job)
NOTES = Path(os.environ.get("NOTES", "."))
"""Folder in which this example counts: a file for each kill, and a line for each call of the model."""


def die_once(point: str) -> None:
    """Kill this process, the worker, with `kill -9`, the first time that a handler comes to this point."""
    mark = NOTES / f"killed {point}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def write_chapter(title: str, number: int) -> str:
    """Call the model, which costs money."""
    with (NOTES / "calls").open("a") as calls:
        calls.write(f"{title} {number}\n")
    if number == 2:
        die_once("before the answer is recorded")
    return f"Chapter {number} of {title}."


@jobs.handler("write_book")
def write_book(title: str, ctx: AttemptContext) -> str:
    chapters = []
    for number in range(1, 6):
        chapters.append(ctx.step("chapter", write_chapter, title, number, key=number))
        die_once(f"after chapter {number}")
    with ctx.transaction("charge") as session:
        if session is not None:
            session.add(Invoice(title=title))
            die_once("before the flush")
            session.flush()
            die_once("before the commit")
    die_once("after the commit")
    die_once("before the end")
    return " ".join(chapters)


def work(url: str) -> None:
    """Run a worker until nothing is due: one process of many."""
    often = {"heartbeat_interval": timedelta(milliseconds=200)}
    options = WorkerOptions(heartbeat_timeout=timedelta(seconds=1), **often)
    Worker(jobs, create_engine(url), options=options).run_sync()


def main(url: str) -> None:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        job_id = write_book.enqueue(session, "Queues")
        session.commit()
    with tempfile.TemporaryDirectory() as notes:
        deaths = 0
        status = JobStatus.PENDING
        while status is not JobStatus.COMPLETED:
            with subprocess.Popen([sys.executable, __file__, url], env=os.environ | {"NOTES": notes}) as worker:
                while worker.poll() is None and status is not JobStatus.COMPLETED:
                    time.sleep(0.05)
                    with Session(engine) as session, session.begin():
                        status = session.scalars(select(Job.status).where(Job.id == job_id)).one()
                        if status is JobStatus.PENDING:  # do not wait for the backoff after a rescue
                            with suppress(IllegalTransitionError):  # the worker has claimed it since
                                trigger_jobs(session, [job_id], model=Job)
                worker.terminate()
                deaths += worker.wait() == -signal.SIGKILL
        calls = (Path(notes) / "calls").read_text().splitlines()
    print("workers killed:", deaths)
    print(f"calls of the model: {len(calls)}, for {len(set(calls))} chapters")
    with Session(engine) as session:
        print("invoices:", session.scalar(select(func.count()).select_from(Invoice)))
        print("output:", session.scalars(select(Job.output).where(Job.id == job_id)).one())
    engine.dispose()


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    with open_server() as server:
        main(server.url)

# Output:
# workers killed: 10
# calls of the model: 6, for 5 chapters
# invoices: 1
# output: Chapter 1 of Queues. Chapter 2 of Queues. Chapter 3 of Queues. Chapter 4 of Queues. Chapter 5 of Queues.
