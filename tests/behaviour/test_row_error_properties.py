"""Whatever the application's code raises while a worker writes a row: that row fails, and all others are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, Text, create_engine, event, exc, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, validates
from sqlalchemy.types import TypeDecorator

from sa_jobqueue import JobMixin, JobQueue, JobStatus, Worker
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.ids import uuid7
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.transactions import rows
from tests.fixtures.workers import EventLog, quick, until, working


class Base(DeclarativeBase): ...


class UnprintableError(Exception):
    """An error whose message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def lost(kind: str) -> Exception:
    return exc.OperationalError(f"SELECT {kind}", {}, psycopg.OperationalError("the other database is down"))


ERRORS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("no"),
    "KeyError": lambda: KeyError("no"),
    "OSError": lambda: OSError("no"),
    "ConnectionError": lambda: ConnectionResetError("no"),
    "TimeoutError": lambda: TimeoutError("no"),
    "StopIteration": lambda: StopIteration("no"),
    "RecursionError": lambda: RecursionError("no"),
    "MemoryError": lambda: MemoryError("no"),
    "unprintable": UnprintableError,
    "of the driver": lambda: psycopg.OperationalError("another connection is down"),
    "of SQLAlchemy": lambda: lost("1"),
    "of a pool": lambda: exc.TimeoutError("no connection in the pool"),
    "surrogate": lambda: UnicodeEncodeError("utf-8", "\udce9", 0, 1, "no"),
}


def fail(where: str, marker: Any) -> None:
    """Raise if a row's marker asks for it: `hook/error`."""
    hook, _, error = str(marker or "").partition("/")
    if hook == where:
        raise ERRORS[error]()


class Marked(TypeDecorator[str]):
    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        fail("bind processor", value)
        return value


def made(context: Any) -> str:
    parameters = context.get_current_parameters()
    fail("default", parameters.get("marker"))
    fail("default", (parameters["input"] or {}).get("marker") if isinstance(parameters.get("input"), dict) else None)
    return "made"


def new_id() -> Any:
    if asking.get("id"):
        raise ERRORS[asking["id"]]()
    return uuid7()


asking: dict[str, str] = {}


class Job(JobMixin, Base, queue_id_factory=new_id):
    marker: Mapped[str | None] = mapped_column(Text)
    typed: Mapped[str | None] = mapped_column(Marked)
    made: Mapped[str] = mapped_column(Text, default=made)

    @validates("input")
    def check(self, key: str, value: Any) -> Any:
        """Refuse what asks for it."""
        fail("validator", value.get("marker") if isinstance(value, dict) else None)
        return value


@event.listens_for(Job, "before_insert")
def _before_insert(mapper: Any, connection: Any, job: Any) -> None:
    fail("event", job.marker)


HOOKS = ["bind processor", "default", "validator", "event", "id factory"]
Row = tuple[str, str]


@pytest.fixture
def own_engine(jobqueue_server: PostgresServer, make_database: MakeDatabase) -> Any:
    engine = create_engine(make_database(jobqueue_server))
    Job.metadata.drop_all(engine)
    Job.metadata.create_all(engine)
    yield engine
    engine.dispose()
    asking.clear()


def statuses(engine: Engine) -> dict[Any, JobStatus]:
    return {row.id: row.status for row in rows(engine, select(Job.id, Job.status))}


def are_open(engine: Engine) -> bool:
    return bool({JobStatus.PENDING, JobStatus.RUNNING, JobStatus.BLOCKED} & set(statuses(engine).values()))


