"""Rows that a handler writes through its session are kept if and only if its job completes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, model_serializer
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.errors import HandlerCommitError, InvalidOptionError
from sa_jobqueue.registry import BatchItem
from sa_jobqueue.worker.run.guard import ENDING
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import scalars, write
from tests.fixtures.variants import variants
from tests.fixtures.workers import drain, quick

pytestmark = pytest.mark.every_python

WRITE = text("INSERT INTO effect VALUES (:job)")
KINDS = ["sync", "async", "batch", "async_batch"]


@pytest.fixture(autouse=True)
def _table(request: pytest.FixtureRequest) -> Any:
    if "engine" not in request.fixturenames:
        yield
        return
    engine: Engine = request.getfixturevalue("engine")
    write(engine, "CREATE TABLE effect (job text UNIQUE)")
    yield
    write(engine, "DROP TABLE effect")


def effects(engine: Engine) -> list[str]:
    return scalars(engine, "SELECT job FROM effect ORDER BY 1")


def handlers(act: Callable[[Session, str], None]) -> JobQueue[Any]:
    """Return handlers of each kind that write their payload through their session, then do what `act` does with it."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, session: Session) -> None:
        session.execute(WRITE, {"job": payload})
        act(session, payload)

    @queue.handler("async", max_attempts=1)
    async def asynchronous(payload: str, session: AsyncSession) -> None:
        await session.execute(WRITE, {"job": payload})
        await session.run_sync(act, payload)

    @queue.batch_handler("batch", max_size=2, max_attempts=1)
    def batch(items: list[BatchItem[str]], session: Session) -> None:
        session.execute(WRITE, {"job": items[0].payload})
        act(session, items[0].payload)

    @queue.batch_handler("async_batch", max_size=2, max_attempts=1)
    async def async_batch(items: list[BatchItem[str]], session: AsyncSession) -> None:
        await session.execute(WRITE, {"job": items[0].payload})
        await session.run_sync(act, items[0].payload)

    return queue


def _with_session(session: Session, payload: str) -> None:
    with session:
        session.execute(text("SELECT 1"))


def _swallow(act: Callable[[Session], Any]) -> Callable[[Session, str], None]:
    def swallowing(session: Session, payload: str) -> None:
        try:
            act(session)
        except Exception:  # as code does that retries or logs
            return

    return swallowing


def _rollback_and_close(session: Session, payload: str) -> None:
    session.rollback()
    session.add(Job("later"))  # not flushed: the transaction has no connection yet
    session.close()


def _core_commit_and_fail(session: Session, payload: str) -> None:
    _swallow(lambda session: session.connection().commit())(session, payload)
    raise ZeroDivisionError


def _raw(statement: str) -> Callable[[Session, str], None]:
    def send(session: Session, payload: str) -> None:
        session.execute(text(statement))

    return send


def _past_sqlalchemy(statement: str) -> Callable[[Session, str], None]:
    def send(session: Session, payload: str) -> None:
        session.connection().connection.cursor().execute(statement)

    return send


REFUSED: dict[str, Callable[[Session, str], None]] = {
    "with session": _with_session,
    "close": lambda session, payload: session.close(),
    "close after a rollback": _rollback_and_close,
    "close, swallowed": _swallow(lambda session: session.close()),
    "commit": lambda session, payload: session.commit(),
    "raw commit": _raw("COMMIT"),
    "raw commit with a comment": _raw("/* a */ -- b\n commit work"),
    "raw rollback": _raw(" ROLLBACK;"),
    "raw end": _raw("END"),
    "core commit": lambda session, payload: session.connection().commit(),
    "core commit, swallowed, then fail": _core_commit_and_fail,
    "core rollback": lambda session, payload: session.connection().rollback(),
    "rollback past SQLAlchemy": _past_sqlalchemy("ROLLBACK"),
    "two statements, one of which rolls back": _past_sqlalchemy("SELECT 1; ROLLBACK"),
}
ALWAYS_REFUSED = (
    "with session",
    "close after a rollback",
    "close, swallowed",
    "commit",
    "raw end",
    "core rollback",
    "rollback past SQLAlchemy",
)


