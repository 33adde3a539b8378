"""How the statements that delete chains are planned on an application's session, where many chains lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sa_jobqueue.models import Base
from sa_jobqueue.testing.databases import create_schema, throw_away_database
from tests.fixtures.database import extreme, own_database
from tests.fixtures.plans import Prepared, connect
from tests.statements.cases import find

pytestmark = [pytest.mark.slow, own_database]

CHAINS = 10_000
FILL = f"""
INSERT INTO job (id, chain_id, type_name, chain_type_name)
SELECT id, id, 'test', 'test' FROM (SELECT job_uuid7() AS id FROM generate_series(1, {CHAINS})) AS made;
INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name)
SELECT job_uuid7(), id, 1, 'test', 'test' FROM job;
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved)
SELECT id, lag(chain_id) OVER (ORDER BY id), 0, true FROM job WHERE chain_index = 1 ORDER BY id OFFSET 1;
INSERT INTO job (id, chain_id, type_name, chain_type_name)
SELECT id, id, 'unconnected', 'test' FROM (SELECT job_uuid7() AS id FROM generate_series(1, 6)) AS made;
INSERT INTO job_attempt (job_id, attempt, outcome) SELECT id, 1, 'failed' FROM job;
INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts)
SELECT job_uuid7(), id, chain_id, queue, type_name, 1, 'exhausted', 1 FROM job;
"""
LINE = "SELECT id, chain_id FROM job WHERE chain_index = 1 ORDER BY id LIMIT 3"
UNCONNECTED = "SELECT id FROM job WHERE type_name = 'unconnected'"

JOB = {
    "connected": {"pk_job", "uq_job_chain"},
    "lock_roots": {"pk_job"},
    "lock_continuations": {"uq_job_chain"},
    "lock_with_blockers": {"pk_job"},
    "lock": {"pk_job"},
    "delete_jobs": {"pk_job"},
    "current_jobs": {"pk_job", "uq_job_chain"},
}
OTHERS = {
    "connected": ("job_blocker", {"pk_job_blocker"}),
    "references": ("job_blocker", {"ix_job_blocker_chain"}),
    "delete_edges": ("job_blocker", {"pk_job_blocker"}),
    "delete_attempts": ("job_attempt", {"pk_job_attempt"}),
    "dismiss_dead_letters": ("dead_letter", {"uq_dead_letter_open", "ix_dead_letter_job"}),
}
BUFFERS = 250
"""Bounds what each touches of the 2,000 pages and more that there are, for three chains of two jobs."""


@pytest.fixture(scope="module", params=[pytest.param("oldest", marks=pytest.mark.long), "newest"])
def filled(request: pytest.FixtureRequest) -> Iterator[tuple[psycopg.Connection[Any], dict[str, Any]]]:
    server = extreme(request, request.param)
    with throw_away_database(server.url) as database_url:
        create_schema(database_url, Base.metadata)
        with connect(database_url, guarded=False) as connection:
            connection.execute(FILL.encode())
            connection.execute("VACUUM ANALYZE")
            plan_rows = connection.execute(LINE.encode()).fetchall()
            chains = [row[1] for row in plan_rows]
            jobs = [*chains, *(row[0] for row in plan_rows)]
            unconnected = [row[0] for row in connection.execute(UNCONNECTED.encode())]
            yield (
                connection,
                {"unconnected": unconnected, "ids": chains, "job_ids": jobs, "limit": 10, "by": "me", "param_1": jobs},
            )


@pytest.mark.parametrize("name", sorted({*JOB, *OTHERS}))
def test_deletion_cost_is_bounded_by_the_deleted_chains(
    filled: tuple[psycopg.Connection[Any], dict[str, Any]], name: str
) -> None:
    connection, parameters = filled
    if name == "delete_jobs":
        parameters = parameters | {"job_ids": parameters["unconnected"]}
    connection.execute("DEALLOCATE ALL")
    prepared = Prepared(connection, "one", find(name).build())
    for _ in range(6):  # after which the driver's prepared statement may have a plan for every parameter
        prepared.execute(parameters)
    plan = prepared.explain(parameters)
    assert plan.scans("job") <= JOB.get(name, set()), plan.shape
    if name in OTHERS:
        table, indexes = OTHERS[name]
        assert plan.scans(table) <= indexes, plan.shape
    assert plan.buffers <= BUFFERS, plan.shape
