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
from tests.fixtures.plans import DIALECT, Prepared, connect

pytestmark = own_database


@pytest.mark.parametrize("ended", [False, True])
def test_holders_are_the_jobs_that_hold_a_key_among_open_or_all_chains(ended: bool) -> None:
    sql = " ".join(str(deduplication.holders(Job, ended=ended).compile(dialect=DIALECT)).split())
    assert ("ORDER BY job.chain_completed_at IS NOT NULL, job.created_at DESC LIMIT 1" in sql) == ended
    assert "job.id != ALL (%(excluded)s" in sql


def test_a_deduplication_key_is_locked_by_queue_type_and_key_for_the_transaction() -> None:
    compiled = deduplication.lock_keys(Job).compile(dialect=DIALECT)
    assert "pg_advisory_xact_lock(hashtextextended(concat_ws(" in str(compiled)
    assert list(compiled.params.values())[:2] == ["\x1f", ".job:due"]


@both_servers
@pytest.mark.parametrize(
    ("ended", "indexes"),
    [(False, ("uq_job_deduplication", "ix_job_deduplication")), (True, ("ix_job_deduplication",))],
)
def test_holders_are_found_by_the_index_on_the_deduplication_key(
    engine: Engine, jobs: Jobs, ended: bool, indexes: tuple[str, ...]
) -> None:
    for part in range(5):
        jobs.add_many(500)
        jobs.add(deduplication_key=f"k{part}")
    jobs.add(deduplication_key="k5")
    parameters: dict[str, Any] = {"type_names": ["test"], "keys": ["k5"], "excluded": []}
    window = {"window": timedelta(hours=1)} if ended else {}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
    with connect(engine.url.render_as_string(hide_password=False)) as driver:
        plan = Prepared(driver, "holders", deduplication.holders(Job, ended=ended)).explain(parameters | window)
    assert plan.scans("job") <= {*indexes, "pk_job"}, plan.shape
