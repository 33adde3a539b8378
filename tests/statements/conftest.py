"""Databases in the states that make a queue's plans go wrong, built once a session for all statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine

from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.models import Base
from sa_jobqueue.testing.databases import create_schema, throw_away_database
from tests.fixtures.database import extreme
from tests.fixtures.jobs import WORKER
from tests.fixtures.plans import Prepared, connect
from tests.statements.cases import CASES
from tests.statements.shapes import World

BACKLOG = 20_000
RUNNING = 2_000
WORKERS = 20
WAITING = 1_000

_FILL = f"""
INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, heartbeat_at)
SELECT CASE n WHEN 1 THEN '{WORKER}' ELSE 'w' || n END, 'w', 'h', 1, '0', '{{default}}', '{{test}}', 1,
  now() - CASE WHEN n = 2 THEN interval '1 minute' WHEN n = 3 THEN interval '1 day' ELSE '0' END
FROM generate_series(1, {WORKERS}) AS n;

INSERT INTO job (id, chain_id, type_name, chain_type_name, input, queue, priority, scheduled_at)
SELECT id, id, type_name, type_name, '{{}}', CASE n % 5 WHEN 0 THEN 'other' ELSE 'default' END, n % 3 - 1, due
FROM (SELECT job_uuid7() AS id, CASE n % 10 WHEN 0 THEN 'mail' ELSE 'test' END AS type_name, n,
    now() - n * interval '1 second' AS due FROM generate_series(1, {BACKLOG + RUNNING}) AS n) AS made;

UPDATE job SET status = 'running', attempt = 1, started_at = now(), leased_by =
  CASE WHEN n <= 500 THEN '{WORKER}' WHEN n <= 600 THEN 'w2' ELSE 'w' || 4 + n % {WORKERS - 4} END
FROM (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM job LIMIT {RUNNING}) AS chosen) AS numbered
WHERE job.id = numbered.id;

INSERT INTO job (id, chain_id, type_name, chain_type_name, status, open_blockers)
SELECT id, id, 'test', 'test', 'blocked', 2 FROM (SELECT job_uuid7() AS id FROM generate_series(1, {WAITING})) AS made;
WITH blocked AS (SELECT id, row_number() OVER () AS n FROM job WHERE status = 'blocked'),
  running AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM job WHERE leased_by = '{WORKER}')
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, on_failure)
SELECT b.id, r.id, k, (enum_range(NULL::job_blocker_on_failure))[1 + b.n % 3]
FROM blocked AS b CROSS JOIN generate_series(0, 1) AS k JOIN running AS r ON r.n = (b.n + k) % 500 + 1;

INSERT INTO job_attempt (job_id, attempt, outcome) SELECT id, 1000, 'failed' FROM job;
INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts)
SELECT job_uuid7(), job_uuid7(), id, queue, type_name, 1, 'exhausted', 1 FROM job LIMIT 5000;
"""
_KILL = f"""
CREATE TEMPORARY TABLE doomed AS SELECT id FROM job WHERE status = 'pending' LIMIT {BACKLOG - 1000};
UPDATE job SET status = 'running', leased_by = 'gone' FROM doomed WHERE job.id = doomed.id;
UPDATE job SET status = 'completed', leased_by = NULL, completed_at = now() FROM doomed WHERE job.id = doomed.id;
"""
_EMPTY = "TRUNCATE job, job_attempt, job_blocker, dead_letter, worker"


@dataclass(frozen=True)
class State:
    """A database in one state, with every statement prepared long ago on the connection it is planned on."""

    name: str
    url: str
    world: World
    prepared: dict[str, Prepared]


DEFAULT = [("newest", "emptied and vacuumed"), ("newest", "pinned horizon")]
"""The newest server, as plans differ less between servers than states, and the two states with the worst plans: prepared for
an empty table, and with rows that VACUUM must keep."""
LONG = [
    ("newest", "never analysed"),
    ("newest", "backlog"),
    ("oldest", "emptied and vacuumed"),
    ("oldest", "pinned horizon"),
]
"""The other extremes of statistics, none and true ones, and the worst states on the oldest server."""


@pytest.fixture(
    scope="session",
    params=[
        *(pytest.param(name, id=str(name)) for name in DEFAULT),
        *(pytest.param(name, id=str(name), marks=pytest.mark.long) for name in LONG),
    ],
)
def state(request: pytest.FixtureRequest) -> Iterator[State]:
    """Give one of the states: statements prepared on an empty table, and what happened to it since."""
    version, name = request.param
    server = extreme(request, version)
    with ExitStack() as stack:
        url = stack.enter_context(throw_away_database(server.url))
        create_schema(url, Base.metadata)
        worker, application = (stack.enter_context(connect(url, guarded=guarded)) for guarded in (True, False))
        for table in ("job", "job_attempt", "job_blocker", "dead_letter", "worker"):
            worker.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        # Statements are run here on rows of other transactions, `add_edges` too, which the trigger would refuse.
        worker.execute("ALTER TABLE job_blocker DISABLE TRIGGER tr_job_blocker_insert")
        if name == "emptied and vacuumed":
            worker.execute(_FILL)
            worker.execute(_EMPTY)
            worker.execute("VACUUM ANALYZE")
        if name == "backlog":
            worker.execute(_FILL)
            worker.execute("VACUUM ANALYZE")
        prepared = {
            case.name: Prepared(worker if case.guarded else application, f"case_{case.name}", case.build()) for case in CASES
        }
        world = _world(worker)
        for _ in range(6):
            for case in CASES:
                prepared[case.name].execute(case.parameters(world))
        if name != "backlog":
            # By statistics of an empty table, each blocked job would be compared with each running one.
            worker.execute("SET enable_nestloop = off")
            worker.execute(_FILL)
            worker.execute("RESET enable_nestloop")
        if name == "pinned horizon":
            pin = stack.enter_context(connect(url))
            pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            pin.execute("SELECT count(*) FROM pg_class")
            worker.execute(_KILL)
            worker.execute("VACUUM job")
        yield State(name, url, _world(worker), prepared)


def _world(connection: psycopg.Connection[Any]) -> World:
    def ids(condition: str) -> list[Any]:
        rows = connection.execute(f"SELECT id FROM job WHERE {condition} ORDER BY id LIMIT 500".encode()).fetchall()
        return [row[0] for row in rows] or [row[0] for row in connection.execute("SELECT gen_random_uuid()").fetchall()]

    row = connection.execute("SELECT now(), 'job'::regclass::oid").fetchone()
    assert row is not None
    return World(ids(f"leased_by = '{WORKER}'"), ids("status = 'pending'"), ids("status = 'blocked'"), *row)


Run = Callable[..., list[Any]]


@pytest.fixture
def run(database_url: str) -> Iterator[Run]:
    """Give a function that runs a statement as a worker does, in a transaction of its own, and returns its rows."""
    guards = " ".join(f"-c {name}={value}" for name, value in GUARDS.items())
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args={"options": guards})

    def execute(statement: Any, parameters: dict[str, Any] | None = None) -> list[Any]:
        with engine.connect() as connection:
            result = connection.execute(statement, parameters or {})
            return list(result) if result.returns_rows else []

    yield execute
    engine.dispose()


@pytest.fixture
def server(database_url: str) -> Iterator[Any]:
    """Give a worker's connection to a queue that nothing vacuums."""
    with connect(database_url) as connection:
        connection.execute("ALTER TABLE job SET (autovacuum_enabled = off)")
        yield connection
