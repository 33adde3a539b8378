"""What changed since the last time is read from the pages it lies on, however long the queue has been there."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.pipeline.history import JOBS
from sa_jobqueue.pipeline.statements import history
from sa_jobqueue.pipeline.statements.history import Filters
from sa_jobqueue.statements import jobs
from tests.fixtures.database import both_servers, own_database

pytestmark = pytest.mark.slow

TRANSACTIONS = 640
FILL = f"""
DO $$ BEGIN
  FOR batch IN 1..{TRANSACTIONS} LOOP
    INSERT INTO job (id, chain_id, type_name, chain_type_name)
    SELECT id, id, 'test', 'test' FROM (SELECT job_uuid7() AS id FROM generate_series(1, 50)) AS made;
    COMMIT;
  END LOOP;
END $$
"""


@own_database
@both_servers
def test_recent_changes_are_read_by_ranges_of_transaction_ids(engine: Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(FILL)
        connection.execute(text("VACUUM ANALYZE job"))
        newest: int = connection.exec_driver_sql("SELECT max(changed_xid::text::bigint) FROM job").scalar_one()
        _, pages = connection.execute(history.size(Job, JOBS)).one()
        for last in (1, 100):
            query = history.rows(Job, JOBS, ("id", "xid"), Filters(xid_from=newest - last + 1, xid_before=newest + 1))
            ranges = connection.execute(query).all()
            assert {int(xid) for _, xid in ranges} == set(range(newest - last + 1, newest + 1))
            assert len(ranges) == 50 * last
            compiled = query.compile(connection)
            values = {name: str(value) for name, value in compiled.params.items()}
            (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}", values).scalar_one()
            assert "ix_job_history" in str(plan)
            buffers = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
            assert buffers < pages / 2
            assert buffers < pages * (last + 2 * 64) / TRANSACTIONS + 150


@own_database
@both_servers
def test_the_jobs_of_this_transaction_are_read_by_ranges_as_well(engine: Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(FILL)
        connection.execute(text("VACUUM ANALYZE job"))
    with Session(engine) as session:
        session.add_all([Job("mail", 1), Job("mail", 2, queue="later")])
        session.execute(text("UPDATE job SET priority = 1 WHERE id = (SELECT id FROM job WHERE type_name = 'test' LIMIT 1)"))
        query = jobs.inserted_jobs(Job)
        assert session.execute(query).all() == [("mail", "default", 1), ("mail", "later", 2)]
        plan = session.execute(text(f"EXPLAIN {query.compile(session.connection())}")).scalars().all()
        assert "ix_job_history" in str(plan)
