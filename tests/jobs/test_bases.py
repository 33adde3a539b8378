"""`JobMixin` on the bases that applications have: their columns, primary keys and table arguments."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import pytest
from sqlalchemy import CheckConstraint, DateTime, Engine, Index, Integer, create_engine, func, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, declared_attr, mapped_column

from sa_jobqueue import JobMixin, JobQueue, Worker
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import pause_queues
from sa_jobqueue.statements import minutes
from tests.fixtures.jobs import enqueue
from tests.fixtures.minutes import RECORDED

number = Annotated[int, mapped_column(primary_key=True)]


class Numbered(DeclarativeBase):
    id: Mapped[int] = mapped_column(primary_key=True)


class NumberedByAnnotation(DeclarativeBase):
    id: Mapped[number]


class NumberedByFunction(DeclarativeBase):
    @declared_attr
    def id(cls) -> Mapped[int]:
        return mapped_column(Integer, primary_key=True)


class Stamped(DeclarativeBase):
    created: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class Owned(DeclarativeBase):
    owner: Mapped[str]


@pytest.fixture
def empty_engine(empty_database_url: str) -> Iterator[Engine]:
    engine = create_engine(empty_database_url)
    yield engine
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("base", [Numbered, NumberedByAnnotation, NumberedByFunction, Stamped, Owned])
def test_columns_of_the_base_are_no_burden_for_the_queues_other_tables(base: Any, empty_engine: Engine) -> None:
    with warnings.catch_warnings(action="error"):
        model: Any = type("Job", (JobMixin, base), {"__module__": __name__})
    base.metadata.create_all(empty_engine)
    jobs: Any = JobQueue(model)
    handler = jobs.handler("count")(lambda number: number)
    enqueue(empty_engine, handler.job(1, **({"owner": "a"} if base is Owned else {})))
    asyncio.run(Worker(jobs, empty_engine).run_until_idle())
    with Session(empty_engine) as session:
        assert session.scalars(select(model)).one().output == 1
        pause_queues(session, ["default"], by="me", model=model)
        spans = session.execute(minutes.unrecorded(model)).all()
        for since, until in spans:
            session.execute(minutes.record(model), {"since": since, "until": until, **RECORDED})
        assert session.scalars(select(model.JobType)).one().type_name == "count"
        assert session.scalars(select(model.Audit)).one().operation == "pause_queues"


def test_table_arguments_of_the_application_are_added(empty_engine: Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Job(JobMixin, Base):
        tenant: Mapped[str | None]
        __table_args__ = (
            Index("ix_tenant", "tenant", "created_at"),
            CheckConstraint("tenant <> ''", name="ck_tenant"),
            {"implicit_returning": True},
        )

    Base.metadata.create_all(empty_engine)
    inspector = inspect(empty_engine)
    assert "ix_tenant" in {index["name"] for index in inspector.get_indexes("job")}
    assert {"ck_tenant", "ck_job_lease"} <= {constraint["name"] for constraint in inspector.get_check_constraints("job")}


@pytest.mark.parametrize(("option", "advice"), [("schema", "use queue_schema"), ("comment", "remove it")])
def test_table_arguments_that_the_queue_sets_are_refused(option: str, advice: str) -> None:
    class Base(DeclarativeBase):
        pass

    with pytest.raises(InvalidOptionError, match=f"{option} is set by the queue; {advice}"):
        type("Job", (JobMixin, Base), {"__table_args__": {option: "app"}})