@pytest.mark.slow
@pytest.mark.parametrize("misuse", variants(REFUSED, default=ALWAYS_REFUSED))
async def test_a_handler_that_ends_its_transaction_fails_and_its_writes_are_rolled_back(
    engine: Engine, jobs: Jobs, misuse: str
) -> None:
    queue = handlers(REFUSED[misuse])
    # Of one kind after the other on the same few connections: each is followed by one that does nothing wrong.
    harmless = handlers(lambda session, payload: None)
    wrong = enqueue(engine, *(queue.job(kind, kind) for kind in KINDS))
    await drain(queue, engine, concurrency=1)
    assert [jobs.status(job_id) for job_id in wrong] == [JobStatus.DEAD] * 4
    assert effects(engine) == []
    messages = {jobs.dead_letters(job_id)[0]["error"]["type"] for job_id in wrong}
    assert messages <= {"sa_jobqueue.errors.HandlerCommitError", "ZeroDivisionError"}
    right = enqueue(engine, *(harmless.job(kind, kind) for kind in KINDS))
    await drain(harmless, engine, concurrency=1)
    assert [jobs.status(job_id) for job_id in right] == [JobStatus.COMPLETED] * 4
    assert effects(engine) == sorted(KINDS)


LEFT_BEHIND: dict[str, Callable[[Session], Any]] = {
    "close": lambda session: session.close(),
    "rollback": lambda session: session.rollback(),
    "commit": lambda session: session.commit(),
    "execute": lambda session: session.execute(text("SELECT 1")),
}


class Output(BaseModel):
    """A return value; something happens while the worker writes it."""

    acts: ClassVar[list[Callable[[], Any]]] = []

    @model_serializer
    def _encode(self) -> dict[str, Any]:
        while self.acts:
            with ThreadPoolExecutor(1) as threads, suppress(HandlerCommitError):
                threads.submit(self.acts.pop()).result()
        return {}


