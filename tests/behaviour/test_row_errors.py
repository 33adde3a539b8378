"""What Python raises for one row while a worker writes: that row fails or is quarantined, and delays no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine, Text, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from sa_jobqueue import JobMixin, JobQueue, JobStatus
from sa_jobqueue.events import ComponentFailed, WriteQuarantined
from sa_jobqueue.ids import uuid7
from tests.fixtures.database import own_database
from tests.fixtures.transactions import rows, scalar
from tests.fixtures.workers import Start, until

pytestmark = own_database
SURROGATE = "caf\udce9"


class Base(DeclarativeBase): ...


class Upper(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()


class Job(JobMixin, Base):
    tenant: Mapped[str | None] = mapped_column(Text)
    upper: Mapped[str | None] = mapped_column(Upper)
    document: Mapped[Any] = mapped_column(JSONB, nullable=True)
    labels: Mapped[list[str] | None] = mapped_column(ARRAY(Text))


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Job.metadata.drop_all(engine)
    Job.metadata.create_all(engine)
    return engine


CONTINUATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a surrogate in a column": ({"tenant": SURROGATE}, "tenant"),
    "a NUL in a column": ({"tenant": "a\x00"}, "tenant"),
    "a value that the driver cannot adapt": ({"tenant": object()}, "tenant"),
    "a value that the type cannot convert": ({"upper": 7}, "upper"),
    "a value that is not JSON": ({"document": {1, 2}}, "document"),
    "a surrogate in an array": ({"labels": ["a", SURROGATE]}, "labels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bad", CONTINUATIONS.values(), ids=CONTINUATIONS.keys())
async def test_a_continuation_with_a_bad_value_fails_only_its_attempt_and_names_the_column(
    bad: tuple[dict[str, Any], str], tables: Engine, start: Start
) -> None:
    columns, field = bad
    queue, gate = JobQueue(Job), asyncio.Event()

    @queue.handler("second")
    async def second() -> None: ...

    @queue.handler("first", max_attempts=1)
    async def first(is_bad: bool) -> Any:
        await gate.wait()
        return second.continuation(**(columns if is_bad else {"tenant": "b", "upper": "b"}))

    @queue.handler("fails", max_attempts=1)
    async def fails() -> None:
        await gate.wait()
        raise ValueError("an ordinary failure")

    with Session(tables, expire_on_commit=False) as session, session.begin():
        roots = [first.job(False), first.job(True), first.job(False), fails.job(), fails.job()]
        session.add_all(roots)
    bad_id = roots[1].id
    async with start(queue, concurrency=5) as log:
        gate.set()
        await until(lambda: statuses(tables)[bad_id] is JobStatus.DEAD, description="the bad one has failed")
        await until(lambda: not open_jobs(tables), description="the others have ended")
    assert not log.of(ComponentFailed)
    assert not log.of(WriteQuarantined)
    assert field in error_of(tables, bad_id)


async def test_an_id_factory_that_raises_keeps_no_attempt_from_ending(engine: Engine, start: Start) -> None:
    class OtherBase(DeclarativeBase): ...

    ids: list[Any] = []

    def factory() -> Any:
        if len(ids) == 1:
            raise RuntimeError("the id service is down")
        ids.append(uuid7())
        return ids[-1]

    class OtherJob(JobMixin, OtherBase, queue_id_factory=factory, queue_prefix="other_"): ...

    OtherBase.metadata.create_all(engine)
    queue = JobQueue(OtherJob)

    @queue.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("an ordinary failure")

    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(job := fails.job())
    async with start(queue) as log:
        await until(lambda: statuses(engine, OtherJob)[job.id] is JobStatus.DEAD, description="it has failed")
    assert not log.of(ComponentFailed)


def statuses(engine: Engine, model: Any = Job) -> dict[Any, JobStatus]:
    return {row.id: row.status for row in rows(engine, select(model.id, model.status))}


def open_jobs(engine: Engine) -> list[Any]:
    ended = {JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED}
    return [job_id for job_id, status in statuses(engine).items() if status not in ended]


def error_of(engine: Engine, job_id: Any) -> str:
    error = scalar(engine, select(Job.DeadLetter.error).where(Job.DeadLetter.job_id == job_id))
    return str((error or {})["message"])
