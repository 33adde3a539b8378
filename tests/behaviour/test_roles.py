"""Four roles with the least rights: each does all of its work, and is refused everything else."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, Engine, NullPool, create_engine, inspect, make_url, select, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    ChildJob,
    Deduplicate,
    Discard,
    Job,
    JobQueue,
    JobStatus,
    Schedule,
    Timer,
    Worker,
    cancel_jobs,
    enqueue,
    enqueue_many,
    list_jobs,
    operations,
)
from sa_jobqueue.cli import main
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.grants import RIGHTS, grant_statements
from sa_jobqueue.observe.health import health
from sa_jobqueue.policies.retention import Retention, RetentionRules
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, rows, write
from tests.fixtures.workers import quick

pytestmark = own_database

As = Callable[[str], Engine]

OF_NOBODY = [
    "ALTER TABLE {0} ADD COLUMN more int",
    "TRUNCATE {0}",
    "CREATE TRIGGER mine BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION job_stamp()",
    "ALTER TABLE {0} DISABLE TRIGGER ALL",
    "CREATE TABLE mine (id uuid REFERENCES {0})",
    "CREATE INDEX ON {0} ((1))",
    "COMMENT ON TABLE {0} IS 'sa_jobqueue version=99'",
    "DROP TABLE {0}",
    "ALTER TABLE {0} OWNER TO CURRENT_USER",
]
"""Statements that none of them may run on any table, because they could undo the queue's promises."""


@pytest.fixture
def roles(engine: Engine) -> Iterator[str]:
    """Give the first part of names of roles that were made by the command, and are gone with the test."""
    name = f"t{secrets.token_hex(5)}"
    url = engine.url.render_as_string(hide_password=False)
    for _ in range(2):  # as often as one likes
        result = CliRunner().invoke(main, ["grants", "--roles", name, "--apply"], env={"SA_JOBQUEUE_URL": url})
        assert result.exit_code == 0, result.output
    yield name
    with engine.begin() as connection:
        for role in RIGHTS:
            connection.execute(text(f"DROP OWNED BY {name}_{role}; DROP ROLE IF EXISTS {name}_{role}_app, {name}_{role}"))


@pytest.fixture
def acting(engine: Engine, roles: str) -> Iterator[As]:
    """Give a function that connects as a login role that has been granted one of them, and nothing else."""
    engines: list[Engine] = []

    def connect(role: str) -> Engine:
        user = f"{roles}_{role}_app"
        write(engine, f"CREATE ROLE {user} LOGIN PASSWORD 'app' IN ROLE {roles}_{role}")
        engines.append(create_engine(make_url(engine.url).set(username=user, password="app"), poolclass=NullPool))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.dispose()


def is_refused(connection: Connection, statement: str) -> bool:
    """Return whether the role may not run a statement. One that it may run is undone."""
    attempted = connection.begin_nested()
    try:
        connection.execute(text(statement))
    except ProgrammingError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        return True
    finally:
        attempted.rollback()
    return False


@pytest.mark.slow
@both_servers
def test_each_role_has_exactly_its_documented_rights(engine: Engine, roles: str) -> None:
    """Every verb on every table and view, tried as every role."""
    tables = {table.name for table in Job.metadata.sorted_tables}
    views = set(inspect(engine).get_view_names())
    assert set(RIGHTS["observer"]) == tables | views
    with engine.connect() as connection:
        columns = {name: inspect(engine).get_columns(name)[0]["name"] for name in tables | views}
        for role, rights in RIGHTS.items():
            connection.execute(text(f"SET ROLE {roles}_{role}"))
            for name, column in columns.items():
                may = re.sub(r" \([^)]*\)", "", rights.get(name, "")).split(", ")
                tried = {
                    "SELECT": f"SELECT FROM {name} LIMIT 0",
                    "INSERT": f"INSERT INTO {name} ({column}) SELECT NULL WHERE false",
                    "UPDATE": f"UPDATE {name} SET {'has_waiters' if name == 'job' else column} = NULL",
                    "DELETE": f"DELETE FROM {name}",
                }
                if name in {"job_chain", "job_transition"}:  # no role writes to these
                    tried = {"SELECT": tried["SELECT"]}
                allowed = {verb for verb, statement in tried.items() if not is_refused(connection, statement)}
                assert allowed == {verb for verb in may if verb}, (role, name)
            for name in tables:
                assert all(is_refused(connection, statement.format(name)) for statement in OF_NOBODY), (role, name)
            for statement in ("DROP FUNCTION job_stamp()", "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'"):
                assert is_refused(connection, statement)
            connection.rollback()


