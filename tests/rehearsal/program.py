"""An application on one release of the library, in its own process: `python program.py PAYLOAD_VERSION`.

It imports the library from `PYTHONPATH` and nothing else of this repository, and uses the public API that both releases
have. For each line that it reads it does the step of that name, in a transaction, and prints the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, select, text, update
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import AttemptContext, Blockers, Continuation, JobMixin, JobQueue, Schedule, Worker, list_jobs, operations
from sa_jobqueue.migrations import runner
from sa_jobqueue.observe.health import health
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.types import AttemptOutcome

VERSION = int(sys.argv[1])
repaired = threading.Event()


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


jobs = JobQueue(Job)
RULES = RetentionRules(
    default=Retention(completed=timedelta(0), dead=timedelta(0), cancelled=timedelta(0), dead_letters=timedelta(0))
)


@jobs.handler("complete")
def complete(number: int) -> int:
    return number


@jobs.handler("retry", retry=immediately, max_attempts=2)
def retry(context: AttemptContext) -> int:
    if context.attempt == 1:
        raise ValueError("the first attempt fails")
    return context.attempt


@jobs.handler("die", max_attempts=1)
def die() -> None:
    if not repaired.is_set():
        raise ValueError("not repaired")


@jobs.handler("chain")
def chain(number: int, context: AttemptContext) -> Continuation[int]:
    return context.continue_with(complete, number)


@jobs.handler("blocked")
def blocked(numbers: Blockers[list[int]]) -> int:
    return sum(numbers.outputs)


@jobs.handler("steps")
async def steps(context: AttemptContext) -> list[int]:
    return [await context.step("double", abs, number, key=number) for number in (1, 2)]


@jobs.handler("wait")
async def wait(context: AttemptContext) -> str:
    decision: str = await context.wait_for("decision", event="decided", timeout=timedelta(days=1), output=str)
    return decision


@jobs.handler("ship", version=VERSION, max_attempts=1)
def ship(order: dict[str, Any]) -> int:
    number: int = order["order_id"] if VERSION == 1 else order["order"]["id"]
    return number


if VERSION == 2:

    @ship.upcast(from_version=1)
    def nest(data: dict[str, Any]) -> dict[str, Any]:
        return {"order": {"id": data["order_id"]}}


def migrate(session: Session) -> int:
    return runner.upgrade(session.connection())


def enqueue(session: Session) -> list[str]:
    """Enqueue a job for each kind of operation, and write the column `remark` if the release has it."""
    order = {"order_id": 7} if VERSION == 1 else {"order": {"id": 7}}
    blockers = [complete.job(number) for number in (1, 2)]
    new_jobs = [
        *(complete.job(0), retry.job(), die.job(), chain.job(3), blocked.job(blockers=blockers), steps.job(), wait.job()),
        ship.job(order),
    ]
    for job in new_jobs:
        if hasattr(Job, "remark"):
            setattr(job, "remark", f"from version {VERSION}")  # noqa: B010 - a column of the made-up release alone
    session.add_all(new_jobs)
    session.flush()
    complete.enqueue_many(session, [4, 5])
    operations.upsert_schedule(session, Schedule(name="hourly", cron="0 * * * *", type_name="complete", input=6), model=Job)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    operations.run_schedule(session, "hourly", since=hour, until=hour + timedelta(minutes=1), model=Job)
    return sorted(job.type_name for job in new_jobs)


def work(session: Session) -> None:
    """Run every due job, by a worker with the engine of the session."""
    asyncio.run(Worker(jobs, session.get_bind().engine).run_until_idle())


def mark(session: Session) -> int:
    """Write the value that the enum has in the new release alone; return the number of rows."""
    outcome = AttemptOutcome("suspended")
    statement = update(Job.Attempt).where(Job.Attempt.outcome == AttemptOutcome.FAILED).values(outcome=outcome)
    return session.execute(statement).rowcount  # type: ignore[attr-defined, no-any-return]


def send(session: Session) -> None:
    operations.send_event(session, "decided", "yes", model=Job)


def redrive(session: Session) -> list[str]:
    type_names = sorted(letter.type_name for letter in operations.list_dead_letters(session, model=Job).items)
    operations.redrive_dead_letters(session, model=Job)
    return type_names


def repair(session: Session) -> None:
    """Let the handler of `die` succeed from now on."""
    repaired.set()


def outcomes(session: Session) -> list[str]:
    """Return the outcomes of the attempts, as the library reads them, and measure the queue."""
    health(session.get_bind().engine, model=Job)
    return sorted({str(outcome) for outcome in session.scalars(select(Job.Attempt.outcome))})


def report(session: Session) -> dict[str, list[str]]:
    """Return the statuses of the jobs by their type, as the library reads them."""
    statuses: dict[str, list[str]] = {}
    for job in list_jobs(session, limit=100, model=Job).items:
        statuses.setdefault(job.type_name, []).append(str(job.status))
    return {name: sorted(values) for name, values in sorted(statuses.items())}


def delete(session: Session) -> int:
    """Prune every chain that has ended; return the number of remaining jobs."""
    operations.prune(session, RULES, model=Job)
    remaining: int = session.execute(text("SELECT count(*) FROM job")).scalar_one()
    return remaining


STEPS: dict[str, Callable[[Session], Any]] = {
    step.__name__: step for step in (migrate, enqueue, work, mark, send, redrive, repair, outcomes, report, delete)
}

if __name__ == "__main__":
    engine = create_engine(os.environ["SA_JOBQUEUE_URL"])
    for line in sys.stdin:
        with Session(engine) as session, session.begin():
            result = STEPS[line.strip()](session)
        print(json.dumps(result), flush=True)
    engine.dispose()
