"""Every figure of a report against a second way of computing it, on a queue with some of everything."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.observe.health import Health, health, measuring
from sa_jobqueue.types import AttemptOutcome
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import rows

pytestmark = own_database

STATUSES = [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED]
QUEUES = [("default", ""), ("mail", ""), ("mail", "42"), ("mail", "43"), ("reports", "")]


def some_of_everything(jobs: Jobs, engine: Engine, dice: random.Random) -> None:
    jobs.add_worker("live:1", concurrency=7, queues=["default", "mail"])
    jobs.add_worker("live:2", concurrency=5, queues=["default"])
    jobs.add_worker("leaving:1", concurrency=3, state="draining")
    jobs.add_worker("gone:1", silent_for=3600, concurrency=11)
    for _ in range(120):
        status, (queue, key) = dice.choice(STATUSES), dice.choice(QUEUES)
        more: dict[str, Any] = {"priority": dice.randint(-9, 9), "due_in": dice.choice([-300, -20, -1, 60, 3600])}
        if status is JobStatus.RUNNING:
            more["worker_id"] = dice.choice(["live:1", "live:2", "leaving:1", "gone:1", "nobody:1"])
        jobs.add(status, queue=queue, fairness_key=key, **more)
    statements = [
        # Some of it happened before the window.
        "UPDATE job SET created_at = now() - interval '2 hours' WHERE hashtext(id::text) % 3 = 0",
        "UPDATE job SET completed_at = now() - interval '1 hour' WHERE completed_at < now() AND hashtext(id::text) % 4 = 0",
        "UPDATE job SET started_at = now() - interval '5 minutes' WHERE status = 'running' AND hashtext(id::text) % 2 = 0",
        "UPDATE job SET leased_until = now() - interval '1 second' WHERE status = 'running' AND hashtext(id::text) % 5 = 0",
        "UPDATE dead_letter SET died_at = now() - interval '3 hours' WHERE hashtext(job_id::text) % 3 = 0",
        "UPDATE dead_letter SET died_at = now() - interval '3 days' WHERE hashtext(job_id::text) % 5 = 0",
        "UPDATE dead_letter SET died_at = now() - interval '20 days' WHERE hashtext(job_id::text) % 7 = 0",
        "UPDATE dead_letter SET died_at = now() - interval '40 days' WHERE hashtext(job_id::text) % 11 = 0",
        "UPDATE dead_letter SET resolution = 'dismissed', resolved_at = now() WHERE hashtext(job_id::text) % 4 = 0",
        "INSERT INTO job_attempt (job_id, attempt, outcome, ended_at) SELECT id, 1, "
        "(enum_range(NULL, 'released'::job_attempt_outcome))[1 + abs(hashtext(id::text)) % 5], "
        "now() - abs(hashtext(id::text)) % 3 * interval '20 minutes' FROM job",
        # Half of those that wait do so for a chain that is dead.
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, status, open_blockers) SELECT id, id, 't', 't', "
        "'blocked', 1 FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 30)) AS made",
        "INSERT INTO job_blocker (job_id, blocked_by_chain_id, index) SELECT b.id, r.id, 0 FROM "
        "(SELECT id, row_number() OVER () AS n FROM job WHERE status = 'blocked') AS b JOIN "
        "(SELECT id, row_number() OVER (ORDER BY status = 'dead' DESC) AS n FROM job "
        "WHERE status IN ('dead', 'pending')) AS r ON r.n = b.n",
        "UPDATE job SET has_waiters = true WHERE status = 'completed' AND hashtext(id::text) % 3 = 0",
    ]
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.slow
@both_servers
def test_measurements_of_queues_equal_plain_counts(jobs: Jobs, engine: Engine) -> None:
    some_of_everything(jobs, engine, random.Random(7))

    def ask(query: str) -> Any:
        return rows(engine, query)

    # Long enough for a slow machine to write all of this.
    report = health(engine, window=timedelta(minutes=10), heartbeat_timeout=timedelta(minutes=5))
    at = f"timestamptz '{report.measured_at.isoformat()}'"
    window = f"> {at} - interval '10 minutes'"

    depths = ask(f"""SELECT queue AS q,
        count(*) FILTER (WHERE scheduled_at <= {at}), count(*) FILTER (WHERE scheduled_at > {at}),
        min(scheduled_at) FILTER (WHERE scheduled_at <= {at}), min(scheduled_at) FILTER (WHERE scheduled_at > {at})
        FROM job WHERE status = 'pending' GROUP BY q ORDER BY q""")
    figures = [(queue.queue, queue.due, queue.later, queue.oldest_due_at, queue.next_due_at) for queue in report.queues]
    assert figures == [tuple(row) for row in depths]
    assert report.claim_age == report.measured_at - min(row[3] for row in depths if row[3])
    assert not any(queue.is_capped for queue in report.queues)

    rates = ask(f"""SELECT queue AS q, count(*) FILTER (WHERE created_at {window}),
        count(*) FILTER (WHERE status = 'completed' AND completed_at {window}),
        count(*) FILTER (WHERE status = 'dead' AND completed_at {window}),
        count(*) FILTER (WHERE status = 'cancelled' AND completed_at {window}) FROM job GROUP BY q ORDER BY q""")
    assert [(queue.queue, queue.arrived, queue.completed, queue.died, queue.cancelled) for queue in report.rates.queues] == [
        tuple(row) for row in rates
    ]
    outcomes = Counter(AttemptOutcome(row[0]) for row in ask(f"SELECT outcome FROM job_attempt WHERE ended_at {window}"))
    assert report.rates.unsuccessful == outcomes
    bad = outcomes[AttemptOutcome.FAILED] + outcomes[AttemptOutcome.TIMED_OUT] + outcomes[AttemptOutcome.LOST]
    assert report.rates.retry_rate == bad / (bad + sum(row[2] for row in rates))
    assert 0 < report.rates.retry_rate < 1

    running = Counter(row[0] for row in ask("SELECT leased_by FROM job WHERE status = 'running'"))
    assert report.running.running == running.total()
    assert report.running.orphaned == running["gone:1"] + running["nobody:1"] > 0
    assert report.workers.slots == 12
    assert report.workers.saturation == (running["live:1"] + running["live:2"]) / 12
    assert [worker.id for worker in report.workers.silent] == ["gone:1"]
    assert {worker.id for worker in report.workers.live} == {"live:1", "live:2", "leaving:1"}
    overdue = ask(f"SELECT count(*) FROM job WHERE status = 'running' AND leased_until < {at}")
    longest = ask("SELECT id, started_at FROM job WHERE status = 'running' ORDER BY started_at, id LIMIT 1")
    assert [(report.running.overdue,)] == [tuple(row) for row in overdue]
    assert report.running.longest[0].job_id == longest[0][0]
    assert report.running.longest[0].running_for == report.measured_at - longest[0][1]

    dead_letters = ask(f"""SELECT count(*), count(*) FILTER (WHERE died_at > {at} - interval '1 hour'),
        count(*) FILTER (WHERE died_at > {at} - interval '1 day'), min(died_at) FROM dead_letter WHERE resolution IS NULL""")
    dead = report.failures
    assert (dead.unresolved, dead.last_hour, dead.last_day) == tuple(dead_letters[0])[:3]
    assert dead.oldest_for == report.measured_at - dead_letters[0][3]
    ages = ask(f"""
        SELECT width_bucket(extract(epoch from {at} - died_at), ARRAY[3600, 86400, 604800, 2592000]) AS n, count(*)
        FROM dead_letter WHERE resolution IS NULL GROUP BY n ORDER BY n""")
    assert dict(enumerate(dead.by_age.values())) == dict.fromkeys(range(5), 0) | {row[0]: row[1] for row in ages}
    waiting = ask("""SELECT count(DISTINCT job_id), count(DISTINCT blocked_by_chain_id) FROM job_blocker
        WHERE NOT is_resolved AND blocked_by_chain_id IN (SELECT chain_id FROM job WHERE status = 'dead')""")
    assert (dead.waiting, dead.dead_chains) == tuple(waiting[0])
    assert dead.waiting > 0
    chains_to_unblock = ask("SELECT count(*) FROM job WHERE has_waiters AND chain_completed_at IS NOT NULL")
    assert [(dead.chains_to_unblock,)] == [tuple(row) for row in chains_to_unblock]
    assert report.unserved == [row[0] for row in ask("SELECT DISTINCT queue FROM job WHERE queue = 'reports'")]


@both_servers
def test_counts_stop_at_their_limits_and_are_marked_as_capped(jobs: Jobs, engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(measuring, "COUNTED", 5)
    monkeypatch.setattr(measuring, "MAX_EXAMINED", 8)
    jobs.add_worker("live:1")
    jobs.add_many(12)
    jobs.add_many(3, priority=4)
    report = health(engine)
    assert [(queue.due, queue.is_capped) for queue in report.queues] == [(8, True)]
    assert (report.rates.arrived, report.rates.is_partial) == (8, True)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
    assert health(engine).statuses == {"pending": 15}


@pytest.mark.slow
@both_servers
def test_estimated_waste_matches_what_vacuum_full_frees(engine: Engine) -> None:
    def run(*statements: str) -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.execute(text(statement))

    def relations(report: Health) -> dict[str, tuple[int, int | None]]:
        bytes_by_name = {table.name: (table.bytes, table.wasted_bytes) for table in report.tables}
        return bytes_by_name | {index.name: (index.bytes, index.wasted_bytes) for index in report.indexes}

    run(
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, scheduled_at, input) "
        "SELECT id, id, 'some_type', 'some_type', now() + n * interval '1 s', jsonb_build_object('n', repeat('x', n % 90)) "
        "FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 20000) AS n) AS made",
        "DELETE FROM job WHERE hashtext(id::text) % 10 <> 0",
        "SELECT pg_stat_force_next_flush()",  # else they may come after the vacuum, and count twice
        "VACUUM ANALYZE job",
    )
    report = health(engine)
    before = relations(report)
    (table,) = (table for table in report.tables if table.name == "job")
    with engine.connect() as connection:
        live = connection.execute(text("SELECT count(*) FROM job")).scalar_one()
        sizes = "SELECT pg_table_size('job'), pg_indexes_size('job')"
        assert (table.bytes, table.index_bytes) == tuple(connection.execute(text(sizes)).one())
    assert (table.live, table.dead, table.vacuum_at) == (live, 0, 5000)
    assert table.last_vacuum is not None
    assert (table.last_vacuum - report.measured_at) < timedelta(0)
    run("VACUUM FULL job")
    after = relations(health(engine))
    for name in ("job", "pk_job", "ix_job_claim", "ix_job_changed"):
        wasted, given_back = before[name][1], before[name][0] - after[name][0]
        assert wasted is not None
        assert 0.6 * given_back <= wasted <= 1.4 * given_back, (name, wasted, given_back)
        assert given_back > before[name][0] / 2, name
