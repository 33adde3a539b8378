"""Type checker results for mapped objects as arguments. Read by `test_types.py`, not run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobQueue
from sa_jobqueue.registry import LoadOptions, Ref

jobs = JobQueue()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "typing_order"
    id: Mapped[int] = mapped_column(primary_key=True)


class Customer(Base):
    __tablename__ = "typing_customer"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Shipment:
    order: Ref[Order]


@jobs.handler("send")
def send(order: Order, session: Session) -> None: ...


@jobs.handler("maybe")
def maybe(order: Annotated[Order | None, LoadOptions(missing="none")], session: Session) -> None: ...


@jobs.batch_handler("batch", max_size=10, max_wait=timedelta(seconds=1))
def batch(orders: list[Order], session: Session) -> None: ...


@jobs.handler("ship")
async def ship(shipment: Shipment, session: AsyncSession) -> None:
    assert_type(await shipment.order.load(session), Order)


def load(session: Session, ref: Ref[Order]) -> None:
    assert_type(ref.load(session), Order)
    send.job(Order())
    send.job(Customer())  # E: incompatible type "Customer"; expected "Order"
    send.enqueue(session, Customer())  # E: No overload variant
    maybe.job(None)
    maybe.job(Customer())  # E: No overload variant
    batch.job(Order())
    batch.job(Customer())  # E: incompatible type "Customer"
    ship.job(Shipment(Ref(Order())))
    ship.job(Shipment(Ref(Customer())))  # E: incompatible type "Customer"
