"""Workers run every kind of job whatever a server, database or role sets by default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, NullPool, create_engine, inspect, make_url, select, text
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import (
    AttemptContext,
    Deduplicate,
    Discard,
    Job,
    JobQueue,
    JobStatus,
    Schedule,
    Snooze,
    Worker,
    enqueue,
    enqueue_many,
    list_jobs,
    operations,
)
from sa_jobqueue.errors import InvalidOptionError, UnsupportedServerError
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.migrations.runner import migrate
from sa_jobqueue.models import Base
from sa_jobqueue.observe.health import health
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.testing.databases import drop_database
from sa_jobqueue.testing.servers import PostgresServer
from sa_jobqueue.types import AttemptOutcome, DeadReason
from tests.fixtures.database import own_database
from tests.fixtures.workers import quick, until, working

pytestmark = own_database

SETTINGS: dict[str, dict[str, str]] = {
    "client_encoding latin1": {"client_encoding": "LATIN1"},
    "client_encoding sql_ascii": {"client_encoding": "SQL_ASCII"},
    "intervalstyle iso_8601": {"intervalstyle": "iso_8601"},
    "intervalstyle sql_standard": {"intervalstyle": "sql_standard"},
    "intervalstyle postgres_verbose": {"intervalstyle": "postgres_verbose"},
    "datestyle german": {"datestyle": "German"},
    "datestyle sql": {"datestyle": "SQL, DMY"},
    "array_nulls": {"array_nulls": "off"},
    "timezone": {"timezone": "<-03:30>+3:30"},
    "serializable": {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "texts": {"extra_float_digits": "-15", "bytea_output": "escape", "xmlbinary": "hex", "quote_all_identifiers": "on"},
    "standard_conforming_strings": {"standard_conforming_strings": "off", "transform_null_equals": "on"},
    "planner": dict.fromkeys(
        ("enable_indexscan", "enable_indexonlyscan", "enable_nestloop", "enable_tidscan", "geqo"), "off"
    ),
    "timeouts": {"statement_timeout": "100ms", "lock_timeout": "100ms", "idle_in_transaction_session_timeout": "30s"},
    "others": {"synchronous_commit": "off", "check_function_bodies": "off", "row_security": "off"},
}
"""Settings of the application's sessions for values that psycopg could not read: see the guide."""
READABLE = "-c datestyle=ISO -c intervalstyle=postgres -c array_nulls=on"


