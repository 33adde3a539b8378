"""How jobs whose arguments are mapped objects are written: the identity in the input, in every order of writing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

import pydantic
import pytest
from sqlalchemy import Engine, create_engine, event, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker
from sqlmodel import Field, SQLModel

from sa_jobqueue import Job, JobQueue, enqueue, enqueue_many
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError, InvalidPayloadError
from sa_jobqueue.registry import LoadOptions, Ref
from tests.fixtures.shop import Code, Coin, Customer, Express, Line, Money, Order, Parcel, TrackedOrder, Voucher

pytestmark = pytest.mark.every_python

jobs = JobQueue()


@dataclass
class Shipment:
    order: Ref[Order]
    note: str


class Refund(pydantic.BaseModel):
    orders: list[Ref[Order]]


@jobs.handler("send")
def send(order: Order, session: Session) -> None: ...


@jobs.handler("send_async")
async def send_async(order: Order, session: AsyncSession) -> None: ...


@jobs.keyword_handler("remind")
def remind(order: Order, session: Session, text: str = "", customer: Customer | None = None) -> None: ...


@jobs.handler("ship")
def ship(shipment: Shipment) -> None: ...


@jobs.handler("refund")
def refund(refund: Refund) -> None: ...


@jobs.handler("track")
def track(order: TrackedOrder, session: Session) -> None: ...


@jobs.handler("pack")
def pack(parcel: Parcel, session: Session) -> None: ...


@jobs.handler("line")
def line(line: Line, session: Session) -> None: ...


@jobs.handler("voucher")
def voucher(voucher: Voucher, session: Session) -> None: ...


class Note(SQLModel, table=True):
    id: int = Field(primary_key=True)
    text: str


class Stamp(SQLModel, table=True):
    id: UUID = Field(primary_key=True)


@jobs.handler("seal")
def seal(stamp: Stamp, session: Session) -> None: ...


@jobs.handler("pay")
def pay(money: Money, session: Session) -> None: ...


@jobs.handler("toss")
def toss(coin: Coin, session: Session) -> None: ...


@jobs.handler("toss_loaded")
def toss_loaded(coin: Annotated[Coin, LoadOptions()], session: Session) -> None: ...


@jobs.handler("note")
def note(note: Note, session: Session) -> None: ...


@jobs.keyword_handler("note_loaded")
def note_loaded(note: Annotated[Note | None, LoadOptions()], session: Session) -> None: ...


def inputs(session: Session) -> list[Any]:
    """Return the inputs that the database has, not those that the session has loaded."""
    return list(session.scalars(select(Job.__table__.c.input).order_by(Job.__table__.c.id)))


def order_first(session: Session, order: Order) -> None:
    session.add(order)
    session.add(send.job(order))


def job_first(session: Session, order: Order) -> None:
    session.add(send.job(order))
    session.add(order)


def by_cascade(session: Session, order: Order) -> None:
    job = send.job(order)
    customer = Customer()
    customer.orders.append(order)
    session.add_all([job, customer])


def in_a_savepoint(session: Session, order: Order) -> None:
    with session.begin_nested():
        job_first(session, order)


def order_before_a_savepoint(session: Session, order: Order) -> None:
    session.add(order)
    with session.begin_nested():
        session.add(send.job(order))


def with_a_key_of_its_own(session: Session, order: Order) -> None:
    order.id = 70
    job_first(session, order)


def with_a_key_as_text(session: Session, order: Order) -> None:
    order.id = "70"  # type: ignore[assignment]
    job_first(session, order)


def with_a_key_that_the_flush_changes(session: Session, order: Order) -> None:
    session.add(order)
    session.flush()
    order.id = 70
    session.add(send.job(order))


def flushed_before(session: Session, order: Order) -> None:
    session.add(order)
    session.flush()
    session.add(send.job(order))


def by_enqueue(session: Session, order: Order) -> None:
    session.add(order)
    send.enqueue(session, order)


def by_enqueue_with_blockers(session: Session, order: Order) -> None:
    session.add(order)
    remind.enqueue(session, order=order, blockers=[send.job(order)])


def by_the_function(session: Session, order: Order) -> None:
    session.add(order)
    enqueue(session, send.job(order))


def by_the_function_with_a_key(session: Session, order: Order) -> None:
    session.add(order)
    enqueue(session, send.job(order), deduplicate="order")


def in_many(session: Session, order: Order) -> None:
    session.add(order)
    enqueue_many(session, [send.job(order)])


def in_many_with_keys(session: Session, order: Order) -> None:
    session.add(order)
    enqueue_many(session, [send.job(order)], deduplicate_by=lambda job: f"order {job.input['id']}")


def after_a_rollback(session: Session, order: Order) -> None:
    job = send.job(order)
    savepoint = session.begin_nested()
    session.add_all([job, order])
    session.flush()
    savepoint.rollback()
    order.id = None  # type: ignore[assignment]  # the sequence gives another
    session.add_all([order, job])


WRITERS = [
    order_first,
    job_first,
    by_cascade,
    in_a_savepoint,
    order_before_a_savepoint,
    with_a_key_of_its_own,
    with_a_key_as_text,
    with_a_key_that_the_flush_changes,
    flushed_before,
    by_enqueue,
    by_enqueue_with_blockers,
    by_the_function,
    by_the_function_with_a_key,
    in_many,
    in_many_with_keys,
    after_a_rollback,
]


@pytest.mark.parametrize("autoflush", [True, False], ids=["autoflush", "no autoflush"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_jobs_have_the_key_of_an_object_that_was_pending(
    shop: sessionmaker[Session], write: Callable[[Session, Order], None], autoflush: bool
) -> None:
    with shop(autoflush=autoflush) as session:
        session.add(Order())  # so that no key is 1 by chance
        session.flush()
        order = Order()
        write(session, order)
        session.commit()
        stored = inputs(session)
        assert order.id > 1
        assert {"$class": "Order", "id": order.id} in [each.get("order", each) for each in stored]
        assert all("id" in each.get("order", each) for each in stored)


@pytest.mark.parametrize("write", [job_first, by_enqueue, in_many], ids=lambda write: write.__name__)
async def test_jobs_have_the_key_in_an_async_session(
    shop: sessionmaker[Session], async_engine: AsyncEngine, write: Callable[[Session, Order], None]
) -> None:
    async with AsyncSession(async_engine) as session:
        order = Order()
        await session.run_sync(write, order)
        if write is by_enqueue:
            await send_async.enqueue(session, order)
        await session.commit()
        stored = await session.run_sync(inputs)
        await session.refresh(order)
        assert stored
        assert all(each == {"$class": "Order", "id": order.id} for each in stored)


def test_many_pending_objects_cost_one_insert_for_the_jobs(shop: sessionmaker[Session], engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with shop.begin() as session:
        orders = [Order() for _ in range(50)]
        session.add_all([send.job(order) for order in orders])
        session.add_all(orders)
    with shop() as session:
        assert sorted(each["id"] for each in inputs(session)) == sorted(session.scalars(select(Order.id)))
    assert not [text for text in statements if text.startswith("UPDATE")]


@pytest.mark.parametrize("has_edge", [True, False], ids=["edge", "no edge"])
def test_a_cycle_of_mappers_is_completed_by_one_update(
    shop: sessionmaker[Session], engine: Engine, monkeypatch: pytest.MonkeyPatch, has_edge: bool
) -> None:
    if not has_edge:  # as with a release of SQLAlchemy that has no such private class
        monkeypatch.setattr("sa_jobqueue.operations.references._SAVE", None)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with shop.begin() as session:
        orders = [TrackedOrder() for _ in range(3)]
        for order in orders:
            order.job = track.job(order)
        session.add_all(orders)
        session.flush()
        assert [order.job.input for order in orders if order.job] == [
            {"$class": "TrackedOrder", "id": order.id} for order in orders
        ]
    assert len([text for text in statements if text.startswith("UPDATE")]) == 1
    with shop() as session:
        rows = session.execute(select(TrackedOrder.id, Job.input).join(TrackedOrder.job)).all()
    assert len(rows) == 3
    assert all(stored == {"$class": "TrackedOrder", "id": key} for key, stored in rows)


def test_without_the_private_edge_the_jobs_are_completed(
    shop: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.operations.references._SAVE", None)
    with shop.begin() as session:
        order = Order()
        session.add_all([send.job(order), remind.job(order=order), order])
        session.flush()
        key = {"$class": "Order", "id": order.id}
        assert inputs(session) == [key, {"order": key}]


def test_neither_is_written_if_the_insert_of_the_object_fails(shop: sessionmaker[Session]) -> None:
    with shop() as session:
        session.add(Order(id=7))
        session.commit()
        order = Order(id=7)
        session.add_all([send.job(order), order])
        with pytest.raises(Exception, match="shop_order_pkey"):
            session.commit()
        session.rollback()
        assert inputs(session) == []


def test_keys_of_every_type_are_readable_json(shop: sessionmaker[Session]) -> None:
    with shop.begin() as session:
        parcel = Express()
        session.add_all(mapped_objects := [Line(order_id=7, number=2), Voucher(code="abc"), parcel])
        session.add_all([line.job(mapped_objects[0]), voucher.job(mapped_objects[1]), pack.job(parcel)])  # type: ignore[arg-type]
        session.flush()
        assert inputs(session) == [
            {"$class": "Line", "order_id": 7, "number": 2},
            {"$class": "Voucher", "code": "cba"},  # as the database has it
            {"$class": "Parcel", "id": str(parcel.id)},
        ]


def test_references_in_payloads_of_classes(shop: sessionmaker[Session]) -> None:
    with shop.begin() as session:
        orders = [Order(), Order()]
        references = [Ref(order) for order in orders]
        session.add_all([ship.job(Shipment(references[0], "now")), refund.job(Refund(orders=references))])
        session.add_all(orders)
        session.flush()
        keys = [{"$class": "Order", "id": order.id} for order in orders]
        assert inputs(session) == [{"order": keys[0], "note": "now"}, {"orders": keys}]
        stored = session.scalars(select(Job).where(Job.input.contains({"order": keys[0]}))).one()
        assert ship.payload(stored) == Shipment(Ref(orders[0]), "now")


def test_an_optional_object_can_be_left_out(shop: sessionmaker[Session]) -> None:
    with shop.begin() as session:
        session.add(order := Order(id=7))
        session.add(remind.job(order=order, customer=None))
        session.flush()
        assert inputs(session) == [{"order": {"$class": "Order", "id": 7}, "customer": None}]


def test_a_detached_object_counts_by_its_identity(shop: sessionmaker[Session]) -> None:
    with shop(expire_on_commit=False) as session:
        session.add(order := Order(id=7))
        session.commit()
    job = send.job(order)
    assert job.input == {"$class": "Order", "id": 7}
    assert "_document" not in pickle.loads(pickle.dumps(job)).__dict__
    with shop.begin() as session:
        session.add(job)
        session.flush()
        send.enqueue(session.connection(), order)
        assert send.enqueue_many(session, [order]) == 1
        assert inputs(session) == [{"$class": "Order", "id": 7}] * 3


@pytest.mark.parametrize("codec", [False, True], ids=["plain", "codec"])
def test_the_key_of_a_pending_object_passes_through_the_codec(shop: sessionmaker[Session], codec: bool) -> None:
    class Reversing:
        name = "reversing"

        def encode(self, data: bytes, /) -> Any:
            return data.decode()[::-1]

        def decode(self, stored: Any, /) -> bytes:
            return str(stored)[::-1].encode()

    queue = JobQueue()

    @queue.handler("secret", codec=Reversing() if codec else None)
    def secret(order: Order, session: Session) -> None: ...

    with shop.begin() as session:
        order = Order()
        session.add_all([secret.job(order), order])
        session.flush()
        (stored,) = inputs(session)
        assert secret.job_type.open("input", stored) == {"$class": "Order", "id": order.id}
        assert (stored != {"$class": "Order", "id": order.id}) is codec


def test_the_wrong_class_is_refused_at_the_call() -> None:
    for argument in (Customer(), Ref(Customer()), 7, "Order 7", [Order()]):
        with pytest.raises(InvalidPayloadError, match=r"input: must be of the class Order, got"):
            send.job(argument)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError, match=r"input\.order: "):
        remind.job(order=Customer())
    with pytest.raises(InvalidPayloadError, match=r"must be Ref\(order\), got Order"):
        ship.job(Shipment(Order(), ""))  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="must be an instance of a mapped class, got int"):
        Ref(7)


def in_no_session(session: Session, order: Order) -> None:
    session.add(send.job(order))


def transient_with_a_key(session: Session, order: Order) -> None:
    order.id = 7
    session.add(send.job(order))


def deleted(session: Session, order: Order) -> None:
    session.add(order)
    session.flush()
    session.delete(order)
    session.add(send.job(order))


def pending_elsewhere(session: Session, order: Order) -> None:
    with Session(session.get_bind()) as other_session:
        other_session.add(order)
        session.add(send.job(order))
        session.flush()


def by_a_connection(session: Session, order: Order) -> None:
    session.add(order)
    send.enqueue(session.connection(), order)


def by_a_connection_after_another(session: Session, order: Order) -> None:
    session.add(order)
    session.flush()
    session.add(customer := Customer())
    remind.enqueue(session.connection(), order=order, customer=customer)


def by_copy(session: Session, order: Order) -> None:
    session.add(flushed := Order())
    session.flush()
    session.add(order)
    with session.no_autoflush:
        send.enqueue_many(session, [flushed, order])


def by_copy_in_a_field(session: Session, order: Order) -> None:
    session.add(flushed := Order())
    session.flush()
    refund.enqueue_many(session, [Refund(orders=[Ref(flushed), Ref(order)])])


def by_copy_with_a_key(session: Session, order: Order) -> None:
    session.add(order)
    with session.no_autoflush:
        send.enqueue_many(session, [order], deduplicate_by=lambda order: str(order.id))


def in_bulk(session: Session, order: Order) -> None:
    session.add(order)
    session.bulk_save_objects([send.job({"$class": "Order", "id": 7}), send.job(order)])  # type: ignore[arg-type]


def in_bulk_by_mappings(session: Session, order: Order) -> None:
    session.add(order)
    session.bulk_insert_mappings(inspect(Job), [{"id": UUID(int=1), "type_name": "send", "input": send.job(order).input}])


def by_core(session: Session, order: Order) -> None:
    session.add(order)
    with session.no_autoflush:
        session.execute(insert(Job).values(id=UUID(int=1), type_name="send", input=send.job(order).input))


def by_merge(session: Session, order: Order) -> None:
    session.add(order)
    session.merge(remind.job(order=order))
    session.flush()


def in_a_schedule(session: Session, order: Order) -> None:
    session.add(order)
    JobQueue.schedule(jobs, "nightly", cron="0 3 * * *", handler=send, payload=order)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (in_no_session, "the argument <Ref Order without a key> is in no session: add it to the session of the job"),
        (transient_with_a_key, "is in no session"),
        (deleted, "is deleted"),
        (pending_elsewhere, "is pending in another session"),
    ],
    ids=lambda parameter: getattr(parameter, "__name__", ""),
)
def test_an_argument_without_a_row_is_refused(
    shop: sessionmaker[Session], write: Callable[[Session, Order], None], reason: str
) -> None:
    with shop() as session:
        order = Order()
        with pytest.raises(Exception, match=reason):  # noqa: PT012 - some are refused by the call, some by the flush
            write(session, order)
            session.flush()
        session.rollback()
        assert inputs(session) == []


@pytest.mark.parametrize(
    ("write", "field"),
    [
        (by_a_connection, "input"),
        (by_a_connection_after_another, "input.customer"),
        (by_copy, "payloads[1]"),
        (by_copy_with_a_key, "payloads[0]"),
        (by_copy_in_a_field, "payloads[0].orders[1]"),
        (in_bulk, "input"),
        (in_bulk_by_mappings, "input"),
        (by_core, "input"),
        (by_merge, "input.order"),
        (in_a_schedule, "payload"),
    ],
    ids=lambda parameter: getattr(parameter, "__name__", ""),
)
def test_one_error_names_the_field_the_class_and_the_way_out(
    shop: sessionmaker[Session], write: Callable[[Session, Order], None], field: str
) -> None:
    with shop() as session:
        with pytest.raises(InvalidPayloadError) as raised:
            write(session, Order())
        session.rollback()
        assert inputs(session) == []
    name = "Customer" if field == "input.customer" else "Order"
    reason = f"refers to an object of {name} that has not been flushed: flush its session first"
    assert (raised.value.field, raised.value.reason) == (field, reason)


def test_an_argument_of_another_database_is_refused(shop: sessionmaker[Session]) -> None:
    elsewhere = create_engine("postgresql+psycopg://db.example/other")
    with shop() as session, Session(session.get_bind(), binds={Order: elsewhere}) as other_session:
        session.add(order := Order())
        session.flush()
        other_session.add(send.job(order))
        with pytest.raises(InvalidPayloadError, match="<Ref Order 1> is attached to a session of another database"):
            other_session.flush()


def test_handlers_without_a_session_take_references() -> None:
    queue = JobQueue()
    with pytest.raises(InvalidHandlerError, match="takes a mapped object, which its session loads: add an argument"):

        @queue.handler("without_session")
        def without_session(order: Order) -> None: ...

    with pytest.raises(InvalidHandlerError, match=r'LoadOptions\(missing="none"\) needs an annotation with `| None`'):

        @queue.handler("never_none")
        def never_none(order: Annotated[Order, LoadOptions(missing="none")], session: Session) -> None: ...

    @queue.handler("with_reference")
    def with_reference(order: Ref[Order]) -> None: ...

    assert with_reference.job_type.signature.mapped == frozenset()


def test_classes_that_pydantic_takes_by_value_stay_values(shop: sessionmaker[Session]) -> None:
    with shop.begin() as session:
        session.add_all([coin := Coin(7, "EUR"), money := Money(7, "EUR")])
        session.flush()
        assert toss.job(coin).input == {"id": 7, "currency": "EUR"}
        assert toss_loaded.job(coin).input == {"$class": "Coin", "id": 7}
        assert pay.job(money).input == {"$class": "Money", "id": 7}
    assert note.job(Note(id=7, text="now")).input == {"id": 7, "text": "now"}
    with pytest.raises(InvalidPayloadError, match=r"input\.id: would change.*annotate it with Ref or with LoadOptions\(\)"):
        seal.job(Stamp(id=uuid4()))  # a table of SQLModel does not convert the text of JSON
    assert note_loaded.job({"note": {"$class": "Note", "id": 7}}).input == {"note": {"$class": "Note", "id": 7}}


@pytest.mark.parametrize(
    "poison",
    [
        {"$class": "Order", "id": [7]},
        {"$class": "Order", "id": {"$class": "Order", "id": 7}},
        {"$class": "Order", "id": "7; DROP TABLE shop_order"},
        {"$class": "Order", "id": "7"},
        {"$class": "Order", "id": 2**63},
        {"$class": "Order", "id": 10**400},
        {"$class": "Order", "id": None},
        {"$class": "Order", "id": True},
        {"$class": "Order", "id": 7.5},
        {"$class": "Order"},
        {"$class": "Order", "id": 7, "tenant": "b"},
        {"$class": "Customer", "id": 7},
        {"$class": ["Order"], "id": 7},
        {"$class": "tests.fixtures.shop.Order", "id": 7},
        {"id": 7},
        7,
        [7],
        None,
    ],
    ids=lambda poison: str(poison)[:40],
)
def test_poisoned_identities_are_refused_before_any_query(poison: Any) -> None:
    with pytest.raises(InvalidPayloadError, match="input"):
        send.job_type.decode(poison, 1)
    with pytest.raises(InvalidPayloadError, match="input"):
        send.job(poison)


def test_keys_of_text_have_a_length() -> None:
    assert voucher.job_type.decode({"$class": "Voucher", "code": "x" * 2_700}, 1).identity == ("x" * 2_700,)
    with pytest.raises(InvalidPayloadError, match="code: String should have at most 2700 characters"):
        voucher.job_type.decode({"$class": "Voucher", "code": "x" * 2_701}, 1)
    assert isinstance(pack.job_type.decode({"$class": "Express", "id": str(UUID(int=1))}, 1), Ref)
    with pytest.raises(InvalidPayloadError, match="id: Input should be a valid UUID"):
        pack.job_type.decode({"$class": "Parcel", "id": "1 OR 1=1"}, 1)
    assert Code().impl_instance is not None
