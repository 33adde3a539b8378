"""Chains: a handler returns its output, or the job that its chain goes on with.

Run it with `python examples/chains.py`.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, Continuation, JobMixin, JobQueue, Worker, get_chain, wait_chain
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Parcel(Base):
    __tablename__ = "parcel"

    order_id: Mapped[int] = mapped_column(primary_key=True)


jobs = JobQueue(Job)


@dataclass
class Order:
    order_id: int
    cents: int


@jobs.handler("tell")
async def tell(message: str) -> str:
    return message


@jobs.handler("ship")
def ship(order: Order, session: Session, ctx: AttemptContext) -> Continuation[str]:
    # The parcel, this job's completion and the next job are one commit.
    session.add(Parcel(order_id=order.order_id))
    return ctx.continue_with(tell, f"order {order.order_id} is on its way")


@jobs.handler("check")
async def check(order: Order, ctx: AttemptContext) -> int | Continuation[str]:
    if order.cents == 0:
        return 0  # the chain ends here, with this output
    return ctx.continue_with(ship, order)


@jobs.handler("countdown")
async def countdown(n: int, ctx: AttemptContext) -> str | Continuation[str]:
    if n == 0:
        return "lift-off"
    return ctx.continue_with(countdown, n - 1, delay=timedelta(milliseconds=1))


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            paid, empty, counting = check.job(Order(7, 990)), check.job(Order(8, 0)), countdown.job(3)
            session.add_all([paid, empty, counting])
            ids = [paid.id, empty.id, counting.id]
        worker = Worker(jobs, engine)

        async def run() -> None:
            running = asyncio.create_task(worker.run())
            # From outside the queue: wait for a chain's end, its output typed as `check` declares it, `int | str`.
            result = await asyncio.to_thread(
                wait_chain, engine, ids[0], timeout=timedelta(seconds=30), output=check, model=Job
            )
            print(f"{result.type_name} ended with {result.last_type_name}: {result.output}")
            await asyncio.to_thread(wait_chain, engine, ids[2], timeout=timedelta(seconds=30), model=Job)
            worker.stop()
            await running

        asyncio.run(run())
        with Session(engine) as session:
            for chain in (get_chain(session, chain_id, model=Job) for chain_id in ids):
                type_names = " > ".join(job.type_name for job in chain.jobs)
                print(f"{chain.status}: {type_names}: {jobs.output(chain)!r}")
            for row in session.execute(text("SELECT type_name, length, output FROM job_chain ORDER BY length")):
                print(tuple(row))
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# check ended with tell: order 7 is on its way
# completed: check > ship > tell: 'order 7 is on its way'
# completed: check: 0
# completed: countdown > countdown > countdown > countdown: 'lift-off'
# ('check', 1, 0)
# ('check', 3, 'order 7 is on its way')
# ('countdown', 4, 'lift-off')
