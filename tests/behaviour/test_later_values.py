"""Values that a later release adds to the queue's enum types, read by this one: as text, by whatever reads rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, insert, make_url, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker, operations
from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.models.base import ENUMS
from sa_jobqueue.observe.health import health
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.types import JobStatus
from tests.dashboard.conftest import Client, everyone
from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick

pytestmark = pytest.mark.own_database

LATER = "later"


@contextmanager
def as_later_release(engine: Engine) -> Iterator[Connection]:
    """Give a connection that may write any change of status, as with the triggers of a later version."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job DISABLE TRIGGER USER"))
        yield connection
        connection.execute(text("ALTER TABLE job ENABLE TRIGGER USER"))


@pytest.fixture
def ids(engine: Engine, jobs: Jobs) -> dict[str, Any]:
    """Add a value to every type, and rows that have it: a job, its attempt and dead letter, and what waits for a chain."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for name in ENUMS:
            connection.execute(text(f"ALTER TYPE {name} ADD VALUE '{LATER}'"))
    ids = {"later": jobs.add(), "dead": jobs.add(JobStatus.DEAD), "resolved": jobs.add(JobStatus.DEAD)}
    ids |= {"waits": jobs.add(JobStatus.BLOCKED)}
    with as_later_release(engine) as connection:
        table: Any = Job.__table__
        attempt: Any = Job.Attempt.__table__
        blocker: Any = Job.Blocker.__table__
        connection.execute(update(table).where(table.c.id == ids["later"]).values(status=LATER, changed_xid=text("'1'")))
        connection.execute(insert(attempt).values(job_id=ids["later"], attempt=1, outcome=LATER))
        waits = {"job_id": ids["waits"], "blocked_by_chain_id": ids["later"], "index": 0, "on_failure": LATER}
        connection.execute(text("ALTER TABLE job_blocker DISABLE TRIGGER USER"))
        connection.execute(insert(blocker).values(waits))
        dead_letter: Any = Job.DeadLetter.__table__
        connection.execute(update(dead_letter).where(dead_letter.c.job_id == ids["dead"]).values(reason=LATER))
        resolved = {"resolution": LATER, "resolved_at": text("now()")}
        connection.execute(update(dead_letter).where(dead_letter.c.job_id == ids["resolved"]).values(resolved))
    return ids


def test_operations_read_a_later_value_as_text(engine: Engine, ids: dict[str, Any]) -> None:
    with Session(engine) as session:
        assert {job.id: job.status for job in operations.list_jobs(session).items}[ids["later"]] == LATER
        job = operations.get_job(session, ids["later"])
        assert type(job.status) is str
        assert repr(job) == f"<Job {ids['later']} test {LATER}>"
        assert {chain.id: chain.status for chain in operations.list_chains(session).items}[ids["later"]] == LATER
        assert operations.get_chain(session, ids["later"]).status == LATER
        assert [attempt.outcome for attempt in operations.list_attempts(session, ids["later"]).items] == [LATER]
        (blocker,) = operations.list_blockers(session, ids["waits"])
        assert (blocker.on_failure, blocker.chain.status) == (LATER, LATER)
        assert [dead_letter.reason for dead_letter in operations.list_dead_letters(session).items] == [LATER]
        for reason, count in ((LATER, 1), ("of a release after that", 0)):
            reasons: Any = [reason]
            assert (
                len(operations.list_dead_letters(session, where=operations.DeadLetterFilter(reasons=reasons)).items) == count
            )
        (resolved,) = operations.list_dead_letters(session, where=operations.DeadLetterFilter(resolved=True)).items
        assert resolved.resolution == LATER
        assert [group.reason for group in operations.group_dead_letters(session)] == [LATER]


def test_explain_names_a_status_that_this_release_does_not_know(engine: Engine, ids: dict[str, Any]) -> None:
    with Session(engine) as session:
        explained = operations.explain_job(session, ids["later"])
        waiting = operations.explain_job(session, ids["waits"])
    assert explained.cause is Cause.STATUS_UNKNOWN
    assert explained.sentence.startswith("Its status is 'later', which this release of sa-jobqueue does not know:")
    assert waiting.roots[0].cause is Cause.STATUS_UNKNOWN


def test_health_counts_rows_with_later_values(engine: Engine, ids: dict[str, Any]) -> None:
    assert health(engine).rates.unsuccessful == {LATER: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "jobs list",
        "jobs show {later}",
        "explain {later}",
        "explain {waits}",
        "trace {later}",
        "chains list",
        "chains show {later}",
        "dead-letters list",
        "dead-letters list --resolved",
        "dead-letters groups",
        "health",
    ],
)
def test_commands_print_a_later_value(run: Run, ids: dict[str, Any], command: str) -> None:
    arguments = command.format(**ids).split()
    status = 1 if command == "health" else 0  # it warns of the dead letters
    assert LATER in run(*arguments, status=status).output
    assert LATER in str(document(run(*arguments, "--json", status=status)))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["jobs", "job?id={later}", "job?id={waits}", "chains", "chain?id={later}", "dead-letters"])
def test_screens_of_the_dashboard_show_a_later_value(engine: Engine, ids: dict[str, Any], path: str) -> None:
    assert LATER in Client(dashboard(engine, operator=engine, authorize=everyone)).page(f"/queue/{path.format(**ids)}")


def test_a_job_with_a_later_status_can_be_changed_and_written_back(engine: Engine, ids: dict[str, Any]) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Job, ids["later"]).has_waiters = True
    with as_later_release(engine) as connection, Session(connection) as session:
        job = session.get_one(Job, ids["waits"])
        job.status = session.get_one(Job, ids["later"]).status
        session.flush()
    with Session(engine) as session:
        assert session.scalars(select(Job.status).where(Job.id == ids["waits"])).one() == LATER


async def test_a_worker_runs_other_jobs_beside_rows_with_later_values(engine: Engine, ids: dict[str, Any]) -> None:
    queue = JobQueue()

    @queue.handler("runs")
    async def runs() -> None: ...

    enqueue(engine, job := Job("runs"))
    await Worker(queue, engine, options=quick()).run_until_idle()
    with Session(engine) as session:
        assert session.get_one(Job, job.id).status is JobStatus.COMPLETED


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
async def test_each_driver_reads_and_writes_known_and_later_values(
    database_url: str, ids: dict[str, Any], driver: str
) -> None:
    def work(session: Session) -> None:
        assert session.get_one(Job, ids["later"]).status == LATER
        assert session.get_one(Job, ids["dead"]).status is JobStatus.DEAD
        assert session.scalars(select(Job.Attempt).where(Job.Attempt.outcome == LATER)).one().outcome == LATER
        attempt: Any = Job.Attempt
        session.add(attempt(job_id=ids["dead"], attempt=1, outcome="failed"))
        session.flush()
        session.execute(update(Job.DeadLetter).values(resolution="dismissed", resolved_at=func.now()))
        assert operations.list_jobs(session).items

    url = make_url(database_url).set(drivername=f"postgresql+{driver}")
    if driver == "asyncpg":
        asynchronous = create_async_engine(url)
        try:
            async with AsyncSession(asynchronous) as session, session.begin():
                await session.run_sync(work)
        finally:
            await asynchronous.dispose()
        return
    engine = create_engine(url)
    try:
        call(engine, work)
    finally:
        engine.dispose()


def test_a_worker_state_and_a_refused_write_of_a_later_release_are_listed(engine: Engine) -> None:
    """Of the sets that are text with a CHECK."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE worker DROP CONSTRAINT ck_worker_state"))
        connection.execute(
            text(
                "INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, state)"
                " VALUES ('w:1', 'w', 'h', 1, '9', '{default}', '{test}', 1, 'later')"
            )
        )
        connection.execute(
            text("INSERT INTO quarantine (subject, statement, error, retry_at) VALUES ('x', 'later', 'DataError', now())")
        )
    assert [worker.state for worker in call(engine, operations.list_workers).items] == [LATER]
    report = health(engine)
    assert [row.statement for row in report.quarantined] == [LATER]
    assert any("x cannot be written (later)" in finding.summary for finding in report.findings)