def application() -> JobQueue[Any]:
    """Return handlers whose attempts end in every way."""
    queue = JobQueue()

    @queue.handler("plain")
    async def plain(payload: dict[str, str]) -> dict[str, str]:
        return payload

    @queue.handler("stored")
    def stored(payload: dict[str, str], session: Session) -> Any:
        session.execute(text("INSERT INTO effect VALUES (:text)"), payload)
        return plain.continuation(payload)

    @queue.handler("again", retry=lambda attempt, error: timedelta(milliseconds=1), timeout=timedelta(minutes=1))
    async def again(payload: dict[str, str], ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            raise ValueError(payload["text"])

    @queue.handler("snoozes")
    async def snoozes(payload: dict[str, str], ctx: AttemptContext) -> None:
        if ctx.attempt == 1:
            raise Snooze(timedelta(milliseconds=1))

    @queue.handler("discards")
    async def discards(payload: dict[str, str]) -> None:
        raise Discard(payload["text"])

    @queue.handler("times_out")
    async def times_out(payload: dict[str, str]) -> None:
        await asyncio.Event().wait()

    return queue


WORDS = {"text": "Grüße aus Ålesund"}


def described(name: str, queue: str = "default") -> Job:
    """Return a job of a type, with the timeout that its attempts need to end."""
    timeout = timedelta(milliseconds=20) if name == "times_out" else timedelta(minutes=1)
    return Job(name, WORDS, queue=queue, timeout=timeout, max_attempts=1 if name == "times_out" else 3)


def fill(engine: Engine) -> None:
    """Enqueue in every way, as an application does."""
    types = ["plain", "stored", "again", "snoozes", "discards", "times_out"]
    with Session(engine) as session, session.begin():
        operations.upsert_queue(
            session, QueueSettings(name="limited", global_concurrency=2, rate_limit=1000, rate_period=timedelta(seconds=1))
        )
        operations.upsert_schedule(session, Schedule(name="tick", type_name="plain", cron="0 4 1 1 *", input=WORDS))
        session.execute(text("UPDATE schedule SET next_fire_at = now() - interval '1 s'"))
        first = Job("stored", WORDS)
        session.add_all([first, Job("plain", WORDS, blockers=[first]), *(described(name) for name in types)])
    with Session(engine) as session, session.begin():
        enqueue_many(session, [described(name, queue="limited") for name in types])
        for _ in range(2):
            enqueue(session, Job("plain", WORDS), deduplicate=Deduplicate("Schlüssel"))


@pytest.fixture
def hostile(engine: Engine, database_url: str, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Give the test's database the settings that are the parameter, for sessions from now on."""
    settings: Mapping[str, str] = request.param
    name = make_url(database_url).database
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effect (text text)")
        for setting, value in settings.items():
            connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")
    engine.dispose()
    return settings


async def run_everything(database_url: str) -> None:
    """Run the mixed workload and check that every job ended as it should, and that nothing failed beside it."""
    url = make_url(database_url)
    hostile_engine = create_engine(url, pool_size=10, connect_args={"options": READABLE, "client_encoding": "UTF8"})
    bare = create_engine(url, poolclass=NullPool, connect_args={"client_encoding": "UTF8"})
    fill(hostile_engine)
    async with working(
        Worker(application(), hostile_engine, options=quick(concurrency=10, queues=("default", "limited")))
    ) as log:

        def is_done() -> bool:
            with bare.connect() as connection:
                open_ = connection.scalar(text("SELECT count(*) FROM job WHERE completed_at IS NULL"))
                fired = connection.scalar(text("SELECT last_job_id IS NOT NULL FROM schedule"))
            return not open_ and bool(fired)

        await until(is_done, description="the end of all jobs")
        assert log.of(ComponentFailed) == []
    with Session(hostile_engine) as session:
        ended = [(job.type_name, job.status) for job in session.scalars(select(Job))]
        dead = {status for name, status in ended if name in {"discards", "times_out"}}
        assert dead == {JobStatus.DEAD}
        assert {status for name, status in ended if name not in {"discards", "times_out"}} == {JobStatus.COMPLETED}
        assert len(ended) == 2 + 6 + 6 + 3 + 1 + 1  # three continuations, one key, one time fired
        assert {job.output["text"] for job in session.scalars(select(Job).where(Job.type_name == "plain"))} == {
            WORDS["text"]
        }
        assert session.scalars(text("SELECT text FROM effect")).all() == 3 * [WORDS["text"]]
        dead_letters = operations.list_dead_letters(session)
        assert {dead_letter.reason for dead_letter in dead_letters} == {DeadReason.DISCARDED, DeadReason.TIMED_OUT}
        failed = session.scalar(select(Job).where(Job.type_name == "again").limit(1))
        assert failed is not None
        (attempt,) = operations.list_attempts(session, failed.id)
        assert attempt.outcome == AttemptOutcome.FAILED
        assert len(list_jobs(session, limit=100).items) == len(ended)
        assert operations.explain_job(session, failed.id).job_id == failed.id
    assert health(hostile_engine).measured_at is not None
    hostile_engine.dispose()


every = {name: value for settings in SETTINGS.values() for name, value in settings.items()}


@pytest.mark.long
@pytest.mark.parametrize("hostile", [every], ids=["all at once"], indirect=True)
async def test_workers_rely_on_no_setting_of_the_database(database_url: str, hostile: Mapping[str, str]) -> None:
    await run_everything(database_url)


@pytest.fixture
def latin1_url(jobqueue_server: PostgresServer) -> Iterator[str]:
    """Give an empty database whose encoding is LATIN1."""
    url = make_url(jobqueue_server.url).set(database=f"latin1_{uuid4().hex[:12]}").render_as_string(hide_password=False)
    maintenance = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with maintenance.connect() as connection:
        name = make_url(url).database
        connection.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    yield url
    drop_database(url)


async def test_a_database_whose_encoding_is_not_utf8_is_refused_by_name(latin1_url: str) -> None:
    engine = create_engine(latin1_url, poolclass=NullPool)
    says = "encoding of this database is LATIN1.*ENCODING 'UTF8'"
    with engine.connect() as connection, pytest.raises(UnsupportedServerError, match=says):
        migrate(connection, Job.__jobqueue__, from_version=0, to_version=1)
    with engine.connect() as connection:
        assert not inspect(connection).get_table_names()
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
    with pytest.raises(UnsupportedServerError, match=says):
        await Worker(application(), engine, options=quick()).run_until_idle()
    with Session(engine) as session, pytest.raises(UnsupportedServerError, match=says):
        operations.check_schema(session)


UNREADABLE: dict[str, tuple[str, Callable[[Session], object]]] = {
    "intervalstyle": ("iso_8601", list_jobs),
    "datestyle": ("German", list_jobs),
    "array_nulls": ("off", lambda session: enqueue_many(session, [Job("test"), Job("test", delay=timedelta(seconds=1))])),
}


@pytest.mark.parametrize("setting", UNREADABLE)
def test_an_unusable_session_setting_is_refused_with_the_value_to_set(
    database_url: str, sessions: sessionmaker[Session], setting: str
) -> None:
    with sessions.begin() as session:
        session.add(Job("test", timeout=timedelta(minutes=1)))
    value, use = UNREADABLE[setting]
    engine = create_engine(database_url, poolclass=NullPool, connect_args={"options": f"-c {setting}={value}"})
    with Session(engine) as session, pytest.raises(InvalidOptionError, match=f"-c {setting}="):
        use(session)
