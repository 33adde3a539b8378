"""Sessions that choose between databases or schemas: operations go to the primary of the queue's class, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, ForeignKey, MetaData, Text, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, with_loader_criteria
from sqlalchemy.sql.dml import UpdateBase

from sa_jobqueue import Deduplicate, JobMixin, JobQueue, Worker, enqueue, enqueue_many, operations
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.models import Job
from tests.fixtures.jobs import Jobs

jobs_ = JobQueue()


@jobs_.handler("routed")
def routed(n: int) -> None: ...


def elsewhere() -> Engine:
    """Return an engine that no statement may reach."""
    return create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none", connect_args={"connect_timeout": 1})


class Other(DeclarativeBase): ...


class RoutingSession(Session):
    """As in SQLAlchemy's manual: flushes, updates and deletes go to the primary, the rest to a replica."""

    primary: Engine

    def get_bind(self, mapper: Any = None, clause: Any = None) -> Any:  # type: ignore[override]
        return self.primary if self._flushing or isinstance(clause, UpdateBase) else elsewhere()


@pytest.fixture(params=["class", "base", "routing"])
def routing(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Session]:
    """Give a session whose default bind is another database, or that sends reads to one."""
    session: Session
    if request.param == "routing":
        session = RoutingSession(autoflush=False)
        session.primary = engine
    else:
        session = Session(elsewhere(), binds={Job if request.param == "class" else Job.__mro__[2]: engine})
    with session:
        yield session


