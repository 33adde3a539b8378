"""The queue on the declarative bases that applications have, each from the real package: tables, foreign keys, a handler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from advanced_alchemy.base import BigIntAuditBase, DefaultBase
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import ARRAY, Column, ForeignKey, Integer, MetaData, Text, Uuid, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, declarative_base, mapped_column, relationship
from sqlmodel import Field, Relationship, SQLModel
from sqlmodel import Session as SQLModelSession

from sa_jobqueue import JobMixin, JobQueue, Worker, enqueue_many
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models.base import REGISTRY_KEY
from tests.fixtures.variants import variants
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


@dataclass
class Stack:
    """An application's models: its `Job`, a table with a foreign key to it, and the session class of its framework."""

    metadata: MetaData
    job: Any
    parcel: Any
    session: type[Session] = Session


def plain() -> Stack:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base): ...

    return Stack(Base.metadata, Job, parcel_on(Base, Job))


def parcel_on(base: Any, job: Any) -> Any:
    """Map a table with a foreign key to jobs by columns, as every declarative base can."""
    body = {
        "__tablename__": "parcel",
        "__module__": __name__,
        "id": Column(Integer, primary_key=True, autoincrement=False),
        "job_id": Column(Uuid, ForeignKey(job.id)),
        "job": relationship(job),
    }
    return type("Parcel", (base,), body)


def legacy() -> Stack:
    base: Any = declarative_base()

    class Job(JobMixin, base):  # type: ignore[misc]
        tenant = Column(Integer)

    return Stack(base.metadata, Job, parcel_on(base, Job))


def flask() -> Stack:
    db = SQLAlchemy()
    db.init_app(configured())

    class Job(JobMixin, db.Model): ...  # type: ignore[misc, name-defined]

    class Parcel(db.Model):  # type: ignore[misc, name-defined]
        id: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
        job: Mapped[Job] = relationship()

    return Stack(db.metadata, Job, Parcel)


def configured() -> Flask:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = "postgresql+psycopg://"
    return app


def dataclasses() -> Stack:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class QueueBase(DeclarativeBase):
        metadata = Base.metadata

    class Job(JobMixin, QueueBase): ...

    class Parcel(Base):
        __tablename__ = "parcel"

        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        job: Mapped[Any] = relationship(Job)
        job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id), init=False)

    return Stack(Base.metadata, Job, Parcel)


class QueueBase(DeclarativeBase):
    metadata = SQLModel.metadata


class Sender(SQLModel, table=True):
    """One that a column of the application's own `Job` leads to."""

    id: int = Field(primary_key=True)


class SQLModelJob(JobMixin, QueueBase):
    sender_id: Mapped[int | None] = mapped_column(ForeignKey("sender.id"))
    sender: Mapped[Sender | None] = relationship(Sender)


class SQLModelParcel(SQLModel, table=True):
    __tablename__ = "parcel"

    id: int = Field(primary_key=True)
    job_id: UUID | None = Field(default=None, foreign_key="job.id")
    job: SQLModelJob | None = Relationship()


def sqlmodel() -> Stack:
    return Stack(SQLModel.metadata, SQLModelJob, SQLModelParcel, SQLModelSession)


class LitestarJob(JobMixin, DefaultBase):
    """On what Advanced Alchemy and Litestar's plugin offer as a base."""


class LitestarParcel(BigIntAuditBase):
    __tablename__ = "parcel"

    job_id: Mapped[UUID] = mapped_column(ForeignKey(LitestarJob.id))
    job: Mapped[LitestarJob] = relationship()


def advanced_alchemy() -> Stack:
    return Stack(LitestarJob.metadata, LitestarJob, LitestarParcel)


STACKS = [
    plain,
    legacy,
    flask,
    dataclasses,
    sqlmodel,
    advanced_alchemy,
]


