"""Two releases on one schema, as in every deploy: the release before works on the newest tables as on its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker, ddl
from sa_jobqueue.events import SchemaAhead
from sa_jobqueue.ids import uuid7
from sa_jobqueue.migrations import runner
from sa_jobqueue.testing.databases import create_database, drop_database
from sa_jobqueue.testing.servers import PostgresServer
from sa_jobqueue.worker.logs import describe
from tests.contracts.frozen import Frozen, current
from tests.fixtures.workers import EventLog, ManualWorker, quick
from tests.migrations.conftest import register_next_version

BEFORE = ddl.LATEST
START = datetime(1, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[pytest.param("oldest", marks=pytest.mark.long), "newest"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give an empty database that was made at this version and then migrated to the made-up next one."""
    server: PostgresServer = request.getfixturevalue(f"{request.param}_server")
    url = create_database(server.url)
    engine = _engine(url)
    with engine.begin() as connection:
        runner.upgrade(connection, to_version=BEFORE)
    with pytest.MonkeyPatch.context() as patch, engine.begin() as connection:
        runner.upgrade(connection, to_version=register_next_version(patch))
    yield url
    drop_database(url)


def _engine(url: str) -> Engine:
    return create_engine(url, poolclass=NullPool)


class OldRelease:
    """A worker and a producer of the release before: its statements as text, and their parameters."""

    def __init__(self, url: str, worker_id: str = "old") -> None:
        self.statements = current()
        self.worker_id = worker_id
        self._connection: psycopg.Connection[dict[str, Any]] = psycopg.connect(
            make_url(url).set(drivername="postgresql").render_as_string(hide_password=False),
            autocommit=True,
            row_factory=dict_row,
            options="-c plan_cache_mode=force_generic_plan -c enable_seqscan=off",
        )

    def close(self) -> None:
        self._connection.close()

    def run(self, name: str, /, **given: Any) -> list[dict[str, Any]]:
        statement = self.statements[name]
        # Prepared at once, as on a held connection.
        cursor = self._connection.execute(statement.sql, statement.constants | given, prepare=True)
        return cursor.fetchall() if cursor.description else []

    def add(self, **columns: Any) -> UUID:
        """What `session.add(Job(...))` ran."""
        job_id = uuid7()
        row: dict[str, Any] = dict.fromkeys(re.findall(r"%\((\w+)\)s", self.statements["add"].sql))
        row |= {"id": job_id, "chain_id": job_id, "type_name": "test", "chain_type_name": "test", "input": Jsonb({"n": 1})}
        row |= {
            "queue": "default",
            "fairness_key": "",
            "priority": 0,
            "chain_index": 0,
            "input_version": 1,
            "status": "pending",
        }
        row |= {"open_blockers": 0, "attempt": 0, "max_attempts": 20}
        self.run("add", **row | columns)
        return job_id

    def enqueue_many(self, count: int) -> list[UUID]:
        ids = [uuid7() for _ in range(count)]
        many = {"type_name": ["test"] * count, "chain_type_name": ["test"] * count, "input": ["{}"] * count}
        self.run("enqueue_many", id=ids, chain_id=ids, delays=[None] * count, ats=[None] * count, **many)
        return ids

    def claim(self, *, late: dict[UUID, str] | None = None, limit: int = 10) -> list[dict[str, Any]]:
        """Claim from the start of a lane, or, with `late`, late arrivals alone."""
        late = late or {}
        given: dict[str, Any] = {
            "types": ["test"],
            "limit": limit,
            "worker_id": self.worker_id,
            "grace": timedelta(seconds=15),
            "queues": ["default"],
            "fairness_keys": [""],
            "priorities": [0],
            "cursor_at": [datetime.now(UTC) + timedelta(days=1) if late else START],
            "cursor_id": [UUID(int=0)],
            "late_ids": list(late),
            "late_xids": list(late.values()),
            "apart": list(late),
        }
        given |= {"segment_first": [1], "segment_last": [1], "segment_quota": [limit]}
        given |= {"partition_first": [1], "partition_last": [1], "partition_quota": [limit]}
        given |= {"partition_first_type": [1], "partition_last_type": [1]}
        return [row for row in self.run("claim", **given) if row["id"] is not None]

    def catch_up(self) -> dict[UUID, str]:
        """Return all jobs that a worker which has seen none finds by the transactions that wrote them."""
        none: dict[str, Any] = {f"ended_{name}": [] for name in ("queues", "fairness_keys", "priorities", "types")}
        none |= {f"known_{name}": [] for name in ("queues", "fairness_keys", "priorities", "types", "at", "id")}
        types = {"types": ["test"], "shared_types": ["test"], "queues": ["default"]}
        rows = self.run(
            "catch_up", **none, **types, xmax="0", xip=[], most=1000, read_to=None, most_read=1000, paused_keys=[]
        )
        return {row["id"]: row["changed_xid"] for row in rows if row["id"] is not None}

    def finish(self, job: dict[str, Any], *, dead: bool = False) -> list[dict[str, Any]]:
        return self.run(
            "finish",
            ids=[job["id"]],
            attempts=[job["attempt"]],
            statuses=["dead" if dead else "pending"],
            delays=[0.0],
            ats=[None],
            outcomes=["failed"],
            errors=['{"type": "Boom", "message": "boom"}'],
            fingerprints=["f"],
            uncounted=[0],
            reasons=["exhausted" if dead else None],
            dead_letter_ids=[uuid7()],
            locks=[job["id"]],
            worker_id=self.worker_id,
        )

    def complete(self, *jobs: dict[str, Any]) -> set[UUID]:
        ordered = sorted(jobs, key=lambda job: job["id"])
        given = {"ids": [job["id"] for job in ordered], "attempts": [job["attempt"] for job in ordered]}
        rows = self.run("complete", **given, outputs=["7"] * len(ordered), worker_id=self.worker_id)
        return {row["id"] for row in rows}

    def rescue(self, name: str = "rescue", **given: Any) -> list[UUID]:
        ids = [uuid7() for _ in range(10)]
        return [row["id"] for row in self.run(name, limit=10, base=0.001, cap=0.001, dead_letter_ids=ids, **given)]

    def heartbeat(self) -> None:
        mine = {"id": self.worker_id, "name": "old", "host": "h", "pid": 1, "version": "old", "queues": ["default"]}
        nulls = dict.fromkeys(("selectors", "type_slots", "progress"))
        self.run("heartbeat", **mine, job_types=["test"], concurrency=1, state="running", **nulls)

    def change(self, job_id: UUID, status: str) -> None:
        """Cancel or redrive: what `cancel_jobs` and `redrive_dead_letters` ran, through the view."""
        self.run("change", status=status, param_1=[job_id])


