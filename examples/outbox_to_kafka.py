"""An outbox to Kafka: each change of an order becomes a job in the same commit, and the jobs publish it, in order by order.

Run it with `python examples/outbox_to_kafka.py`. It needs confluent-kafka, and publishes to the broker for tests that this
client contains: it speaks Kafka's protocol on a port of this machine, and keeps messages in memory.
"""

import asyncio
from datetime import timedelta
from functools import cache
from typing import Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from pydantic import BaseModel
from sqlalchemy import create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.session import UOWTransaction

from sa_jobqueue import JobMixin, JobQueue, Worker, WorkerOptions
from sa_jobqueue.registry import BatchItem
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Order(Base):
    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]


class Change(BaseModel):
    """The event that is published: what others may rely on, not the columns of the table."""

    kind: Literal["created", "changed", "deleted"]
    order_id: int
    status: str


jobs = JobQueue(Job)
BROKER = {"test.mock.num.brokers": 1}  # in production: {"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}
# Each message is acknowledged or given up before `flush` returns, so none is sent after its job has failed.
SAFE = {"acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 20_000, "log_level": 3}


@cache
def producer() -> Producer:
    """Return the producer of this process: made on first use, so not by programs that only enqueue."""
    return Producer(BROKER | SAFE)


@event.listens_for(Session, "after_flush")  # the ids that the database made are known by now
def put_into_outbox(session: Session, context: UOWTransaction) -> None:
    """Add a job for each order that this flush wrote; it commits, or is rolled back, with the order."""
    changes: list[tuple[Literal["created", "changed", "deleted"], object]] = [("created", row) for row in session.new]
    changes += [("changed", row) for row in session.dirty if session.is_modified(row)]
    changes += [("deleted", row) for row in session.deleted]
    for kind, order in changes:
        if isinstance(order, Order):
            change = Change(kind=kind, order_id=order.id, status=order.status)
            # One at a time and in order for each order, even while a job waits for its next attempt.
            session.add(publish.job(change, ordering_key=f"order-{order.id}"))


@jobs.batch_handler("publish", max_size=500, max_wait=timedelta(milliseconds=20), timeout=timedelta(minutes=1))
def publish(items: list[BatchItem[Change]]) -> list[int | Exception]:
    """Publish many changes; each that the broker has not acknowledged is tried again."""
    outcomes: list[int | Exception] = [TimeoutError("not acknowledged within 30 s") for _ in items]

    def acknowledge(place: int, error: KafkaError | None, message: Message) -> None:
        outcomes[place] = ConnectionError(str(error)) if error else message.offset()

    for place, item in enumerate(items):
        try:
            producer().produce(
                "orders",
                key=str(item.payload.order_id),  # the same partition for all changes of an order
                value=item.payload.model_dump_json(),
                headers={"job-id": str(item.id)},  # the same in each attempt, for consumers to drop what they have seen
                on_delivery=lambda error, message, place=place: acknowledge(place, error, message),
            )
        except (KafkaException, BufferError) as error:  # too large, a full buffer: of this message alone
            outcomes[place] = error
    producer().flush(30)
    return outcomes


def received(count: int) -> list[Change]:
    """Consume up to `count` messages of the first partitions."""
    topics = producer().list_topics("orders", timeout=10)
    servers = ",".join(f"{broker.host}:{broker.port}" for broker in topics.brokers.values())
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "shown", "log_level": 3})
    consumer.assign([TopicPartition("orders", number, 0) for number in topics.topics["orders"].partitions])
    messages = [consumer.poll(10) for _ in range(count)]
    consumer.close()
    return [Change.model_validate_json(message.value()) for message in messages if message and not message.error()]


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all([Order(id=7, status="new"), Order(id=8, status="new")])
        with Session(engine) as session, session.begin():
            session.get_one(Order, 7).status = "paid"
        with Session(engine) as session:
            session.get_one(Order, 8).status = "paid"
            session.flush()
            session.rollback()  # never happened, so it is never published
        with Session(engine) as session, session.begin():
            session.delete(session.get_one(Order, 7))
        asyncio.run(Worker(jobs, engine, options=WorkerOptions(concurrency=100)).run_until_idle())
        changes = received(4)
        for order_id in (7, 8):
            print(
                order_id, *(f"{change.kind}: {change.status}" for change in changes if change.order_id == order_id), sep=", "
            )
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# 7, created: new, changed: paid, deleted: paid
# 8, created: new