@pytest.mark.parametrize("use", LEFT_BEHIND)
async def test_a_session_that_is_used_after_its_handler_has_returned_fails_the_attempt(
    engine: Engine, jobs: Jobs, use: str
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("leaves", max_attempts=1)
    def leaves(payload: str, session: Session) -> Output:
        session.execute(WRITE, {"job": payload})
        Output.acts.append(lambda: LEFT_BEHIND[use](session))
        return Output()

    (job_id,) = enqueue(engine, leaves.job("a"))
    await drain(queue, engine, concurrency=1)
    assert effects(engine) == []
    assert jobs.status(job_id) == JobStatus.DEAD
    assert "left behind" in jobs.dead_letters(job_id)[0]["error"]["message"]


def _conflict(session: Session, payload: str) -> None:
    """Fail at the database, roll back, and do something else instead: what stands in code of many applications."""
    with pytest.raises(IntegrityError):
        session.execute(WRITE, {"job": payload})
    session.rollback()
    session.execute(WRITE, {"job": f"{payload} instead"})


def _nested(session: Session, payload: str) -> None:
    with session.begin_nested():
        session.execute(WRITE, {"job": f"{payload} nested"})
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(WRITE, {"job": payload})
    session.execute(text("SAVEPOINT mine"))
    session.execute(WRITE, {"job": f"{payload} dropped"})
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


LEGAL: dict[str, tuple[Callable[[Session, str], None], list[str]]] = {
    "rollback and on": (_conflict, ["instead"]),
    "rollback": (lambda session, payload: session.rollback(), []),
    "savepoints": (_nested, ["", "nested"]),
}


@pytest.mark.parametrize("use", LEGAL)
async def test_a_handler_may_roll_back_and_continue(engine: Engine, jobs: Jobs, use: str) -> None:
    """Its writes before the rollback are gone; those after it are kept with the completion."""
    act, expected = LEGAL[use]
    queue = handlers(act)
    ids = enqueue(engine, *(queue.job(kind, kind) for kind in KINDS))
    await drain(queue, engine, concurrency=1)
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 4
    assert effects(engine) == sorted(f"{kind} {effect}".strip() for kind in KINDS for effect in expected)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg sync"])
async def test_autocommit_sessions_are_refused_before_anything_is_written(engine: Engine, jobs: Jobs, driver: str) -> None:
    """Where it can be seen, when the worker is made; else before the handler's first statement."""
    url = engine.url.set(drivername=f"postgresql+{driver.partition(' ')[0]}")
    is_sync = driver.endswith("sync")

    def make(**options: Any) -> Any:
        return create_engine(url, **options) if is_sync else create_async_engine(url, **options)

    queue = handlers(lambda session, payload: None)
    kind: Any = sessionmaker if is_sync else async_sessionmaker
    option = "session_factory" if is_sync else "async_session_factory"
    plain, autocommit, two = (
        make(),
        make(isolation_level="AUTOCOMMIT"),
        make(execution_options={"isolation_level": "AUTOCOMMIT"}),
    )
    for factory in (kind(autocommit), kind(two), kind(plain.execution_options(isolation_level="AUTOCOMMIT"))):
        with pytest.raises(InvalidOptionError, match="AUTOCOMMIT"):
            Worker(queue, engine, **{option: factory})

    late: JobQueue[Any] = JobQueue()

    @late.handler("sync", max_attempts=1)
    def sync(payload: str, session: Session) -> None:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        session.execute(WRITE, {"job": payload})

    @late.handler("async", max_attempts=1)
    async def asynchronous(payload: str, session: AsyncSession) -> None:
        try:
            await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        except Exception:
            await session.rollback()  # it goes on, and is refused all the same

    (job_id,) = enqueue(engine, late.job("sync" if is_sync else "async", "x"))
    await drain(late, engine, concurrency=1, factories={option: kind(plain)})
    assert effects(engine) == []
    assert (jobs.status(job_id), len(jobs.dead_letters(job_id))) == (JobStatus.DEAD, 1)
    assert "AUTOCOMMIT" in jobs.dead_letters(job_id)[0]["error"]["message"]
    for session_factory in (plain, autocommit, two):
        await session_factory.dispose() if not is_sync else session_factory.dispose()


@pytest.mark.parametrize(
    ("statement", "ends"),
    [
        *((statement, True) for statement in ("PREPARE TRANSACTION 'a'", "abort", "rollback", "Commit;", "END TRANSACTION")),
        *(
            (statement, False)
            for statement in ("ROLLBACK TO SAVEPOINT a", "rollback work to a", "SELECT 'COMMIT'", "SET LOCAL a.b = 1")
        ),
    ],
)
def test_only_statements_that_end_the_transaction_are_refused(statement: str, ends: bool) -> None:
    assert bool(ENDING.match(statement)) is ends


async def test_handlers_that_leave_a_connection_as_it_was_share_it(engine: Engine) -> None:
    pids: list[int] = []

    def set_local(session: Session, payload: str) -> None:
        session.execute(text("SET LOCAL statement_timeout = '5s'"))
        session.execute(select(func.set_config("app.tenant", "42", True)))
        pids.append(session.scalar(select(func.pg_backend_pid())))  # type: ignore[arg-type]

    queue = handlers(set_local)
    enqueue(engine, *(queue.job("sync", f"{number}") for number in range(3)))
    await drain(queue, engine, concurrency=1)
    assert len(pids) == 3
    assert len(set(pids)) == 1


class AppSession(Session):
    """An application's own, as sqlmodel.Session is."""


class AppAsyncSession(AsyncSession):
    """An application's own."""


async def test_a_handler_receives_the_session_class_of_its_annotation(engine: Engine, jobs: Jobs) -> None:
    queue, sessions = JobQueue[Any](), list[Any]()

    @queue.handler("own")
    def own(payload: Any, session: AppSession) -> None:
        sessions.append(session)

    @queue.handler("plain")
    def plain(payload: Any, session: Session) -> None:
        assert not isinstance(session, AppSession)
        sessions.append(session)

    @queue.handler("own_async")
    async def own_async(payload: Any, session: AppAsyncSession, ctx: AttemptContext) -> None:
        assert isinstance(session, AppAsyncSession)
        sessions.append(session)

    @queue.batch_handler("own_batch", max_size=2)
    def own_batch(payloads: list[Any], session: AppSession) -> None:
        assert isinstance(session, AppSession)
        sessions.append(session)

    enqueue(engine, *(queue.job(handler.name, {}) for handler in queue))
    await drain(queue, engine, concurrency=1)
    assert len(sessions) == 4
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}
    factories = {
        "session_factory": sessionmaker(engine),
        "async_session_factory": async_sessionmaker(class_=AppAsyncSession),
    }
    with pytest.raises(InvalidOptionError) as refused:
        Worker(queue, engine, options=quick(concurrency=1), **factories)  # type: ignore[arg-type]
    assert refused.value.option == "session_factory"
    assert "test_handler_sessions:" in str(refused.value)
    assert "sessionmaker(..., class_=AppSession)" in str(refused.value)
    factories["session_factory"] = sessionmaker(engine, class_=AppSession)
    Worker(queue, engine, options=quick(concurrency=1), **factories)  # type: ignore[arg-type]


def test_declaring_a_handler_creates_no_job_instance() -> None:
    """An application's own checks of jobs see jobs, not a throw-away one that the declaration made."""
    from sqlalchemy.orm import DeclarativeBase, validates

    from sa_jobqueue import JobMixin

    class Base(DeclarativeBase):
        pass

    instances: list[Any] = []

    class OwnJob(JobMixin[str], Base, queue_id_factory=lambda: "own-1"):
        @validates("id")
        def check_id(self, key: str, value: str) -> str:
            instances.append(value)
            assert value.startswith("own-")
            return value

    queue = JobQueue(OwnJob)

    @queue.handler("mail")
    def mail(payload: Any) -> None: ...

    assert instances == []
    assert mail.job({}).id == "own-1"