@pytest.fixture
def old(url: str) -> Iterator[OldRelease]:
    release = OldRelease(url)
    yield release
    release.close()


def status(url: str, job_id: UUID) -> str:
    with _engine(url).connect() as connection:
        return str(connection.scalar(text("SELECT status FROM job WHERE id = :id"), {"id": job_id}))


def test_every_statement_of_the_previous_release_still_prepares(old: OldRelease) -> None:
    """No column, type, function or constraint that any of them names has gone or changed its type."""
    assert len(old.statements) > 100
    for statement in old.statements.values():
        _prepare(old._connection, statement)


def _prepare(connection: psycopg.Connection[Any], statement: Frozen) -> None:
    if statement.sql.startswith(("CREATE", "DROP", "ANALYZE")):
        return  # of the archive's own temporary table
    with connection.transaction():
        connection.execute(f"PREPARE frozen AS {statement.numbered}".encode())
        connection.execute("DEALLOCATE frozen")


def test_statements_of_the_previous_release_run_jobs_on_the_newest_tables(old: OldRelease, url: str) -> None:
    """Enqueue in both ways, claim in both, complete in both, fail, die, cancel, redrive, heartbeat, extend, rescue."""
    first = old.add()
    many = old.enqueue_many(3)
    old.heartbeat()
    claimed = old.claim(limit=3)
    assert [job["attempt"] for job in claimed] == [1, 1, 1]
    assert {job["id"] for job in claimed} <= {first, *many}
    one, two, three = claimed
    extended = old.run(
        "extend", job_id=one["id"], job_attempt=1, worker_id="old", extension=timedelta(minutes=1), grace=timedelta(0)
    )
    assert [row["id"] for row in extended] == [one["id"]]
    assert old.complete(one) == {one["id"]}
    assert old.complete(one) == set()
    written = old.run("complete_one", job_id=two["id"], job_attempt=1, worker_id="old", job_output="null")
    assert [row["id"] for row in written] == [two["id"]]
    old.finish(three)
    (again, last) = sorted(old.claim(late=old.catch_up()), key=lambda job: -job["attempt"])
    assert (again["id"], again["attempt"]) == (three["id"], 2)
    old.finish(again, dead=True)
    assert status(url, three["id"]) == "dead"
    old.change(three["id"], "pending")
    old.change(last["id"], "cancelled")
    assert (status(url, three["id"]), status(url, last["id"])) == ("pending", "cancelled")
    (redriven,) = old.claim()
    assert redriven["attempt"] == 3
    old._connection.execute("UPDATE worker SET heartbeat_at = now() - interval '1 hour'")
    assert old.rescue(ttl=timedelta(seconds=15)) == [three["id"]]
    assert old.complete(redriven) == set()  # fenced
    old._connection.execute(sql.SQL("UPDATE job SET scheduled_at = now() WHERE status = 'pending'"))
    assert old.complete(*old.claim()) == {three["id"]}
    old.run("forget_worker", worker_id="old")
    assert old._connection.execute("SELECT FROM worker").fetchall() == []


