"""Reads of a claim under a limit or a rate while a transaction keeps vacuum from removing dead rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

from sa_jobqueue import Job
from sa_jobqueue.statements import limits
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.plans import Prepared, connect
from tests.fixtures.workers import ManualWorker

pytestmark = [own_database, both_servers]

RATE = "INSERT INTO queue (name, rate_limit, rate_period) VALUES ('default', 1000000, interval '1 second')"
CLAIMS = 1000
LOCK_READS, SPEND_READS = 8, 14
"""Pages: of the row that is locked, and of a state by an index that has grown by a level; of a new row
and its entry."""
DEAD = 5_000
A_CLAIM = 10
MOST = 40

_ENQUEUE = """
INSERT INTO job (id, chain_id, type_name, chain_type_name, queue)
SELECT id, id, 'test', 'test', 'default' FROM (SELECT job_uuid7() AS id FROM generate_series(1, %s)) AS made
"""
_RUN = f"""
DO $$ DECLARE batch uuid[]; BEGIN
  FOR n IN 1 .. {DEAD // A_CLAIM} LOOP
    batch := ARRAY(SELECT id FROM job WHERE status = 'pending' AND priority >= '-9' AND queue = 'default'
      ORDER BY priority, scheduled_at, id LIMIT {A_CLAIM});
    UPDATE job SET status = 'running', leased_by = 'somebody:' || n % 3 WHERE id = ANY (batch);
    COMMIT;
    UPDATE job SET status = 'completed', leased_by = NULL, completed_at = now() WHERE id = ANY (batch);
    COMMIT;
  END LOOP;
END $$
"""


@pytest.mark.slow
def test_counting_running_jobs_reads_no_dead_tuples_below_its_cursor(
    server: Any, database_url: str, run: Callable[..., list[Any]]
) -> None:
    prepared = Prepared(server, "counted", limits.running(Job))
    parameters = {"queue": "default", "type_name": None}
    server.execute(_ENQUEUE, [DEAD])
    with connect(database_url) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM pg_class")
        server.execute(_RUN)
        server.execute("VACUUM job")
        from_start = prepared.explain(parameters | {"since": "0"})
        since = run(limits.running(Job), parameters | {"since": "0"})[0].since
        from_floor = prepared.explain(parameters | {"since": since})
    # By heap pages: every dead row is looked at without the floor, none with it. An older server reads the index through,
    # which is a page for a hundred of them; since version 18 it skips from worker to worker.
    assert from_start.buffers > DEAD / 10, from_start.shape
    newest = server.info.server_version >= 180000
    assert from_floor.buffers <= (MOST if newest else from_start.buffers / 10), from_floor.shape


def test_a_count_from_a_cursor_finds_claims_that_committed_late(
    engine: Engine, jobs: Jobs, manual_worker: Callable[..., ManualWorker], run: Callable[..., list[Any]]
) -> None:
    floors = ["0"]

    def count() -> tuple[int, int]:
        parameters = {"queue": "default", "type_name": None, "since": floors[-1]}
        all_rows = run(limits.running(Job), parameters)
        by_key = run(limits.running_by_fairness_key(Job), {"queue": "default", "since": floors[-1]})
        floors.append(str(min(int(row.since) for row in [*all_rows, *by_key])))
        return all_rows[0][0], sum(row.n for row in by_key)

    jobs.add_many(3)
    elsewhere = jobs.add(queue="other")
    slow, quick = manual_worker("slow:1"), manual_worker("quick:1")
    assert len(manual_worker("moved:1", queues=("other",)).claim()) == 1
    assert count() == (0, 0)
    assert len(slow.claim(1, commit=False)) == 1  # its transaction has its number
    assert len(quick.claim(1)) == 1
    assert count() == (1, 1)  # a floor of what is seen to run would leave out what the other one commits
    slow.connection.commit()
    assert count() == (2, 2)
    assert len(quick.claim(1)) == 1
    assert count() == (3, 3)
    with engine.begin() as connection:  # it ran before any of them
        connection.execute(text("UPDATE job SET queue = 'default' WHERE id = :id"), {"id": elsewhere})
    assert count() == (4, 4)
    assert int(floors[-1]) > 0


@pytest.mark.long
def test_rate_limit_cost_does_not_grow_with_the_number_of_claims(server: Any, database_url: str) -> None:
    server.execute("ALTER TABLE rate_state SET (autovacuum_enabled = off)")
    server.execute(RATE)
    rate: dict[str, Any] = {"is_types": [False], "names": ["default"], "fairness_keys": [""]}
    given_names = {"queue": "default", "fairness_keys": [""], "type_name": None}
    lock, spend = Prepared(server, "lock", limits.lock(Job)), Prepared(server, "spend", limits.spend(Job))
    engine = create_engine(database_url, poolclass=NullPool)

    def claim(connection: Connection) -> dict[str, Any]:
        row = connection.execute(limits.lock(Job), given_names).one()
        parameters = rate | {"tokens": [row.tokens or 9.0]}
        parameters |= {"versions": [row.version]}
        assert connection.execute(limits.spend(Job), parameters).all() == [("default",)]
        return parameters

    def explain() -> tuple[int, int]:
        with engine.begin() as connection:
            row = connection.execute(limits.lock(Job), given_names).one()
            connection.rollback()
        newest = rate | {"tokens": [1.0]}
        spent = spend.explain(newest | {"versions": [row.version]})
        assert spent.rows == 1, spent.shape
        locked = lock.explain(given_names)
        assert locked.scans("rate_state") == {"pk_rate_state"}, locked.shape
        return locked.buffers, spent.buffers

    with connect(database_url) as pin, engine.connect() as connection:
        with connection.begin():
            claim(connection)
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM pg_class")
        explain()  # the first row that a session inserts adds pages to the table
        read = [explain()]
        for count in (CLAIMS // 5, CLAIMS - CLAIMS // 5):
            for _ in range(count):
                with connection.begin():
                    claim(connection)
            read.append(explain())
        for _ in range(CLAIMS // 5):
            with connection.begin() as transaction:
                claim(connection)
                transaction.rollback()
        server.execute("VACUUM rate_state")
        read.append(explain())
        (dead,) = server.execute("SELECT n_dead_tup FROM pg_stat_all_tables WHERE relname = 'rate_state'").fetchone()
    assert dead >= CLAIMS
    assert all(locked <= LOCK_READS and spent <= SPEND_READS for locked, spent in read), read
    engine.dispose()
