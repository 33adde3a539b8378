"""The statements behind the deduplicating enqueue: their SQL, and the indexes they use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import Job
from sa_jobqueue.statements import deduplication
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.plans import DIALECT

pytestmark = own_database


def _find(*, open_only: bool) -> Any:
    window = None if open_only else timedelta(hours=1)
    return deduplication.find(Job, "test", "k5", open_only=open_only, window=window, exclude=[])


def test_find_returns_the_newest_root_with_the_key() -> None:
    sql = " ".join(str(_find(open_only=True).compile(dialect=DIALECT)).split())
    assert "job.deduplication_key = %(deduplication_key_1)s::VARCHAR" in sql
    assert "job.chain_completed_at IS NULL" in sql
    assert "ORDER BY job.created_at DESC LIMIT" in sql


def test_a_deduplication_key_is_locked_by_queue_type_and_key_for_the_transaction() -> None:
    statement = deduplication.lock_key(Job, "test", "k").compile(dialect=DIALECT)
    assert "pg_advisory_xact_lock(hashtextextended(" in str(statement)
    assert ".job:due\x1ftest\x1fk" in statement.params.values()


@both_servers
@pytest.mark.parametrize(
    ("open_only", "indexes"),
    [(True, ("uq_job_deduplication", "ix_job_deduplication")), (False, ("ix_job_deduplication",))],
)
def test_find_uses_the_index_on_the_deduplication_key(
    engine: Engine, jobs: Jobs, open_only: bool, indexes: tuple[str, ...]
) -> None:
    for part in range(5):
        jobs.add_many(500)
        jobs.add(deduplication_key=f"k{part}")
    jobs.add(deduplication_key="k5")
    compiled = _find(open_only=open_only).compile(dialect=DIALECT, compile_kwargs={"literal_binds": True})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
        sql = str(compiled).replace(":", "\\:")
        plan = "\n".join(connection.execute(text("EXPLAIN " + sql)).scalars())
    assert any(index in plan for index in indexes), plan
    assert "Seq Scan" not in plan
