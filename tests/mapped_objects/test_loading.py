"""How workers load the mapped objects that are arguments of their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, event, inspect, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, joinedload, sessionmaker, with_loader_criteria

from sa_jobqueue import Backoff, Job, JobQueue
from sa_jobqueue.errors import ObjectNotFoundError
from sa_jobqueue.operations.references import load
from sa_jobqueue.registry import BatchFailed, BatchItem, LoadOptions, Ref
from sa_jobqueue.testing import drain, perform
from sa_jobqueue.types import JobStatus
from tests.fixtures.shop import Customer, Express, Line, Order, Parcel, Voucher
from tests.fixtures.workers import drain as drain_by_worker

pytestmark = pytest.mark.every_python

LATER = Backoff(base=timedelta(hours=1), jitter=False)
Locked = Annotated[Order, LoadOptions(for_update=True)]


@dataclass
class Payload:
    order: Ref[Order]
    note: str


def error_of(session: Session, job: Job) -> Any:
    return session.get_one(Job, job.id).last_error


@contextmanager
def recorded(engine: Engine, start: str = "") -> Iterator[list[str]]:
    """Give the list of the statements on an engine's tables of the shop, in their order."""
    statements: list[str] = []

    def record(connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "shop_" in statement and statement.startswith(start):
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", record)
    yield statements
    event.remove(engine, "before_cursor_execute", record)


def test_handlers_of_all_kinds_receive_objects_of_their_session(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, received = JobQueue(), []

    @jobs.handler("sync")
    def sync(order: Order, session: Session) -> None:
        received.append(order.id)
        order.status = f"{order.status}, sync" if order in session else ""

    @jobs.handler("asynchronous")
    async def asynchronous(order: Order, session: AsyncSession) -> None:
        received.append(order.id)
        assert order in session
        order.status += ", async"

    @jobs.keyword_handler("fields")
    async def fields(order: Order, note: str, session: AsyncSession, customer: Customer | None = None) -> str:
        order.status += f", {note}, {customer}"
        return order.status

    @jobs.handler("several")
    def several(orders: list[Order], session: Session) -> list[int]:
        return [order.id for order in orders]

    with shop.begin() as session:
        orders = [Order(), Order(), Order(), Order()]
        session.add_all(orders)
        session.add_all([sync.job(orders[0]), asynchronous.job(orders[1]), fields.job(order=orders[2], note="keyword")])
        session.add(last := several.job([orders[3], orders[1], orders[3]]))
    assert drain(jobs, engine).completed == 4
    with shop() as session:
        assert [order.status for order in session.scalars(select(Order).order_by(Order.id))] == [
            "new, sync",
            "new, async",
            "new, keyword, None",
            "new",
        ]
        assert session.get_one(Job, last.id).output == [4, 2, 4]
    assert sorted(received) == [1, 2]


def test_the_object_is_the_first_statement_and_the_only_one(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs = JobQueue()

    @jobs.keyword_handler("compare")
    def compare(first: Order, second: Order, same: Order, session: Session) -> bool:
        return first is same and second is not first

    with shop.begin() as session:
        session.add_all([first := Order(), second := Order()])
        session.add(job := compare.job(first=first, second=second, same=first))
    with recorded(engine) as statements:
        drain(jobs, engine)
    assert len(statements) == 1
    with shop() as session:
        assert session.get_one(Job, job.id).output is True


def test_references_are_loaded_by_handlers(shop: sessionmaker[Session], engine: Engine, async_engine: AsyncEngine) -> None:
    jobs = JobQueue()

    @jobs.handler("sync")
    def sync(payload: Payload, session: Session) -> str:
        assert payload.order.identity == (1,)
        return payload.order.load(session).status + payload.note

    @jobs.handler("asynchronous")
    async def asynchronous(order: Ref[Order], session: AsyncSession) -> str:
        loaded = await order.load(session)
        assert loaded is await order.load(session)
        return loaded.status

    with shop.begin() as session:
        order = Order(status="paid")
        session.add_all([order, sync.job(Payload(Ref(order), "!")), asynchronous.job(order)])  # type: ignore[arg-type]
    with recorded(engine) as statements:
        drain(jobs, engine)
    assert len(statements) == 1
    with shop() as session:
        assert session.scalars(select(Job.output).order_by(Job.id)).all() == ["paid!", "paid"]
        assert Ref(Order(id=7)).identity is None
        with pytest.raises(ValueError, match="has no primary key yet: flush its session first"):
            Ref(Order()).load(session)


def test_an_object_that_is_falsy_is_found(shop: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Order, "__len__", lambda order: 0, raising=False)
    with shop.begin() as session:
        session.add(order := Order())
        session.flush()
        (loaded,) = load(session, [Ref(order)])
        assert loaded is order


def test_keys_of_every_kind_are_found_and_subclasses_loaded(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, received = JobQueue(), []

    @jobs.keyword_handler("all")
    def load_all(line: Line, voucher: Voucher, parcel: Parcel, session: Session) -> None:
        received.extend([(line.order_id, line.number), voucher.code, type(parcel).__name__])

    with shop.begin() as session:
        objects: dict[str, Any] = {
            "line": Line(order_id=7, number=2),
            "voucher": Voucher(code="abc"),
            "parcel": Express(courier="bike"),
        }
        session.add_all(objects.values())
        session.add(load_all.job(**objects))
    assert drain(jobs, engine).completed == 1
    assert received == [(7, 2), "abc", "Express"]


def test_a_renamed_class_is_found_by_its_former_name(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, received = JobQueue(), []

    @jobs.handler("send")
    def send(order: Annotated[Order, LoadOptions(former_names=["Purchase"])], session: Session) -> None:
        received.append(order.id)

    with shop.begin() as session:
        session.add(Order(id=7))
        job = send.job({"$class": "Purchase", "id": 7})  # type: ignore[arg-type]
        job.input = {"$class": "Purchase", "id": 7}  # as an earlier release wrote it
        session.add(job)
    assert drain(jobs, engine).completed == 1
    assert received == [7]


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        ("fail", JobStatus.PENDING),
        ("discard", JobStatus.DEAD),
        ("cancel", JobStatus.CANCELLED),
        ("none", JobStatus.COMPLETED),
    ],
)
def test_a_missing_row_has_a_declared_outcome(
    shop: sessionmaker[Session], engine: Engine, missing: Any, status: JobStatus
) -> None:
    jobs = JobQueue()

    def func(order: Any, session: Session) -> bool:
        return order is None

    func.__annotations__["order"] = Annotated[Order | None, LoadOptions(missing=missing)]
    send: Any = jobs.handler("send", retry=LATER)(func)

    with shop.begin() as session:
        session.add(job := send.job({"$class": "Order", "id": 7}))
    drain(jobs, engine, raise_errors=False)
    with shop() as session:
        ended: Any = session.get_one(Job, job.id)
        assert (ended.status, ended.attempt, ended.output) == (status, 1, True if missing == "none" else None)
        if missing != "none":
            assert ended.last_error["message"].startswith("found no Order 7 (database ")


async def test_a_worker_counts_the_attempt_of_a_missing_row(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs = JobQueue()

    @jobs.handler("send", max_attempts=1)
    async def send(order: Order, session: AsyncSession) -> None: ...

    with shop.begin() as session:
        session.add(job := send.job({"$class": "Order", "id": 7}))  # type: ignore[arg-type]
    await drain_by_worker(jobs, engine)
    with shop() as session:
        ended: Any = session.get_one(Job, job.id)
        assert (ended.status, ended.attempt) == (JobStatus.DEAD, 1)
        assert ended.last_error["type"].endswith("ObjectNotFoundError")


def test_a_row_hidden_by_row_level_security_is_not_gone(shop: sessionmaker[Session]) -> None:
    with shop.begin() as session:
        session.add_all([Order(id=7, tenant="a"), Order(id=8, tenant="b")])
        session.flush()
        ref: Ref[Order] = Ref(session.get_one(Order, 8))
        session.execute(text("ALTER TABLE shop_order ENABLE ROW LEVEL SECURITY"))
        session.execute(text("CREATE POLICY tenant ON shop_order USING (tenant = current_setting('app.tenant', true))"))
        session.execute(text("CREATE ROLE shop_worker"))
        try:
            session.execute(text("GRANT SELECT ON shop_order TO shop_worker"))
            session.execute(text("SET LOCAL ROLE shop_worker"))
            session.execute(text("SET LOCAL app.tenant = 'a'"))
            with pytest.raises(ObjectNotFoundError, match=r"found no Order 8 \(database .*, role shop_worker\)"):
                ref.load(session)
            session.execute(text("SET LOCAL app.tenant = 'b'"))
            assert ref.load(session).id == 8
        finally:
            session.rollback()


def test_soft_deleted_rows_are_hidden_by_loader_criteria(shop: sessionmaker[Session]) -> None:
    jobs = JobQueue()

    @jobs.handler("send")
    def send(order: Order, session: Session) -> int:
        return order.id

    @event.listens_for(shop, "do_orm_execute")
    def hide(state: Any) -> None:
        if state.is_select:
            state.statement = state.statement.options(with_loader_criteria(Order, Order.status != "deleted"))

    with shop.begin() as session:
        session.add_all([order := Order(), deleted := Order(status="deleted")])
        session.flush()
        session.expunge_all()
        assert perform(send, order, session=session) == 1
        with pytest.raises(ObjectNotFoundError, match="found no Order 2"):
            perform(send, deleted, session=session)


def test_loader_options_are_applied(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, loaded = JobQueue(), []

    @jobs.handler("send")
    def send(
        order: Annotated[Order, LoadOptions(options=[joinedload(Order.customer)], for_update=True)], session: Session
    ) -> None:
        loaded.append("customer" not in inspect(order).unloaded)

    with shop.begin() as session:
        session.add_all([order := Order(customer=Customer()), send.job(order)])
    with recorded(engine) as statements:
        assert drain(jobs, engine).completed == 1
    assert loaded == [True]
    assert statements[0].endswith("FOR UPDATE OF shop_order")


def test_locks_of_a_polymorphic_class_leave_out_outer_joined_tables(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, received = JobQueue(), []

    @jobs.keyword_handler("lock")
    def lock(
        parcel: Annotated[Parcel, LoadOptions(for_update=True)],
        express: Annotated[Express, LoadOptions(for_update=True)],
        session: Session,
    ) -> None:
        received.extend([type(parcel).__name__, type(express).__name__])

    with shop.begin() as session:
        parcel = Express()
        session.add_all([lock.job(parcel=parcel, express=parcel), parcel])
    with recorded(engine) as statements:
        assert drain(jobs, engine).completed == 1
    assert received == ["Express", "Express"]
    assert [statement.partition("FOR UPDATE OF ")[2] for statement in statements] == [
        "shop_parcel, shop_express",
        "shop_parcel",
    ]


def test_for_update_locks_in_the_order_of_keys(shop: sessionmaker[Session], two_sessions: tuple[Session, Session]) -> None:
    first, second = two_sessions
    with shop.begin() as session:
        session.add_all(orders := [Order(id=1), Order(id=2)])
        session.flush()
        refs = [_locked(order) for order in orders]
    first.execute(text("SELECT FROM shop_order WHERE id = 1 FOR UPDATE"))
    # The other order would lock 2 first, and keep it while it waits for 1.
    with pytest.raises(OperationalError, match="lock timeout"), second.begin():
        load(second, [refs[1], refs[0]])
    first.execute(text("SET LOCAL lock_timeout = '1s'"))
    loaded = load(first, [refs[1], refs[0]])
    assert [order.id for order in loaded] == [2, 1]
    with pytest.raises(OperationalError, match="lock timeout"), second.begin():
        load(second, [refs[1]])


def _locked(order: Order) -> Ref[Any]:
    jobs = JobQueue()

    @jobs.handler("locked")
    def locked(order: Locked, session: Session) -> None: ...

    decoded: Ref[Any] = locked.job_type.decode(locked.job(order).input, 1)
    return decoded


def test_a_lock_reads_the_row_again(shop: sessionmaker[Session]) -> None:
    with shop() as session:
        session.add(order := Order())
        session.commit()
        assert order.status == "new"
        session.execute(text("UPDATE shop_order SET status = 'paid'"))
        (loaded,) = load(session, [_locked(order)])
        assert loaded is order
        assert loaded.status == "paid"


async def test_batches_load_theirs_together(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, batches = JobQueue(), []

    @jobs.batch_handler("count", max_size=4, retry=LATER)
    def count(orders: list[Order], session: Session) -> list[Any]:
        batches.append([order.id for order in orders])
        return [order.id for order in orders]

    with shop.begin() as session:
        session.add_all(orders := [Order(id=key) for key in (1, 2, 3)])
        session.add_all([count.job(order) for order in orders])
        session.flush()
        session.execute(text("DELETE FROM shop_order WHERE id = 2"))
    with recorded(engine) as statements:
        await drain_by_worker(jobs, engine, concurrency=4)
    assert batches == [[1, 3]]
    assert len(statements) == 1
    with shop() as session:
        ended: Any = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.status for job in ended] == [JobStatus.COMPLETED, JobStatus.PENDING, JobStatus.COMPLETED]
        assert [job.output for job in ended] == [1, None, 3]
        assert ended[1].last_error["message"].startswith("found no Order 2")


async def test_a_batch_of_items_reports_failures_by_the_places_of_what_was_found(
    shop: sessionmaker[Session], engine: Engine
) -> None:
    jobs = JobQueue()

    @jobs.batch_handler("count", max_size=4, retry=LATER)
    async def count(items: list[BatchItem[Order]], session: AsyncSession) -> None:
        assert [item.payload.id for item in items] == [2, 3]
        raise BatchFailed({1: ValueError(f"order {items[1].payload.id} of {items[1].job.input['id']}")})

    with shop.begin() as session:
        session.add_all(orders := [Order(id=key) for key in (1, 2, 3)])
        session.add_all([count.job(order) for order in orders])
        session.flush()
        session.execute(text("DELETE FROM shop_order WHERE id = 1"))
    await drain_by_worker(jobs, engine, concurrency=4)
    with shop() as session:
        ended: Any = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.status for job in ended] == [JobStatus.PENDING, JobStatus.COMPLETED, JobStatus.PENDING]
        assert ended[2].last_error["message"] == "order 3 of 3"


async def test_a_batch_without_a_row_calls_no_handler(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs = JobQueue()

    @jobs.batch_handler("count", max_size=4, retry=LATER)
    async def count(orders: list[Order], session: AsyncSession) -> None:
        raise AssertionError

    with shop.begin() as session:
        session.add(job := count.job({"$class": "Order", "id": 7}))  # type: ignore[arg-type]
    await asyncio.wait_for(drain_by_worker(jobs, engine), 30)
    with shop() as session:
        assert error_of(session, job)["type"].endswith("ObjectNotFoundError")


def test_continuations_take_objects_of_the_handlers_session(shop: sessionmaker[Session], engine: Engine) -> None:
    jobs, shipped = JobQueue(), []

    @jobs.handler("pay")
    def pay(order: Order, session: Session) -> Any:
        return ship.continuation(order)

    @jobs.handler("order_more", max_attempts=1)
    def order_more(order: Order, session: Session) -> Any:
        session.add(another := Order(id=order.id + 1))
        return ship.continuation(another)

    @jobs.handler("ship")
    def ship(order: Order, session: Session) -> None:
        shipped.append(order.id)

    with shop.begin() as session:
        session.add_all([order := Order(id=7), pay.job(order)])
    assert drain(jobs, engine).completed == 2
    assert shipped == [7]
    with shop.begin() as session:
        order_more.enqueue(session, session.get_one(Order, 7))
    (error,) = drain(jobs, engine, raise_errors=False).errors
    assert "has not been flushed: flush its session first" in str(error)


def test_drain_in_the_tests_own_session_loads_from_it(shop: sessionmaker[Session]) -> None:
    jobs = JobQueue()

    @jobs.handler("pay")
    def pay(order: Order, session: Session) -> None:
        order.status = "paid"

    with shop() as session:
        order = Order()
        session.add_all([pay.job(order), order])
        assert drain(jobs, session).completed == 1
        assert order.status == "paid"
