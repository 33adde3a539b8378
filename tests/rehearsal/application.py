"""An application whose jobs are rehearsed: its tables, and handlers that call the function that their payload names."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ForeignKey, create_engine, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, Cancel, Discard, JobMixin, JobQueue
from sa_jobqueue.operations import after_commit, send_event
from tests.fixtures.hostile import HOSTILE

LONG = timedelta(seconds=60)


class Base(DeclarativeBase): ...


class Job(JobMixin, Base): ...


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class Payment(Base):
    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id, deferrable=True, initially="DEFERRED"))
    code: Mapped[str] = mapped_column(unique=True)


jobs = JobQueue(Job)
is_broken: bool = False
"""Whether handlers fail, so that their jobs die."""
hooks: list[str] = []


def pay(session: Session, ctx: AttemptContext) -> None:
    order = session.get_one(Order, 1)
    order.status = "paid"
    session.add(Payment(order_id=1, code="new"))


def remove(session: Session, ctx: AttemptContext) -> None:
    session.delete(session.get_one(Order, 2))


def bypass(session: Session, ctx: AttemptContext) -> None:
    session.execute(insert(Payment), [{"order_id": 1, "code": "b"}, {"order_id": 1, "code": "c"}])
    session.execute(text("UPDATE shop_order SET status = 'secret'"))


def savepoint(session: Session, ctx: AttemptContext) -> None:
    with session.begin_nested() as nested:
        session.add(Payment(order_id=1, code="undone"))
        session.flush()
        nested.rollback()
    session.add(Payment(order_id=1, code="kept"))


def bug(session: Session, ctx: AttemptContext) -> None:
    session.add(Payment(order_id=1, code="before the bug"))
    session.flush()
    rates: dict[str, float] = {}
    rates["vat"]


def unique(session: Session, ctx: AttemptContext) -> None:
    session.add(Payment(order_id=1, code="taken"))


def deferred(session: Session, ctx: AttemptContext) -> None:
    session.add(Payment(order_id=99, code="of no order"))


def locked(session: Session, ctx: AttemptContext) -> None:
    session.get_one(Order, 1).status = "paid"


def permission(session: Session, ctx: AttemptContext) -> None:
    session.execute(text("SET LOCAL ROLE pg_monitor"))
    session.add(Payment(order_id=1, code="forbidden"))


def connect(session: Session, ctx: AttemptContext) -> None:
    socket.create_connection(("127.0.0.1", 9))


def swallow(session: Session, ctx: AttemptContext) -> None:
    with suppress(BaseException):
        socket.create_connection(("127.0.0.1", 9))


def program(session: Session, ctx: AttemptContext) -> None:
    subprocess.run(["true"], check=True)


def commit_elsewhere(session: Session, ctx: AttemptContext) -> None:
    with Session(create_engine(session.get_bind().engine.url.set(drivername="postgresql+psycopg"))) as other_session:
        other_session.add(Order(id=77))
        other_session.commit()


def autocommit(session: Session, ctx: AttemptContext) -> None:
    engine = create_engine(session.get_bind().engine.url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(insert(Order).values(id=77))


def commit(session: Session, ctx: AttemptContext) -> None:
    session.add(Order(id=77))
    session.commit()


def commit_text(session: Session, ctx: AttemptContext) -> None:
    session.execute(insert(Order).values(id=77))
    session.execute(text("COMMIT"))


def commit_driver(session: Session, ctx: AttemptContext) -> None:
    session.execute(insert(Order).values(id=77))
    connection: Any = session.connection().connection.driver_connection
    connection.commit()


def enqueue(session: Session, ctx: AttemptContext) -> None:
    session.add(act.job("first"))
    act.enqueue(session, "second", queue="mail")
    send_event(session, "shipped:1", model=Job)


def listen_to_end(session: Session, ctx: AttemptContext) -> None:
    after_commit(session, lambda: Path(os.environ["HOOK"]).touch())


def hostile(session: Session, ctx: AttemptContext) -> None:
    raise ValueError(HOSTILE)


def discard(session: Session, ctx: AttemptContext) -> None:
    raise Discard("no longer wanted")


def cancel(session: Session, ctx: AttemptContext) -> None:
    raise Cancel("nothing to do")


ACTS: dict[str, Callable[[Session, AttemptContext], None]] = {
    function.__name__: function
    for function in (
        *(pay, remove, bypass, savepoint, bug, unique, deferred, locked, permission, connect, swallow, program),
        *(
            hostile,
            commit_elsewhere,
            autocommit,
            commit,
            commit_text,
            commit_driver,
            enqueue,
            listen_to_end,
            discard,
            cancel,
        ),
    )
}


def check_broken() -> None:
    if is_broken:
        raise Discard("broken")


def draft() -> str:
    return "Dear customer"


async def async_draft() -> str:
    return draft()


@jobs.handler("act", rehearsable=True)
def act(name: str, session: Session, ctx: AttemptContext) -> None:
    check_broken()
    match name:
        case "step":
            session.add(Payment(order_id=1, code=ctx.step("draft", draft)))
        case "call":
            ctx.step("call", lambda: program(session, ctx))
        case "nested":
            ctx.step("call", lambda: ctx.step("draft", draft))
        case "wait":
            session.add(Order(id=5))
            ctx.wait_for("approval", event="approved:1", timeout=LONG)
        case "child":
            ctx.run(act, "pay")
        case "transaction":
            with ctx.transaction("book") as step_session:
                assert step_session is not None
                step_session.add(Payment(order_id=1, code="kept"))
            session.add(Payment(order_id=1, code="lost"))
            session.flush()
            raise KeyError("after")
        case "hang":
            ctx.wait_cancelled(LONG)
        case "block":
            session.add(Payment(order_id=1, code="blocked"))
            session.flush()
            Path(os.environ["BLOCKED"]).write_text(str(os.getpid()))
            ctx.wait_cancelled(LONG)
        case _:
            ACTS[name](session, ctx)


@jobs.handler("async_act", rehearsable=True)
async def async_act(name: str, session: AsyncSession, ctx: AttemptContext) -> None:
    check_broken()
    match name:
        case "step":
            session.add(Payment(order_id=1, code=await ctx.step("draft", async_draft)))
        case "wait":
            session.add(Order(id=5))
            await ctx.wait_for("approval", event="approved:1", timeout=LONG)
        case "child":
            await ctx.run(act, "pay")
        case "transaction":
            async with ctx.transaction("book") as step_session:
                assert step_session is not None
                step_session.add(Payment(order_id=1, code="kept"))
            session.add(Payment(order_id=1, code="lost"))
            await session.flush()
            raise KeyError("after")
        case "hang":
            await asyncio.sleep(LONG.total_seconds())
        case _:
            await session.run_sync(ACTS[name], ctx)


@jobs.handler("ship", rehearsable=True)
def ship(order: Order, session: Session) -> None:
    check_broken()
    order.status = "shipped"


@jobs.handler("async_ship", rehearsable=True)
async def async_ship(order: Order, session: AsyncSession) -> None:
    check_broken()
    order.status = "shipped"


@jobs.handler("versioned", rehearsable=True, version=3)
def versioned(name: str, session: Session) -> None: ...


@jobs.handler("async_versioned", rehearsable=True, version=3)
async def async_versioned(name: str, session: AsyncSession) -> None: ...


@jobs.handler("unmarked")
def unmarked(name: str, session: Session) -> None: ...


@jobs.handler("select", rehearsable=True)
def select_orders(session: Session) -> None:
    session.scalars(select(Order)).all()