@pytest.mark.slow
@pytest.mark.parametrize("build", variants(STACKS, default=[plain, flask, advanced_alchemy]))
async def test_a_queue_on_this_base_has_tables_foreign_keys_and_runs_jobs(
    build: Callable[[], Stack], empty_database_url: str
) -> None:
    stack = build()
    assert len(stack.metadata.info[REGISTRY_KEY]) == 1
    jobs = JobQueue(stack.job)

    def ship(parcel_id: int, session: Any) -> str:
        parcel = session.get_one(stack.parcel, parcel_id)
        return f"{type(session).__name__} {parcel.job.type_name}"

    ship.__annotations__["session"] = stack.session  # each framework's own
    handler = jobs.handler("ship")(ship)
    engine = create_engine(empty_database_url)
    stack.metadata.create_all(engine)
    with stack.session(engine) as session, session.begin():
        session.add(stack.parcel(id=7, job=handler.job(7)))
    await Worker(jobs, engine, options=quick()).run_until_idle()
    with stack.session(engine) as session:
        parcel = session.get_one(stack.parcel, 7)
        assert parcel.job.output == "Session ship"
        assert parcel.job.chain.output == "Session ship"
        assert session.scalars(select(stack.job.Attempt)).all() == []  # a row for each that failed
    engine.dispose()


@pytest.mark.slow
async def test_sqlmodel_jobs_have_relationships_and_handlers_receive_sqlmodel_sessions(empty_database_url: str) -> None:
    jobs = JobQueue(SQLModelJob)

    @jobs.handler("count")
    def count(sender_id: int, session: SQLModelSession) -> str:
        return str(isinstance(session, SQLModelSession))

    engine = create_engine(empty_database_url)
    SQLModel.metadata.create_all(engine)
    with SQLModelSession(engine) as session, session.begin():
        session.add(count.job(1, sender=Sender(id=1)))
    await Worker(jobs, engine, options=quick()).run_until_idle()
    with SQLModelSession(engine) as session:
        (job,) = session.scalars(select(SQLModelJob))
        assert (job.sender, job.output) == (session.get(Sender, 1), "True")
    engine.dispose()


def pydantic_job() -> None:
    class Job(JobMixin, SQLModel, table=True): ...


def pydantic_job_after_the_base() -> None:
    class Job(SQLModel, JobMixin, table=True): ...


def dataclass_job() -> None:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Job(JobMixin, Base): ...


def job_on_another_key() -> None:
    class Base(DeclarativeBase):
        uid: Mapped[int] = mapped_column(primary_key=True)

    class Job(JobMixin, Base): ...


@pytest.mark.parametrize(
    ("declare", "base"),
    [
        (pydantic_job, "SQLModel"),
        (pydantic_job_after_the_base, "SQLModel"),
        (dataclass_job, "Base"),
        (job_on_another_key, "Base"),
    ],
)
@pytest.mark.filterwarnings("ignore:Classes should inherit from")  # pydantic's, of a generic mixin before its model
def test_an_unsupported_base_is_refused_with_a_working_declaration(declare: Callable[[], None], base: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        declare()
    assert f"metadata = {base}.metadata\n\n    class Job(JobMixin, QueueBase)" in str(refused.value)


@pytest.mark.slow
async def test_jobs_that_are_compared_by_value_and_have_no_hash_are_enqueued_and_wait_for_each_other(
    empty_database_url: str,
) -> None:
    class Base(DeclarativeBase):
        def __eq__(self, value: object) -> bool:
            return type(value) is type(self)

        __hash__ = None  # type: ignore[assignment]  # as Python itself sets it

    class Job(JobMixin, Base):
        tags: Mapped[list[str] | None] = mapped_column(ARRAY(Text))

    jobs = JobQueue(Job)

    @jobs.handler("count")
    def count(number: int) -> int:
        return number

    engine = create_engine(empty_database_url)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        first = count.job(1)
        session.add_all([count.job(2, blockers=[first]), count.job(3, blockers=[first])])
        count.enqueue(session, 4)
        enqueue_many(session, [count.job(5, tags=["a"]), count.job(6), count.job(7, tags=["b"])])
    await Worker(jobs, engine, options=quick()).run_until_idle()
    with Session(engine) as session:
        assert sorted(session.scalars(select(Job.output))) == [1, 2, 3, 4, 5, 6, 7]
        tagged = select(Job.id).where(Job.tags == ["a"]).union_all(select(Job.id).where(Job.tags == ["b"]))
        assert len(session.execute(tagged).all()) == 2
    engine.dispose()
