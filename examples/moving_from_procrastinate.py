"""Move the jobs that wait in another queue of the same database to this one, in one transaction.

Run it with `python examples/moving_from_procrastinate.py`. It makes a table with some columns of procrastinate's; in your
database leave `OLD_TABLE` out, stop the old workers, and adapt `SELECT_WAITING` to your queue.
"""

import asyncio

from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobQueueError, Worker, enqueue_many
from sa_jobqueue.testing.servers import open_server

OLD_TABLE = """
    CREATE TABLE procrastinate_jobs (
        id bigint GENERATED ALWAYS AS IDENTITY, task_name text, args jsonb, status text DEFAULT 'todo',
        priority int DEFAULT 0, scheduled_at timestamptz, lock text, queueing_lock text
    );
    INSERT INTO procrastinate_jobs (task_name, args, lock, queueing_lock) VALUES
        ('shop.send_receipt', '{"order_id": 1}', NULL, NULL), ('shop.send_receipt', '{"order_id": 2}', NULL, 'order-2'),
        ('shop.ship', '{"order_id": 1}', 'customer-7', NULL), ('shop.send_receipt', '{"order": 3}', NULL, NULL)
"""
# The lock keeps a worker of the old queue that is still running from starting the same jobs.
SELECT_WAITING = """
    SELECT id, task_name, args, priority, scheduled_at, lock, queueing_lock
    FROM procrastinate_jobs WHERE status = 'todo' ORDER BY priority DESC, id FOR UPDATE
"""

jobs = JobQueue()


class Order(BaseModel, extra="forbid"):
    order_id: int


@jobs.handler("receipt")
async def send_receipt(order: Order) -> None:
    print(f"receipt of order {order.order_id}")


@jobs.handler("ship")
async def ship(order: Order) -> None:
    print(f"order {order.order_id} shipped")


HANDLERS = {"shop.send_receipt": send_receipt, "shop.ship": ship}
"""Which handler runs the jobs of a task."""


def move(session: Session) -> list[str]:
    """Enqueue every waiting job of the old table here and delete it there; return why jobs stay."""
    new_jobs: list[Job] = []
    moved_ids: list[int] = []
    refusals: list[str] = []
    for row in session.execute(text(SELECT_WAITING)):
        handler = HANDLERS[row.task_name]
        try:
            job = handler.job(
                handler.job_type.input.decode("payload", row.args),
                at=row.scheduled_at,
                priority=max(-9, min(9, row.priority)),
                ordering_key=row.lock,
                deduplication_key=row.queueing_lock,
            )
        except JobQueueError as error:  # such as a payload that does not fit its type
            refusals.append(f"{row.task_name} {row.id}: {error}")
            continue
        new_jobs.append(job)
        moved_ids.append(row.id)
    # A key that an open job here has already: `deduplicate_by=` skips such jobs instead of raising.
    enqueue_many(session, new_jobs)
    session.execute(text("DELETE FROM procrastinate_jobs WHERE id = ANY (:ids)"), {"ids": moved_ids})
    return refusals


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(text(OLD_TABLE.replace(":", "\\:")))
        with Session(engine) as session, session.begin():
            for refusal in move(session):
                print("stays:", refusal.splitlines()[0])
        asyncio.run(Worker(jobs, engine).run_until_idle())
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# stays: shop.send_receipt 4: payload.order_id: Field required (and 1 more)
# receipt of order 1
# receipt of order 2
# order 1 shipped
