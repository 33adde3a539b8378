"""A handler changes what its session sees, and with it whether the completion finds the job's row.

Whatever it does, the job completes with the handler's writes, or the attempt has failed, is counted, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, JobQueue, JobStatus, Worker
from sa_jobqueue.errors import CompletionRefusedError
from sa_jobqueue.events import AttemptLost
from sa_jobqueue.models import Base
from sa_jobqueue.operations import delete_chains
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.registry import BatchItem
from sa_jobqueue.testing import drain
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import PATIENCE, quick

pytestmark = [own_database, both_servers, pytest.mark.every_python]

Act: TypeAlias = Callable[[Session, Any], object]
"""An act of a handler with its session; the second argument is the id of its job."""

_SETUP: Final = """
CREATE TABLE effect (job text NOT NULL);
CREATE FUNCTION meddle(setting text, value text, is_local boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config(setting, value, is_local); END $$;
CREATE ROLE {clerk} LOGIN PASSWORD 'clerk';
CREATE ROLE {stranger};
GRANT {stranger} TO {clerk};
GRANT USAGE ON SCHEMA public, other TO {clerk}, {stranger};
GRANT ALL ON ALL TABLES IN SCHEMA public, other TO {clerk};
GRANT ALL ON effect TO {stranger};
ALTER TABLE public.job ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON public.job TO {clerk}
  USING (COALESCE(current_setting('app.tenant', true), '') <> 'hidden' AND fairness_key <> 'hidden');
"""
_TEARDOWN: Final = "DROP OWNED BY {clerk}, {stranger}; DROP ROLE {clerk}, {stranger}"
WRITE: Final = text("INSERT INTO public.effect VALUES (:job)")


@dataclass(frozen=True)
class Shop:
    """Two schemas with job tables; a role that works in `public`, under a policy; and one that may not touch jobs."""

    owner: Engine
    clerk: Engine
    """Of the role that the application and its worker have."""
    stranger: str

    def hide(self, job_id: Any) -> None:
        """Hide a job from the role, as a transaction may that moves it to another tenant."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '200ms'"))  # the handler may have locked it
            connection.execute(text("UPDATE public.job SET fairness_key = 'hidden' WHERE id = :id"), {"id": job_id})

    def show_all(self) -> None:
        """Undo it."""
        with self.owner.begin() as connection:
            connection.execute(text("UPDATE public.job SET fairness_key = '' WHERE fairness_key = 'hidden'"))

    def effects(self) -> Counter[str]:
        """Return how often each effect was kept."""
        with self.owner.connect() as connection:
            return Counter(connection.execute(text("SELECT job FROM public.effect")).scalars())


@pytest.fixture
def shop(engine: Engine) -> Iterator[Shop]:
    """Give the test's database in this form."""
    roles = {name: f"{name}_{secrets.token_hex(5)}" for name in ("clerk", "stranger")}
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA other"))
        connection.execute(text("SET LOCAL search_path = other"))
        Base.metadata.create_all(connection)
    with engine.begin() as connection:
        connection.exec_driver_sql(_SETUP.format_map(roles))
    clerk = create_engine(engine.url.set(username=roles["clerk"], password="clerk"))
    yield Shop(engine, clerk, roles["stranger"])
    clerk.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql(_TEARDOWN.format_map(roles))


def sends(*statements: str) -> Act:
    """Return an act that sends statements; `:id` in them is the id of the job."""

    def act(session: Session, job_id: Any) -> None:
        for statement in statements:
            session.execute(text(statement), {"id": job_id} if ":id" in statement else {})

    return act


def _rolls_back(session: Session, _: Any) -> None:
    session.rollback()


def _swallows_an_error(session: Session, _: Any) -> None:
    with suppress(DBAPIError):
        session.execute(text("SELECT 1 / 0"))


def _swallows_an_error_at_the_commit(session: Session, job_id: Any) -> None:
    """After the completion: PostgreSQL answers the COMMIT with a ROLLBACK."""
    event.listen(session, "before_commit", lambda session: _swallows_an_error(session, job_id))


def _deletes_its_chain(session: Session, job_id: Any) -> None:
    delete_chains(session, [job_id])


