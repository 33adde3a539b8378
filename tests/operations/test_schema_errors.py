"""A table or column of the queue that is missing is our error, whatever statement meets it; all other errors stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, exists, make_url, select, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, mapped_column

from sa_jobqueue import Deduplicate, Job, JobMixin, JobQueue, Worker, aio, operations
from sa_jobqueue.errors import SchemaError, SchemaMissingError, SchemaOutdatedError
from sa_jobqueue.ids import uuid7
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


class Base(DeclarativeBase):
    pass


class OwnJob(JobMixin, Base, queue_schema="nowhere", queue_prefix="own_"):
    tenant: Mapped[int | None] = mapped_column(deferred=True)


class Order(Base):
    __tablename__ = "order_of_nobody"
    id: Mapped[int] = mapped_column(primary_key=True)
    priority: Mapped[int]


ready, own_queue = JobQueue(), JobQueue(OwnJob)


@ready.handler("note")
def note(number: int) -> None: ...


@own_queue.handler("note")
def own_note(number: int) -> None: ...


USES: dict[str, Callable[[Session], Any]] = {
    "add": lambda session: session.add(own_note.job(1)),
    "add several": lambda session: session.add_all([own_note.job(1), own_note.job(2, blockers=[own_note.job(3)])]),
    "enqueue": lambda session: operations.enqueue(session, own_note.job(1)),
    "deduplicate": lambda session: operations.enqueue(session, own_note.job(1), deduplicate=Deduplicate("key")),
    "enqueue_many": lambda session: operations.enqueue_many(session, [own_note.job(1)]),
    "handler.enqueue_many": lambda session: own_note.enqueue_many(session, [1]),
    "payloads by key": lambda session: own_note.enqueue_many(session, [1], deduplicate_by=str),
    "select": lambda session: session.scalars(select(OwnJob)).all(),
    "select an alias": lambda session: session.scalars(select(aliased(OwnJob).id)).all(),
    "exists": lambda session: session.scalar(select(exists().where(OwnJob.Attempt.attempt == 1))),
    "get": lambda session: session.get(OwnJob, uuid7()),
    "get_job": lambda session: operations.get_job(session, uuid7(), model=OwnJob),
    "list_jobs": lambda session: operations.list_jobs(session, model=OwnJob),
    "list_dead_letters": lambda session: operations.list_dead_letters(session, model=OwnJob),
    "list_queues": lambda session: operations.list_queues(session, model=OwnJob),
    "cancel_jobs": lambda session: operations.cancel_jobs(session, [uuid7()], model=OwnJob),
}


def used(session: Session, use: Callable[[Session], Any]) -> None:
    """Use a queue in a session, and flush."""
    use(session)
    session.flush()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_missing_table_raises_schema_missing_error(use: Callable[[Session], Any], session: Session) -> None:
    with pytest.raises(SchemaMissingError) as caught:
        used(session, use)
    message = str(caught.value)
    assert message.startswith("table nowhere.own_")
    assert "run the application's migrations (alembic upgrade head)" in message
    assert "env.py needs target_metadata with the metadata of the queue's own base" in message
    assert isinstance(caught.value.__cause__, Exception)
    session.rollback()
    session.add(note.job(1))  # the connection is as it was
    session.commit()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_schema_errors_are_raised_on_async_engines(driver: str, engine: Engine) -> None:
    async_engine = create_async_engine(make_url(engine.url.render_as_string(False)).set(drivername=f"postgresql+{driver}"))
    uses: list[Callable[[AsyncSession], Any]] = [
        lambda session: aio.enqueue(session, own_note.job(1)),
        lambda session: aio.list_jobs(session, model=OwnJob),
        lambda session: own_note.enqueue_many(session, [1]),
    ]
    for use in uses:
        async with AsyncSession(async_engine) as session:
            with pytest.raises(SchemaMissingError, match=r"table nowhere\.own_job does not exist"):
                await use(session)
    async with AsyncSession(async_engine) as session:
        session.add(own_note.job(1))
        with pytest.raises(SchemaMissingError):
            await session.commit()
    await async_engine.dispose()


def test_schema_errors_are_raised_for_psycopg2_and_existing_engines(engine: Engine) -> None:
    other_engine = create_engine(make_url(engine.url.render_as_string(False)).set(drivername="postgresql+psycopg2"))
    with Session(other_engine) as session, pytest.raises(SchemaMissingError):
        operations.list_jobs(session, model=OwnJob)
    other_engine.dispose()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.add(note.job(1)),
        lambda session: operations.enqueue(session, note.job(1)),
        lambda session: note.enqueue_many(session, [1]),
        operations.list_jobs,
        lambda session: session.scalars(select(Job)).all(),
    ],
    ids=["add", "enqueue", "handler.enqueue_many", "list_jobs", "select"],
)
def test_tables_of_an_older_version_raise_schema_outdated_error(use: Callable[[Session], Any], session: Session) -> None:
    session.execute(text("ALTER TABLE job RENAME COLUMN priority TO old"))  # rolled back with the test's statement
    with pytest.raises(SchemaOutdatedError, match=r"table job has no column 'priority': they are older than version \d"):
        used(session, use)
    session.rollback()


def test_a_function_of_another_build_raises_schema_outdated_error(session: Session) -> None:
    session.execute(text("ALTER FUNCTION job_notify_due(text) RENAME TO job_notify"))
    for use in (
        lambda session: session.add(note.job(1)),
        lambda session: operations.enqueue(session, note.job(1)),
        lambda session: operations.enqueue_many(session, [note.job(1)]),
    ):
        outdated = pytest.raises(SchemaOutdatedError, match=r"no function job_notify_due .* sa-jobqueue doctor")
        with outdated, session.begin_nested():
            used(session, use)
    session.rollback()


def test_the_error_for_the_ready_made_models_shows_the_alembic_configuration(session: Session) -> None:
    session.execute(text("ALTER TABLE job RENAME TO gone"))
    session.add(note.job(1))
    with pytest.raises(SchemaMissingError, match=r"env.py needs target_metadata = \[Base.metadata, Job.metadata\]"):
        session.flush()
    session.rollback()


OTHERS: dict[str, Callable[[Session], Any]] = {
    "a table of the application": lambda session: session.scalars(select(Order)).all(),
    "beside ours": lambda session: session.execute(select(Order, Job).where(Order.id == Job.priority)).all(),
    "text": lambda session: session.execute(text("SELECT * FROM nowhere.own_job")),
    "a column of no table": lambda session: session.execute(select(Job.id).where(text("job.nothing = 1"))).all(),
    "other errors": lambda session: session.execute(select(Job.id).where(text("1 / 0 = 1 OR priority = 1"))).all(),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_errors_of_the_application_are_not_translated(use: Callable[[Session], Any], session: Session) -> None:
    session.add(note.job(1))
    session.flush()
    with pytest.raises(DBAPIError):
        use(session)
    session.rollback()


def test_a_missing_application_column_raises_the_original_error(session: Session) -> None:
    """Also where both have a column of that name: it is left alone in doubt."""
    session.execute(text("CREATE SCHEMA nowhere"))
    session.execute(text("CREATE TABLE nowhere.own_job AS SELECT * FROM job"))
    session.execute(text("CREATE TABLE order_of_nobody (id int)"))
    for statement in (select(OwnJob.tenant), select(Order.priority, Job.id).where(Order.id == Job.attempt)):
        with pytest.raises(ProgrammingError), session.begin_nested():
            session.execute(statement)
    session.rollback()


async def test_workers_raise_schema_errors_and_application_error_listeners_still_run(
    engine: Engine, async_engine: AsyncEngine
) -> None:
    """A worker raises it at its start. A listener of the application receives each error, and may replace ours."""
    with pytest.raises(SchemaMissingError, match="own_job does not exist"):
        await Worker(own_queue, engine, options=quick()).run()
    errors_seen: list[str] = []
    event.listen(engine, "handle_error", lambda context: errors_seen.append(type(context.original_exception).__name__))
    with Session(engine) as session, pytest.raises(SchemaError):
        used(session, USES["add"])
    assert errors_seen == ["UndefinedTable"]