def queue_of_rows(gate: asyncio.Event) -> JobQueue[Job]:
    queue = JobQueue(Job)

    @queue.handler("second")
    async def second(payload: dict[str, str]) -> None: ...

    @queue.handler("first", max_attempts=1)
    async def first(row: list[str], ctx: AttemptContext) -> Any:
        hook, error = row
        await gate.wait()
        marker = f"{hook}/{error}"
        match hook:
            case "completes":
                return None
            case "continues":
                return ctx.continue_with(second, {})
            case "fails":
                raise ValueError("an ordinary failure")
            case "bind processor":
                return ctx.continue_with(second, {}, typed=marker)
            case "validator":
                return ctx.continue_with(second, {"marker": marker})
            case "id factory":
                asking["id"] = error
                try:
                    return ctx.continue_with(second, {})
                finally:
                    asking.clear()
            case _:
                # A value that is an SQL expression takes the way of the ORM, whose events are called.
                expression = {"expires_at": func.now() + timedelta(days=1)} if hook == "event" else {}
                return ctx.continue_with(second, {}, marker=marker, **expression)

    return queue


async def completes_all_but_the_bad(engine: Engine, rows: list[Row]) -> None:
    gate = asyncio.Event()
    queue = queue_of_rows(gate)
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.execute(text("DELETE FROM dead_letter; DELETE FROM job_attempt; DELETE FROM job"))
        roots = [queue["first"].job(list(row)) for row in rows]
        session.add_all(roots)
    worker = Worker(queue, engine, options=quick(concurrency=len(rows)))
    log = EventLog(worker)
    async with working(worker):
        gate.set()
        await until(lambda: not are_open(engine), description=f"all of {rows} have ended")
    ended = statuses(engine)
    for root, (hook, _) in zip(roots, rows, strict=True):
        expected = JobStatus.COMPLETED if hook in {"completes", "continues"} else JobStatus.DEAD
        assert (hook, ended[root.id]) == (hook, expected)
    assert not log.of(ComponentFailed)


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_with_every_error(own_engine: Engine, hook: str) -> None:
    rows = [("completes", ""), *((hook, error) for error in ERRORS), ("continues", "")]
    asyncio.run(completes_all_but_the_bad(own_engine, rows))


async def fires_all_but_the_bad(engine: Engine, bad: list[Row]) -> None:
    queue = JobQueue(Job)

    @queue.handler("second")
    async def second(payload: dict[str, str]) -> None: ...

    with Session(engine) as session, session.begin():
        session.execute(text("DELETE FROM schedule; DELETE FROM job; DELETE FROM quarantine"))
        for number, (hook, error) in enumerate([("", ""), *bad, ("", "")]):
            document = {"marker": f"{hook}/{error}"} if hook else {}
            values = {"name": f"s{number}", "input": document, "next_fire_at": text("now()")}
            columns = {"type_name": "second", "cron": "0 0 1 1 *", "input_version": 1}
            session.execute(Job.Schedule.__table__.insert().values({**columns, **values}))  # type: ignore[attr-defined]
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    async with working(worker):
        await until(
            lambda: list(statuses(engine).values()) == [JobStatus.COMPLETED] * 2, description=f"two fired beside {bad}"
        )
        await until(lambda: held(engine) == len(bad), description=f"{bad} are known to fail")
    assert not log.of(ComponentFailed)


def held(engine: Engine) -> int:
    """Return how many schedules are in quarantine, or stopped by an error in their rows."""
    with engine.connect() as connection:
        quarantined = connection.scalar(text("SELECT count(*) FROM quarantine WHERE statement = 'fire'"))
        stopped = connection.scalar(text("SELECT count(*) FROM schedule WHERE error IS NOT NULL"))
    return int(quarantined or 0) + int(stopped or 0)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["default", "validator"])
def test_a_schedule_whose_job_cannot_be_made_holds_up_no_other(own_engine: Engine, hook: str) -> None:
    asyncio.run(fires_all_but_the_bad(own_engine, [(hook, error) for error in ERRORS]))


def test_a_worker_refuses_an_onupdate_that_raises(own_engine: Engine) -> None:
    class Other(DeclarativeBase): ...

    class Touched(JobMixin, Other):
        touched: Mapped[str | None] = mapped_column(Text, onupdate=lambda: int("no"))

    queue = JobQueue(Touched)
    queue.handler("second")(lambda payload: None)
    with pytest.raises(InvalidOptionError, match=r"Touched\.touched.*ValueError"):
        Worker(queue, own_engine)