_COPY: Final = "INSERT INTO {0}.job SELECT * FROM public.job WHERE id = :id"
_RUN_COPY: Final = """
INSERT INTO other.job (id, type_name, chain_id, chain_type_name, input, max_attempts)
  SELECT id, type_name, id, type_name, input, max_attempts FROM public.job WHERE id = :id;
"""
_RUN_COPY_2: Final = """
UPDATE other.job SET status = 'running', attempt = j.attempt, leased_by = j.leased_by, started_at = j.started_at
  FROM public.job AS j WHERE j.id = other.job.id AND j.id = :id
"""
_TEMPORARY: Final = "CREATE TEMPORARY TABLE job (LIKE public.job INCLUDING DEFAULTS)"
_LOCAL: Final = "SET LOCAL search_path = other"

ACTS: Final[dict[str, Act]] = {
    "a temporary table": sends(_TEMPORARY),
    "a temporary copy": sends(_TEMPORARY, _COPY.format("pg_temp")),
    "a temporary copy until the commit": sends(f"{_TEMPORARY} ON COMMIT DROP", _COPY.format("pg_temp")),
    "a temporary view": sends("CREATE TEMPORARY VIEW job AS SELECT * FROM public.job"),
    "a temporary view with the row's table": sends("CREATE TEMPORARY VIEW job AS SELECT *, tableoid FROM public.job"),
    "temporary companions": sends(
        "CREATE TEMPORARY TABLE job_step (LIKE public.job_step)",
        "CREATE TEMPORARY TABLE job_blocker (LIKE public.job_blocker)",
    ),
    "a copy in another schema": sends(_RUN_COPY, _RUN_COPY_2, _LOCAL),
    "deletes its row": sends("DELETE FROM public.job WHERE id = :id"),
    "deletes its chain": _deletes_its_chain,
    "repeatable read": sends("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
    "serializable": sends("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    "read only": sends("SET TRANSACTION READ ONLY"),
    "a short statement timeout": sends("SET LOCAL statement_timeout = '1ms'"),
    "a savepoint with another path": sends("SAVEPOINT mine", _LOCAL, "RELEASE SAVEPOINT mine"),
    "a path that is undone": sends("SAVEPOINT mine", _LOCAL, "ROLLBACK TO SAVEPOINT mine"),
    "rolls back": _rolls_back,
    "swallows an error": _swallows_an_error,
    "swallows an error at the commit": _swallows_an_error_at_the_commit,
    "resets all": sends("RESET ALL"),
}
"""Acts of handlers, by name."""

SETTINGS: Final = {
    "search_path": ("other", "other, public", "nowhere", "", "pg_temp, public", "public"),
    "role": ("stranger", "none"),
    "app.tenant": ("hidden", "shown"),
    "row_security": ("off",),
    "timezone": ("Asia/Tokyo",),
    "datestyle": ("German",),
    "standard_conforming_strings": ("off",),
}
"""Settings, and their values. The role stands for the one that the test has made."""
HIDES: Final = "has its row hidden from the worker"
HOW: Final = ("SET LOCAL", "SET", "a function sets", "a function leaks")


@dataclass(frozen=True)
class Setting:
    """A setting that a handler changes: for its transaction, or for the session, so that the connection keeps it."""

    how: str
    name: str
    value: str

    def __call__(self, session: Session, shop: Shop) -> None:
        value = shop.stranger if self.value == "stranger" else self.value
        if self.how.startswith("SET"):
            session.execute(text(f"{self.how} {self.name} = '{value}'"))
        else:
            meddled = {"name": self.name, "value": value, "is_local": self.how == "a function sets"}
            session.execute(text("SELECT public.meddle(:name, :value, :is_local)"), meddled)


@dataclass(frozen=True)
class Misuse:
    """One handler's sequence of acts, by their names or as settings, and the kind of its session."""

    kind: str
    acts: Sequence[str | Setting]

    def __call__(self, session: Session, shop: Shop, job_id: Any) -> None:
        for act in self.acts:
            if isinstance(act, Setting):
                act(session, shop)
            elif act == HIDES:
                shop.hide(job_id)
            else:
                ACTS[act](session, job_id)


KINDS: Final = ("session", "transaction", "continues")
"""Handlers with a session, with a step that is a transaction, and with a session and a next job."""
_settings = st.sampled_from(
    [Setting(how, name, value) for how in HOW for name, values in SETTINGS.items() for value in values]
)
_misuses = st.builds(
    Misuse,
    kind=st.sampled_from(KINDS),
    acts=st.lists(st.one_of(_settings, _settings, st.sampled_from(sorted([*ACTS, HIDES]))), min_size=1, max_size=4),
)
PATH: Final = Setting("SET LOCAL", "search_path", "other")
LEAK: Final = Setting("SET", "app.tenant", "hidden")
COVERED: Final = Setting("SET LOCAL", "app.tenant", "shown")
SWALLOWS: Final = "swallows an error at the commit"
COPY: Final = "a copy in another schema"


@dataclass
class Run:
    """The handlers of one example, and how often each has run."""

    shop: Shop
    misuses: Sequence[Misuse]
    queue: JobQueue[Any] = field(default_factory=JobQueue)
    runs: Counter[int] = field(default_factory=Counter)
    worker: Worker | None = None

    def act(self, session: Session, number: int, job_id: Any) -> None:
        """Run the acts of the handler of this number, then write its effect."""
        self.runs[number] += 1
        if self.runs[number] > 2 and self.worker is not None:  # more often than its attempts allow
            self.worker.stop()
        self.misuses[number](session, self.shop, job_id)
        session.execute(WRITE, {"job": str(job_id)})


def _declare(run: Run, *, is_async: bool) -> None:
    misusing: dict[str, Any] = {"max_attempts": 2, "retry": immediately}
    innocent: dict[str, Any] = {"max_attempts": 5, "retry": immediately}
    queue = run.queue

    @queue.handler("after")
    async def after(payload: None) -> None: ...

    if is_async:

        @queue.handler("session", **misusing)
        async def in_session(number: int, session: AsyncSession, ctx: AttemptContext) -> None:
            await session.run_sync(run.act, number, ctx.job.id)

        @queue.handler("continues", **misusing)
        async def continuing(number: int, session: AsyncSession, ctx: AttemptContext) -> Any:
            await session.run_sync(run.act, number, ctx.job.id)
            return after.continuation(None)

        @queue.handler("transaction", **misusing)
        async def in_transaction(number: int, ctx: AttemptContext) -> None:
            async with ctx.transaction("write") as session:
                if session is not None:
                    await session.run_sync(run.act, number, ctx.job.id)

        @queue.handler("innocent", **innocent)
        async def neighbour(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
            await session.execute(WRITE, {"job": str(ctx.job.id)})

        return

    @queue.handler("session", **misusing)
    def in_session_sync(number: int, session: Session, ctx: AttemptContext) -> None:
        run.act(session, number, ctx.job.id)

    @queue.handler("continues", **misusing)
    def continuing_sync(number: int, session: Session, ctx: AttemptContext) -> Any:
        run.act(session, number, ctx.job.id)
        return after.continuation(None)

    @queue.handler("transaction", **misusing)
    def in_transaction_sync(number: int, ctx: AttemptContext) -> None:
        with ctx.transaction("write") as session:
            if session is not None:
                run.act(session, number, ctx.job.id)

    @queue.handler("innocent", **innocent)
    def neighbour_sync(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.execute(WRITE, {"job": str(ctx.job.id)})


async def _work(run: Run, jobs: Jobs, driver: str) -> None:
    """Run workers, whose handlers share one connection, until no job is left to run."""
    one_connection: dict[str, Any] = {"pool_size": 1, "max_overflow": 0}
    clerk = run.shop.clerk
    if driver == "sync":
        engine = create_engine(clerk.url, **one_connection)
        factory: dict[str, Any] = {"session_factory": sessionmaker(engine)}
    else:
        async_engine = create_async_engine(clerk.url.set(drivername=f"postgresql+{driver}"), **one_connection)
        factory = {"async_session_factory": async_sessionmaker(async_engine)}
    for _ in range(6):
        run.worker = Worker(run.queue, clerk, options=quick(concurrency=1), **factory)
        run.worker.events.subscribe(lambda event: run.shop.show_all() if isinstance(event, AttemptLost) else None)
        await asyncio.wait_for(run.worker.run_until_idle(), PATIENCE)
        if not {JobStatus.PENDING, JobStatus.RUNNING} & set(jobs.statuses().values()):
            break
    if driver == "sync":
        engine.dispose()
    else:
        await async_engine.dispose()


def _check(shop: Shop, jobs: Jobs, run: Run, ids: Sequence[UUID], neighbours: Sequence[UUID]) -> None:
    effects = shop.effects()
    with shop.owner.connect() as connection:
        following = Counter(connection.execute(text("SELECT chain_id FROM public.job WHERE chain_index = 1")).scalars())
    for number, job_id in enumerate(ids):
        row, misuse = jobs.get(job_id), run.misuses[number]
        outcomes = [attempt["outcome"] for attempt in jobs.attempts(job_id)]
        is_completed = row["status"] is JobStatus.COMPLETED
        assert is_completed or row["status"] is JobStatus.DEAD, (misuse, row["status"])
        assert row["max_attempts"] == 2, (misuse, outcomes)  # more if an attempt was not counted
        assert outcomes == ["failed"] * (row["attempt"] - is_completed), misuse
        assert effects[str(job_id)] == is_completed, misuse
        assert following[job_id] == (is_completed and misuse.kind == "continues"), misuse
    assert [jobs.status(job_id) for job_id in neighbours] == [JobStatus.COMPLETED] * len(neighbours), run.misuses
    assert [effects[str(job_id)] for job_id in neighbours] == [1] * len(neighbours), run.misuses
    # A connection that a handler has spoiled fails one attempt at most.
    assert sum(len(jobs.attempts(job_id)) for job_id in neighbours) <= run.runs.total(), run.misuses


@pytest.mark.slow
@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("driver", ["sync", "psycopg", "asyncpg"])
def test_a_handler_completes_with_its_writes_or_fails_counted_whatever_its_session_sees(
    shop: Shop, jobs: Jobs, driver: str, examples: int
) -> None:
    """Draws 12 sequences of one to four acts for each driver beside the 12 written ones, in the long run 300.

    It fails without the check of `tableoid`, and if an attempt that began here is released as an orphan.
    """

    @settings(max_examples=examples, deadline=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    @given(misuses=st.lists(_misuses, min_size=3, max_size=3))
    @example([Misuse("session", [PATH]), Misuse("transaction", [PATH]), Misuse("continues", [PATH])])
    @example([Misuse("session", [COPY]), Misuse("transaction", ["a temporary copy"]), Misuse("session", [LEAK, COVERED])])
    @example([Misuse("session", [SWALLOWS]), Misuse("transaction", [SWALLOWS]), Misuse("session", ["deletes its row"])])
    @example([Misuse("session", [HIDES]), Misuse("transaction", [HIDES]), Misuse("continues", ["a temporary copy"])])
    def check(misuses: list[Misuse]) -> None:
        run = Run(shop, misuses)
        _declare(run, is_async=driver != "sync")
        with shop.owner.begin() as connection:
            connection.execute(text("TRUNCATE public.effect; DELETE FROM public.job"))
        ids, neighbours = [], []
        for number, misuse in enumerate(misuses):
            options: dict[str, Any] = {"priority": 9 - number, "max_attempts": 2}
            ids.append(jobs.add(type_name=misuse.kind, chain_type_name=misuse.kind, input=number, **options))
            neighbours.append(jobs.add(type_name="innocent", priority=9 - number, max_attempts=5))
        asyncio.run(_work(run, jobs, driver))
        _check(shop, jobs, run, ids, neighbours)

    check()


def _trigger(returns: str) -> str:
    return f"""
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN {returns}; END $$;
CREATE TRIGGER keep BEFORE UPDATE ON public.job FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION keep();
"""


REFUSED: Final[dict[str, tuple[Act, str, str]]] = {
    "a tenant": (
        sends("SET LOCAL app.tenant = 'hidden'"),
        "",
        r"does not see the row in public\.job.* row-level security applies",
    ),
    "row_security": (sends("SET LOCAL row_security = off"), "", "affected by row-level security.* undo these before"),
    "no table": (sends("SET LOCAL search_path = nowhere"), "", "table job does not exist.* search path and settings"),
    "a view": (sends("CREATE TEMPORARY VIEW job AS SELECT * FROM public.job"), "", "tableoid does not exist.* undo these"),
    "read only": (sends("SET LOCAL transaction_read_only = on"), "", "in a read-only transaction.* undo these before"),
    "deletes its row": (ACTS["deletes its row"], "", r"does not see the row in public\.job.* raise Cancel .*retention="),
    "deletes its chain": (_deletes_its_chain, "", "raise Cancel .*retention="),
    "another status": (
        sends("UPDATE public.job SET status = 'pending', leased_by = NULL WHERE id = :id"),
        "",
        "has the status 'pending' and attempt 1: end the job by",
    ),
    "a trigger skips": (sends(), _trigger("NULL"), r"update of the row in public\.job changed nothing.* a trigger"),
    "a trigger reverts": (sends(), _trigger("OLD"), r"update of the row in public\.job changed nothing.* a trigger"),
}
"""The act of the handler after its write, statements of the database's owner before, and the error."""


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
async def test_a_completion_that_writes_no_row_fails_the_attempt_and_says_what_the_session_sees(
    shop: Shop, jobs: Jobs, case: str
) -> None:
    act, setup, message = REFUSED[case]
    queue: JobQueue[Any] = JobQueue()

    def misuse(session: Session, job_id: Any) -> None:
        session.execute(WRITE, {"job": str(job_id)})
        act(session, job_id)

    @queue.handler("session", max_attempts=1)
    async def in_session(payload: None, session: AsyncSession, ctx: AttemptContext) -> None:
        await session.run_sync(misuse, ctx.job.id)

    @queue.batch_handler("batch", max_attempts=1, max_size=2)
    def batch(items: list[BatchItem[None]], session: Session) -> None:
        misuse(session, items[0].id)

    with shop.owner.begin() as connection:
        connection.exec_driver_sql(setup or "SELECT")
    ids = [jobs.add(type_name=name, chain_type_name=name, max_attempts=1) for name in ("session", "batch", "batch")]
    # Completions of a worker's own connection would be kept from writing as well.
    await Worker(queue, shop.clerk, options=quick(concurrency=3)).run_until_idle()
    for job_id in ids:
        (letter,) = jobs.dead_letters(job_id)
        assert (letter["attempts"], letter["error"]["type"]) == (1, "sa_jobqueue.errors.CompletionRefusedError")
        assert re.search(message, letter["error"]["message"], re.IGNORECASE)
    assert not shop.effects()


async def test_a_session_of_another_database_completes_nothing(
    jobs: Jobs, engine: Engine, make_database: MakeDatabase, jobqueue_server: PostgresServer
) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("elsewhere", max_attempts=1)
    def elsewhere(payload: None, session: Session) -> None:
        session.execute(text("CREATE TABLE effect (n int)"))

    other_engine = create_engine(make_database(jobqueue_server))
    with other_engine.begin() as connection:
        connection.execute(text("DROP TABLE job CASCADE"))
        Base.metadata.tables["job"].create(connection)
    job_id = jobs.add(type_name="elsewhere", max_attempts=1)
    await Worker(queue, engine, options=quick(concurrency=1), session_factory=sessionmaker(other_engine)).run_until_idle()
    assert "does not have the table that the worker claimed the job in" in jobs.dead_letters(job_id)[0]["error"]["message"]
    with other_engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('effect')")) is None
    other_engine.dispose()


async def test_only_a_connection_that_hid_a_row_is_closed(shop: Shop, jobs: Jobs) -> None:
    """And statements that the commit runs after the completion have the handler's search path."""
    queue: JobQueue[Any] = JobQueue()
    connections: list[int] = []
    paths: list[str] = []

    def note_path(session: Session) -> None:
        paths.append(session.scalars(text("SHOW search_path")).one())

    @queue.handler("test", max_attempts=1)
    def hides(path: str | None, session: Session) -> None:
        connections.append(session.scalars(text("SELECT pg_backend_pid()")).one())
        event.listen(session, "before_commit", note_path)
        if path is not None:
            session.execute(text(f"SET LOCAL search_path = {path}"))

    ids = [jobs.add(input=path, priority=-number) for number, path in enumerate([None, "public, other", "other", None])]
    await Worker(queue, shop.clerk, options=quick(concurrency=1)).run_until_idle()
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 4
    first, second, third, fourth = connections
    assert first == second == third != fourth
    assert paths[1:3] == ["public, other", "other"]


def test_a_drain_in_a_session_completes_only_the_row_that_it_started(shop: Shop) -> None:
    """As a worker does; and the path that a handler sets does not outlast its attempt."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("moves")
    def moves(payload: None, session: Session) -> None:
        session.execute(text("SET LOCAL search_path = other"))

    @queue.handler("deletes")
    def deletes(payload: None, session: Session, ctx: AttemptContext) -> None:
        session.execute(text("DELETE FROM public.job WHERE id = :id"), {"id": ctx.job.id})

    with Session(shop.owner) as session:
        session.add_all([moves.job(None), moves.job(None)])
        assert drain(queue, session).completed == 2
        session.add(deletes.job(None))
        with pytest.raises(CompletionRefusedError, match="raise Cancel"):
            drain(queue, session)
