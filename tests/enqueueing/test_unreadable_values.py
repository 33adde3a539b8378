"""A value that a column of the application cannot have is refused by the column's name, by each way to enqueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, Enum, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, enqueue, enqueue_many
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.operations.transactions import translated
from tests.fixtures.database import both_servers

pytestmark = both_servers


class Base(DeclarativeBase): ...


class ColoredJob(JobMixin, Base, queue_prefix="colored_"):
    number: Mapped[int | None]
    color: Mapped[str | None] = mapped_column(Enum("red", "blue", name="color", validate_strings=False))
    other: Mapped[str | None] = mapped_column("other color", Enum("red", "blue", name="color", validate_strings=False))
    tenant: Mapped[UUID | None]


jobs = JobQueue(ColoredJob)


@jobs.handler("paint")
def paint(payload: object) -> None: ...


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


def flush(session: Session, columns: dict[str, Any]) -> None:
    session.add(paint.job("x", **columns))
    with translated():  # as operations that flush do
        session.flush()


WRITERS: dict[str, Callable[[Session, dict[str, Any]], Any]] = {
    "handler.enqueue": lambda session, columns: paint.enqueue(session, "x", **columns),
    "handler.enqueue_many": lambda session, columns: paint.enqueue_many(session, ["x"], **columns),
    "handler.enqueue_many by key": lambda session, columns: paint.enqueue_many(
        session, ["x"], deduplicate_by=str, **columns
    ),
    "enqueue": lambda session, columns: enqueue(session, paint.job("x", **columns)),
    "enqueue by key": lambda session, columns: enqueue(session, paint.job("x", **columns), deduplicate="key"),
    "enqueue_many": lambda session, columns: enqueue_many(session, [paint.job("x", color="red"), paint.job("x", **columns)]),
    "enqueue_many by key": lambda session, columns: enqueue_many(
        session, [paint.job("x", **columns)], deduplicate_by=lambda job: "key"
    ),
    "session.add": flush,
}


VALUES: list[tuple[str, Any]] = [
    ("number", "twelve"),
    ("color", "purple"),
    ("color", 'a "quoted", one'),
    ("other", "purple"),
    ("tenant", "x"),  # as the payload
]


@pytest.mark.slow
@pytest.mark.parametrize(("column", "value"), VALUES)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_a_value_that_a_column_cannot_have_is_refused_by_the_name_of_the_column(
    write: Callable[[Session, dict[str, Any]], Any], column: str, value: Any, session: Session
) -> None:
    with pytest.raises(InvalidJobError) as refused:
        write(session, {column: value})
    assert refused.value.field in ({"other", "other color", "job"} if column == "other" else {column})


def test_no_column_is_named_if_two_have_the_value(session: Session) -> None:
    with pytest.raises(InvalidJobError, match=r"^job: .*purple"):
        paint.enqueue(session, "x", color="purple", other="purple")


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"])
async def test_the_column_is_named_with_other_drivers(driver: str, session: Session, database_url: str) -> None:
    session.commit()
    url = make_url(database_url).set(drivername=f"postgresql+{driver}")
    if driver == "psycopg2":
        engine = create_engine(url)
        with Session(engine) as other_session, pytest.raises(InvalidJobError, match=r"^color: "):
            paint.enqueue(other_session, "x", color="purple")
        engine.dispose()
    else:
        async_engine = create_async_engine(url)
        async with AsyncSession(async_engine) as awaited:
            with pytest.raises(InvalidJobError, match=r"^color: "):
                await paint.enqueue(awaited, "x", color="purple")
        await async_engine.dispose()