def test_workers_of_both_releases_share_a_queue(old: OldRelease, url: str) -> None:
    """A worker of one release does not touch the other's jobs, but rescues lost ones; a stale end of either is refused."""
    new = ManualWorker(url, "new")
    try:
        jobs = set(old.enqueue_many(4))
        old.heartbeat()
        by_old = old.claim(limit=2)
        by_new = new.claim(limit=4)
        assert len(by_old) == len(by_new) == 2
        assert {job["id"] for job in by_old} | {job.id for job in by_new} == jobs
        old._connection.execute("UPDATE worker SET heartbeat_at = now() - interval '1 hour'")
        assert {row.id for row in new.rescue()} == {job["id"] for job in by_old}
        assert old.complete(*by_old) == set()
        # The new worker has no row: an orphan to the old one.
        assert set(old.rescue("rescue_orphans")) == {job.id for job in by_new}
        assert new.complete(*by_new) == set()
        old._connection.execute("UPDATE job SET scheduled_at = now()")
        again = new.claim()
        assert {job.id for job in again} == jobs
        assert new.complete(*again) == jobs
    finally:
        new.close()


def test_this_release_reads_rows_written_by_the_previous_one(old: OldRelease, url: str) -> None:
    job_id = old.add(priority=3)
    with Session(_engine(url)) as session:
        job = session.get_one(Job, job_id)
        assert (job.priority, job.input, job.status) == (3, {"n": 1}, "pending")


async def test_a_worker_older_than_the_schema_runs_jobs_and_logs_a_warning(url: str) -> None:
    """The tables of the next deploy: tables one version ahead of it."""
    queue = JobQueue()

    @queue.handler("test")
    async def run() -> int:
        return 7

    engine, ahead = create_engine(url), ddl.LATEST + 1
    with engine.begin() as connection:
        connection.execute(text(f"COMMENT ON TABLE job IS 'sa_jobqueue version={ahead}'"))
    with Session(engine) as session, session.begin():
        session.add(job := Job("test"))
        job_id = job.id
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    await worker.run_until_idle()
    assert status(url, job_id) == "completed"
    (event,) = log.of(SchemaAhead)
    assert (event.version, event.known) == (ahead, ddl.LATEST)
    record = describe(event)
    assert f"found schema version {ahead}, newer than its own ({ddl.LATEST})" in record.message % record.arguments
    engine.dispose()