def test_a_producer_can_enqueue_in_every_way_and_change_no_job(acting: As, jobs: Jobs) -> None:
    completed_id = jobs.add(JobStatus.COMPLETED)
    with Session(acting("producer")) as session:
        job = Job("test", {"n": 1})
        session.add(job)
        session.commit()
        assert job.created_at is not None  # read again after the commit
        enqueue_many(session, [Job("test") for _ in range(3)])
        for _ in range(2):
            enqueue(session, Job("test"), deduplicate=Deduplicate("k"))
        session.add(Job("test", blockers=[job, completed_id]))
        approval: Any = JobQueue().event("approval", timeout=timedelta(1))
        session.add(Job("test", blockers=[approval.blocker("approved:7")]))
        session.commit()
        session.execute(text("INSERT INTO job_queue (type_name, input) VALUES ('test', '1')"))
        session.commit()
        assert jobs.count() == 10
        connection = session.connection()
        for forbidden in (
            "UPDATE job SET status = 'cancelled', completed_at = now()",
            "UPDATE job SET priority = 9",
            "UPDATE job_queue SET status = 'cancelled'",
            "DELETE FROM job_queue",
            "SELECT * FROM dead_letter",
            "SELECT * FROM job_attempt",
            "INSERT INTO worker (id) VALUES ('me')",
            "INSERT INTO job_step (job_id, name, kind, attempt, output) SELECT id, 'a', 'step', 1, '1' FROM job",
        ):
            assert is_refused(connection, forbidden)


def test_a_producer_without_read_access_to_payloads_can_enqueue(engine: Engine, acting: As, roles: str, jobs: Jobs) -> None:
    blind = acting("producer")
    filled = "id, root_id, queue, priority, input_version, max_attempts, timeout, rate_cost, "
    filled += "has_waiters, created_at, scheduled_at, changed_xid, chain_index, status, open_blockers, attempt"
    with engine.begin() as connection:
        connection.execute(text(f"REVOKE ALL ON job FROM {roles}_producer"))
        connection.execute(text(f"GRANT INSERT, SELECT ({filled}) ON job TO {roles}_producer"))
    with Session(blind, expire_on_commit=False) as session:
        job = Job("test", "secret")
        session.add(job)
        session.commit()
        session.add_all([Job("test") for _ in range(5)])
        session.commit()
        assert jobs.status(job.id) is JobStatus.PENDING
        assert is_refused(session.connection(), "SELECT input FROM job")


@both_servers
async def test_a_worker_runs_jobs_and_alters_nothing(engine: Engine, acting: As, jobs: Jobs) -> None:
    queue = JobQueue()
    queue.queue("default", weight=2)

    @queue.handler("first")
    async def first() -> Any:
        return second.continuation(1)

    @queue.handler("second")
    async def second(n: int) -> int:
        return n

    @queue.handler("dies")
    def dies(session: Session) -> None:
        session.add(Job("second", 2))
        session.flush()
        raise Discard("no")

    @queue.handler("enqueues")
    def enqueues(session: Session) -> None:
        session.add(Job("second", 3))

    lost = jobs.add(JobStatus.RUNNING, type_name="second", input=4, worker_id="gone", max_attempts=9)
    with Session(engine) as session, session.begin():
        session.add_all([first.job(), dies.job(), enqueues.job(blockers=[first.job()])])
        session.execute(
            text(
                "INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, heartbeat_at) "
                "VALUES ('gone', 'gone', 'h', 1, '0', '{}', '{}', 1, now() - interval '1 hour')"
            )
        )
    acting_worker = acting("worker")
    worker = Worker(queue, acting_worker, options=quick())
    while jobs.status(lost) is not JobStatus.COMPLETED:
        await worker.run_until_idle()
    assert call(engine, operations.get_queue, "default").weight == 2
    ended = sorted(rows(engine, select(Job.type_name, Job.status)))
    with Session(acting_worker) as session, session.begin():
        assert operations.sync_schedules(session, [Schedule(name="daily", cron="@daily", type_name="second")]).created == (
            "daily",
        )
        nothing = timedelta(0)
        rules = RetentionRules(default=Retention(completed=nothing, dead=nothing, dead_letters=nothing))
        assert (page := operations.prune(session, rules)).jobs == len(ended)
    with Session(acting_worker) as session, session.begin():
        assert operations.prune(session, rules, cursor=page.next).dead_letters == 1
    assert [(name, status.value) for name, status in ended] == [
        ("dies", "dead"),
        ("enqueues", "completed"),
        *[("first", "completed")] * 2,
        *[("second", "completed")] * 4,
    ]