OPERATIONS: dict[str, Callable[[Session, UUID], Any]] = {
    "enqueue_many": lambda session, _: enqueue_many(session, [routed.job(1)]),
    "handler.enqueue_many": lambda session, _: routed.enqueue_many(session, [1]),
    "enqueue": lambda session, _: enqueue(session, routed.job(1), deduplicate="k"),
    "enqueue again": lambda session, job_id: enqueue(
        session, routed.job(1), deduplicate=Deduplicate("held", replace=["priority"])
    ),
    "enqueue once": lambda session, _: enqueue(session, routed.job(1), deduplicate=Deduplicate("k", scope="any")),
    "enqueue_many by key": lambda session, _: enqueue_many(session, [routed.job(1)], deduplicate_by=lambda _: "k"),
    "a job with a blocker": lambda session, job_id: routed.enqueue(session, 1, blockers=[job_id]),
    "cancel_jobs": lambda session, job_id: operations.cancel_jobs(session, [job_id]),
    "cancel_chains": lambda session, job_id: operations.cancel_chains(session, [job_id]),
    "complete_job": lambda session, job_id: operations.complete_job(session, job_id, 1),
    "reschedule_jobs": lambda session, job_id: operations.reschedule_jobs(
        session, [job_id], at=datetime(2040, 1, 1, tzinfo=UTC)
    ),
    "set_priority": lambda session, job_id: operations.set_priority(session, 3),
    "pause_queues": lambda session, _: operations.pause_queues(session, ["default"], by="me"),
    "get_queue": lambda session, _: operations.get_queue(session, "mail", for_update=True),
    "get_job": operations.get_job,
    "list_jobs": lambda session, _: operations.list_jobs(session),
    "list_chains": lambda session, _: operations.list_chains(session),
    "list_attempts": operations.list_attempts,
    "explain_job": operations.explain_job,
    "send_event": lambda session, _: operations.send_event(session, "paid", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_goes_to_the_primary_of_the_queue_s_class(routing: Session, jobs: Jobs, name: str) -> None:
    job_id = jobs.add(type_name="routed", chain_type_name="routed", deduplication_key="held")
    OPERATIONS[name](routing, job_id)
    routing.commit()
    assert "get_bind" not in vars(routing)


def test_the_ready_made_classes_are_of_one_queue_after_the_import_of_the_pipeline() -> None:
    import sa_jobqueue.pipeline  # noqa: F401 - adds tables

    assert Job.__jobqueue__.pipeline
    for mapped_class in (Job.Chain, Job.Attempt, Job.Step, Job.Queue, Job.Schedule, Job.ArchiveRun):
        assert mapped_class.__jobqueue__ is Job.__jobqueue__


def test_companions_are_in_the_metadata_of_their_class() -> None:
    base_metadata = MetaData()

    class Kept(JobMixin, Other, queue_prefix="kept_"):
        metadata = base_metadata

    assert {table.name.removeprefix("kept_") for table in base_metadata.tables.values()} >= {
        "job",
        "job_attempt",
        "queue",
        "job_audit",
    }
    assert not [name for name in Other.metadata.tables if name.startswith("kept_")]


TRANSLATED = "schema_translate_map: would move the job tables from schema None to 'tenant'"


def migrate(engine: Engine) -> None:
    with engine.connect() as connection:
        upgrade(connection, Job.__jobqueue__)


def in_session(engine: Engine, act: Callable[[Session], Any]) -> None:
    with Session(engine) as session:
        act(session)
        session.flush()


REFUSED: dict[str, Callable[[Engine], Any]] = {
    "create_all": Job.metadata.create_all,
    "migrations": migrate,
    "Worker": lambda engine: Worker(jobs_, engine),
    "session.add": lambda engine: in_session(engine, lambda session: session.add(Job("routed", 1))),
    "handler.enqueue": lambda engine: in_session(engine, lambda session: routed.enqueue(session, 1)),
}


def call(name: str, engine: Engine) -> None:
    if name in REFUSED:
        REFUSED[name](engine)
    else:
        in_session(engine, lambda session: OPERATIONS[name](session, UUID(int=1)))


@pytest.mark.parametrize("name", [*REFUSED, *OPERATIONS])
def test_a_translated_schema_is_refused_at_the_first_call(engine: Engine, name: str) -> None:
    tenant = engine.execution_options(schema_translate_map={None: "tenant"})
    with pytest.raises(InvalidOptionError) as raised:
        call(name, tenant)
    assert str(raised.value).startswith(TRANSLATED)
    assert "search_path" in str(raised.value)


def test_a_map_of_other_schemas_is_no_matter(engine: Engine) -> None:
    mapped_engine = engine.execution_options(schema_translate_map={"shared": "tenant"})
    in_session(mapped_engine, lambda session: enqueue_many(session, [routed.job(1)]))


def test_a_subclass_with_a_table_of_its_own_is_refused_by_name() -> None:
    class Base(DeclarativeBase): ...

    class Parent(JobMixin, Base):
        kind: Mapped[str] = mapped_column(Text, server_default="job")
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class Mail(Parent):
        __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012

    with pytest.raises(InvalidOptionError, match=r"Export: has a separate table.*single-table inheritance"):

        class Export(Parent):
            __tablename__ = "export"
            id: Mapped[UUID] = mapped_column(ForeignKey(Parent.id), primary_key=True)

    assert Mail.__table__ is Parent.__table__


class TenantSession(Session): ...


@event.listens_for(TenantSession, "do_orm_execute")
def _only_high_priorities(state: Any) -> None:
    if state.is_select:
        criteria = with_loader_criteria(Job, lambda cls: cls.priority > 5, include_aliases=True)
        state.statement = state.statement.options(criteria)


@pytest.mark.parametrize("replaced", [[], ["priority"]])
def test_criteria_of_the_application_hide_no_holder_of_a_key(engine: Engine, jobs: Jobs, replaced: Any) -> None:
    holder = jobs.add(type_name="routed", chain_type_name="routed", deduplication_key="k", priority=1)
    with TenantSession(engine) as session, session.begin():
        assert session.scalar(select(func.count()).select_from(Job)) == 0
        existing, _ = enqueue(session, routed.job(1, priority=2), deduplicate=Deduplicate("k", replace=replaced))
        assert existing.id == holder
