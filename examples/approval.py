"""Completing a job without a worker: a person decides in time, or the job's own handler is the timeout.

Run it with `python examples/approval.py`.
"""

import asyncio
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, Continuation, JobMixin, JobQueue, Worker, get_chain
from sa_jobqueue.errors import JobEndedError
from sa_jobqueue.operations import complete_job, lock_chain, trigger_jobs
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Expense(Base):
    __tablename__ = "expense"

    id: Mapped[int] = mapped_column(primary_key=True)
    decision: Mapped[str] = mapped_column(default="open")


jobs = JobQueue(Job)


@jobs.handler("pay")
def pay(expense_id: int, session: Session) -> str:
    return f"expense {expense_id} is paid, it was {session.get_one(Expense, expense_id).decision}"


@jobs.handler("approve")
def approve(expense_id: int, session: Session) -> str | Continuation[str]:
    """The timeout: it is due if the expense is not decided by then."""
    session.get_one(Expense, expense_id).decision = "refused, not decided in time"
    return "timed out"


@jobs.handler("hand_in")
def hand_in(expense_id: int, ctx: AttemptContext) -> Continuation[str]:
    return ctx.continue_with(approve, expense_id, delay=timedelta(days=3))


def decide(engine: Engine, chain_id: UUID, expense_id: int, decision: str) -> None:
    """The button's action: the application's change and the completion are one commit."""
    with Session(engine) as session, session.begin():
        job = lock_chain(session, chain_id, model=Job)  # no other transaction can end or continue the chain now
        if job.type_name != "approve":
            print(f"expense {expense_id}: too early, or too late")
            return
        try:
            result = pay.continuation(expense_id) if decision == "approved" else "refused"
            complete_job(session, job.id, result, handler=approve)
        except JobEndedError as error:
            print(f"expense {expense_id}: it is {error.status} already")
            return
        session.get_one(Expense, expense_id).decision = decision


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            chains = {number: hand_in.job(number) for number in (1, 2, 3)}
            session.add_all([*chains.values(), *(Expense(id=number) for number in chains)])
            ids = {number: job.id for number, job in chains.items()}
        asyncio.run(Worker(jobs, engine).run_until_idle())

        decide(engine, ids[1], 1, "approved")
        decide(engine, ids[2], 2, "refused")
        decide(engine, ids[2], 2, "approved")
        with Session(engine) as session, session.begin():
            # Three days pass for the third.
            trigger_jobs(session, [get_chain(session, ids[3], model=Job).last_job_id], model=Job)
        asyncio.run(Worker(jobs, engine).run_until_idle())
        with Session(engine) as session:
            for number, chain_id in ids.items():
                chain = get_chain(session, chain_id, model=Job)
                print(f"{number}: {session.get_one(Expense, number).decision}: {chain.last_type_name}, {chain.output}")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# expense 2: it is completed already
# 1: approved: pay, expense 1 is paid, it was approved
# 2: refused: approve, refused
# 3: refused, not decided in time: approve, timed out
