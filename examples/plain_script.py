"""A queue in one script: enqueue a job with the data it is about, run it, look at it.

Run it with `python examples/plain_script.py`. It uses the database of SA_JOBQUEUE_URL, or starts one for itself.
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, Worker, get_job
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    receipt: Mapped[str | None]


class Job(JobMixin, Base):
    """The queue: a table of this application, in this application's metadata."""


jobs = JobQueue(Job)


@dataclass
class OrderPaid:
    order_id: int


@jobs.handler("send_receipt")
def send_receipt(paid: OrderPaid, session: Session) -> dict[str, str]:
    """Write the receipt. The row and the job's completion are one commit."""
    order = session.get_one(Order, paid.order_id)
    order.receipt = f"R-{order.id:04}"
    return {"receipt": order.receipt}


def pay(engine: Engine, order_id: int) -> UUID:
    """Write the order and its job in one transaction: neither is ever there without the other."""
    with Session(engine) as session, session.begin():
        job = send_receipt.job(OrderPaid(order_id))
        session.add_all([Order(id=order_id), job])
        return job.id  # made here, so it is known before anything is written


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        job_id = pay(engine, order_id=7)
        asyncio.run(Worker(jobs, engine).run_until_idle())
        with Session(engine) as session:
            job = get_job(session, job_id, model=Job)
            print(f"{job.type_name} is {job.status}, attempt {job.attempt}, output {job.output}")
            print(f"order 7 has receipt {session.get_one(Order, 7).receipt}")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# send_receipt is completed, attempt 1, output {'receipt': 'R-0007'}
# order 7 has receipt R-0007
