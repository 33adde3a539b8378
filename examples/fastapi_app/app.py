"""A shop's API: an order and the job that ships it are written in one request, in one transaction.

    alembic upgrade head          # its own tables and the queue's, one linear history
    uvicorn app:app --reload      # the API
    sa-jobqueue worker app:jobs   # the worker, as many as you like

All three read the database from SA_JOBQUEUE_URL.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import FastAPI, HTTPException
from models import Job, Order
from pydantic import BaseModel, PositiveInt
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import joinedload

from sa_jobqueue import JobQueue

engine = create_async_engine(os.environ["SA_JOBQUEUE_URL"])
make_session = async_sessionmaker(engine, expire_on_commit=False)
jobs = JobQueue(Job)


class ShipOrder(BaseModel):
    order_id: int


@jobs.handler("ship_order", max_attempts=8)
async def ship_order(ship: ShipOrder, session: AsyncSession) -> str:
    """Book the parcel. The tracking number and the completion of this job are one commit."""
    order = await session.get_one(Order, ship.order_id)
    # A real carrier would be asked with a key of ours: a job may run twice, and must not book two parcels.
    order.tracking = f"TRACK-{order.id}"
    return order.tracking


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    id: PositiveInt
    item: str


class OrderView(BaseModel):
    item: str
    tracking: str | None
    job_id: UUID
    job_status: str


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder) -> dict[str, UUID]:
    """Write the order and its job in one transaction: committed before the answer, or neither is there."""
    job = ship_order.job(ShipOrder(order_id=new.id))
    try:
        async with make_session.begin() as session:
            session.add(Order(id=new.id, item=new.item, job=job))
    except IntegrityError as error:
        raise HTTPException(409, f"there is an order {new.id} already") from error
    return {"job_id": job.id}


@app.get("/orders/{order_id}")
async def show_order(order_id: int) -> OrderView:
    async with make_session() as session:
        order = await session.get(Order, order_id, options=[joinedload(Order.job)])
    if order is None or order.job is None:
        raise HTTPException(404)
    return OrderView(item=order.item, tracking=order.tracking, job_id=order.job.id, job_status=order.job.status)
