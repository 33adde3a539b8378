"""Handlers that declare the fields of their payload as parameters: `keyword_handler`."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue
from sa_jobqueue.errors import InvalidHandlerError, InvalidJobError, InvalidPayloadError
from sa_jobqueue.testing import drain, perform
from tests.fixtures.jobs import enqueue

pytestmark = pytest.mark.every_python

SEEN: list[Any] = []
jobs = JobQueue()


@jobs.keyword_handler("send", fairness_by="order_id")
def send(order_id: int, day: date, session: Session, ctx: AttemptContext, note: str = "none") -> str:
    SEEN.append((order_id, day, note, session.is_active, ctx.attempt))
    return note


@jobs.keyword_handler("forward")
async def forward(*, order_id: int = 0, session: AsyncSession) -> None:
    session.add(send.job(order_id=order_id, day=date(2026, 1, 2)))


def test_keyword_handlers_accept_and_validate_fields_by_name(engine: Engine) -> None:
    SEEN.clear()
    job = send.job(order_id=7, day="2026-01-02", delay=timedelta(0), priority=2)
    assert (job.input, job.priority, job.fairness_key) == ({"order_id": 7, "day": "2026-01-02"}, 2, "7")
    assert send.job({"order_id": 7, "day": date(2026, 1, 2)}).input == job.input
    with pytest.raises(InvalidPayloadError, match=r"input\.order_id: Input should be a valid integer"):
        send.job(order_id="seven", day=date(2026, 1, 2))
    with pytest.raises(InvalidPayloadError, match=r"input\.day: Field required"):
        send.job(order_id=7)
    with pytest.raises(
        InvalidJobError, match=r"oder_id: is neither an option nor a column .*; the fields .* are order_id, day"
    ):
        send.job(oder_id=7)
    with pytest.raises(InvalidJobError, match="payload: is given twice"):
        send.job({}, order_id=7)


def test_workers_and_tests_call_keyword_handlers_by_name(engine: Engine) -> None:
    SEEN.clear()
    with Session(engine) as session, session.begin():
        session.add(forward.job(order_id=7))
        send.enqueue(session, order_id=8, day=date(2026, 1, 2), note="now")
    assert drain(jobs, engine).completed == 3
    day = date(2026, 1, 2)
    assert sorted(SEEN) == [(7, day, "none", True, 1), (8, day, "now", True, 1)]
    with Session(engine) as session:
        assert perform(send, {"order_id": 9, "day": day}, session=session) == "none"
        context: Any = type("Context", (), {"attempt": 3})
        assert send(order_id=1, day=day, session=session, ctx=context) == "none"


def test_injected_parameters_of_any_name_are_filled(engine: Engine) -> None:
    queue, payloads = JobQueue(), []

    @queue.keyword_handler("fields")
    def fields(order_id: int, payload: Session, self: AttemptContext) -> None:
        payloads.append((payload.is_active, self.attempt))

    @queue.handler("whole")
    def whole(order_id: int, running: Session, arguments: AttemptContext) -> None:
        payloads.append((running.is_active, arguments.attempt))

    @queue.keyword_handler("asynchronous")
    async def asynchronous(order_id: int, job_type: AsyncSession, payload: AttemptContext) -> None:
        payloads.append((job_type.is_active, payload.attempt))

    enqueue(engine, fields.job(order_id=1), whole.job(1), asynchronous.job(order_id=1))
    assert drain(queue, engine).completed == 3
    assert payloads == [(True, 1)] * 3


@pytest.mark.parametrize("default", [True, False])
def test_positional_only_fields_are_refused_when_they_are_registered(default: bool) -> None:
    def required(order_id: int, /, note: str) -> None: ...
    def optional(order_id: int = 1, /, note: str = "") -> None: ...

    with pytest.raises(InvalidHandlerError, match="'order_id' is given by name, it cannot be positional-only"):
        JobQueue().keyword_handler("send")(optional if default else required)


async def test_an_async_keyword_handler_runs_in_the_session_of_drain(async_engine: AsyncEngine) -> None:
    SEEN.clear()
    async with AsyncSession(async_engine) as session:
        await forward.enqueue(session, order_id=5)
        await drain(jobs, session)
    assert [entry[0] for entry in SEEN] == [5]


def test_payload_and_keyword_handlers_are_never_ambiguous() -> None:
    queue = JobQueue()

    @queue.handler("whole")
    def whole(order_id: int) -> None: ...

    assert whole.job(7).input == 7
    with pytest.raises(InvalidJobError, match=r"Fields by name are for @jobs\.keyword_handler"):
        queue.job("whole", order_id=7)
    with pytest.raises(InvalidHandlerError, match=r"unexpected argument 'note'; .* use @jobs\.keyword_handler"):

        @queue.handler("two")
        def two(order_id: int, note: str) -> None: ...

    with pytest.raises(InvalidHandlerError, match="the field 'priority' has the name of an option of `job`"):

        @queue.keyword_handler("taken")
        def taken(*, priority: int) -> None: ...