@both_servers
async def test_a_worker_enqueues_awaits_and_cancels_children(engine: Engine, acting: As, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("second")
    async def second(n: int) -> int:
        return n

    @queue.handler("first")
    async def first(ctx: AttemptContext) -> list[Any]:
        results = await ctx.all(ChildJob(second, 1, key=1), ChildJob(second, 2, key=2))
        loser = ChildJob(second, 3, key=3, delay=timedelta(days=1))
        winner = await ctx.first("decision", loser, Timer("patience", timedelta(0)))
        return [*results, winner.name]

    with Session(engine) as session, session.begin():
        session.add(job := first.job())
        job_id = job.id
    await Worker(queue, acting("worker"), options=quick()).run_until_idle()
    assert jobs.get(job_id)["output"] == [1, 2, "patience"], jobs.get(job_id)["last_error"]
    with engine.connect() as connection:
        statuses = connection.scalars(select(Job.status).where(Job.type_name == "second").order_by(Job.id))
        assert list(statuses) == [JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.CANCELLED]


def test_an_observer_reads_everything_and_changes_nothing(acting: As, jobs: Jobs) -> None:
    pending, dead = jobs.add(), jobs.add(JobStatus.DEAD)
    observer = acting("observer")
    with Session(observer) as session:
        assert {job.id for job in list_jobs(session).items} == {pending, dead}
        assert [dead_letter.job_id for dead_letter in operations.list_dead_letters(session)] == [dead]
        assert operations.list_workers(session).items == []
        assert operations.explain_job(session, pending).cause
        for forbidden in (
            "INSERT INTO job_queue (type_name) VALUES ('test')",
            "SELECT id FROM job FOR UPDATE",
            "UPDATE job_queue SET status = 'cancelled'",
            "LOCK TABLE job IN EXCLUSIVE MODE",
        ):
            assert is_refused(session.connection(), forbidden)
    assert health(observer).queues


def test_an_operator_redrives_cancels_and_deletes_and_alters_nothing(acting: As, jobs: Jobs) -> None:
    pending, dead, other_id = jobs.add(), jobs.add(JobStatus.DEAD), jobs.add()
    with Session(acting("operator")) as session, session.begin():
        assert operations.redrive_dead_letters(session, where=operations.DeadLetterFilter(job_ids=[dead])).ids == [dead]
        assert cancel_jobs(session, [pending]).ids == [pending]
        operations.reschedule_jobs(session, [other_id], delay=timedelta(days=1))
        assert operations.delete_chains(session, [pending]).ids == [pending]
        assert operations.drain_workers(session, where=operations.WorkerFilter()).ids == []
        session.execute(text("UPDATE job_queue SET status = 'cancelled' WHERE id = :id"), {"id": other_id})
    assert jobs.status(other_id) is JobStatus.CANCELLED


def test_grants_prints_sql_for_any_schema_and_validates_role_names() -> None:
    statements = grant_statements(Layout("jobs", "mail_"), roles="mail")
    assert 'GRANT SELECT, INSERT, UPDATE, DELETE ON "jobs".mail_job TO "mail_worker"' in statements
    printed = CliRunner().invoke(main, ["grants"], env={"SA_JOBQUEUE_URL": None})
    assert printed.exit_code == 0
    assert printed.stdout.startswith("BEGIN;\n\nDO $$ BEGIN\n  IF to_regrole('jobqueue_producer') IS NULL")
    for name in ('a"; DROP TABLE job; --', "pg_me", "Upper", "", "a" * 51, "a'b"):
        with pytest.raises(InvalidOptionError, match="roles"):
            grant_statements(Layout(), roles=name)
        assert CliRunner().invoke(main, ["grants", f"--roles={name}"]).exit_code == 2
