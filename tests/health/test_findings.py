"""Each problem in turn: a queue with one problem, and a report that names that and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.health import BulkWrites, Code, Health, Severity, Thresholds, health
from sa_jobqueue.observe.health.findings import judge
from sa_jobqueue.observe.metrics.samples import of_report
from sa_jobqueue.operations import dismiss_dead_letters
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.tallies import tally

DEAD, PENDING, RUNNING, COMPLETED = JobStatus.DEAD, JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


@dataclass
class UnhealthyQueue:
    """A queue that is to be made ill."""

    engine: Engine
    jobs: Jobs

    def change(self, **values: Any) -> None:
        """Change every job by hand."""
        with self.engine.begin() as connection:
            connection.execute(update(Job).values(values))

    def run(self, *statements: str) -> None:
        """Run SQL, each statement a transaction of its own."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.execute(text(statement))


def no_worker(of: UnhealthyQueue) -> None:
    of.run("DELETE FROM worker")
    of.jobs.add()


def queue_unserved(of: UnhealthyQueue) -> None:
    of.jobs.add(queue="mail")


def workers_silent(of: UnhealthyQueue) -> None:
    of.jobs.add_worker("quiet:1", silent_for=60)


def paused_queue(of: UnhealthyQueue) -> None:
    of.jobs.add(due_in=-1200)
    of.run("INSERT INTO queue (name, paused_at, paused_by) VALUES ('default', now() - interval '1 h', 'ann')")


def paused_key(of: UnhealthyQueue) -> None:
    of.jobs.add(queue="default", fairness_key="13", due_in=-1200)
    of.jobs.add(queue="default", fairness_key="14")
    of.run("INSERT INTO queue (name, fairness_key, paused_at) VALUES ('default', '13', now() - interval '1 h')")


def paused_type(of: UnhealthyQueue) -> None:
    of.run("INSERT INTO job_type (type_name, paused_at) VALUES ('test', now())")


def schedule_late(of: UnhealthyQueue) -> None:
    late = "now() - interval '2 min'"
    of.run(f"INSERT INTO schedule (name, type_name, cron, next_fire_at) VALUES ('n', 't', '@daily', {late})")


def schedule_broken(of: UnhealthyQueue) -> None:
    of.run("INSERT INTO schedule (name, type_name, cron, error) VALUES ('n', 't', 'never', 'cron: is none')")


def claim_age(of: UnhealthyQueue) -> None:
    of.jobs.add(due_in=-120)


def claim_age_critical(of: UnhealthyQueue) -> None:
    of.jobs.add(due_in=-1200)


def falling_behind(of: UnhealthyQueue) -> None:
    of.jobs.add(RUNNING)
    of.jobs.add_many(5)


def retries(of: UnhealthyQueue) -> None:
    for status in (COMPLETED,) * 15:
        of.jobs.add(status)
    ended = (
        "INSERT INTO job_attempt (job_id, attempt, outcome) SELECT gen_random_uuid(), 1, '{}' FROM generate_series(1, {})"
    )
    of.run(ended.format("failed", 5), ended.format("snoozed", 50))


def orphaned(of: UnhealthyQueue) -> None:
    of.jobs.add(RUNNING, worker_id="nobody:1")


def overdue(of: UnhealthyQueue) -> None:
    of.jobs.add(RUNNING)
    of.change(leased_until=func.now() - timedelta(seconds=1))


def long_running(of: UnhealthyQueue) -> None:
    of.jobs.add(RUNNING)
    of.change(started_at=func.now() - timedelta(hours=2))


def dead_letters(of: UnhealthyQueue) -> None:
    of.jobs.add(DEAD)


def blocked_by_dead(of: UnhealthyQueue) -> None:
    with Session(of.engine, expire_on_commit=False) as session, session.begin():
        root = Job("test")
        session.add_all([root, Job("test", blockers=[root]), Job("test", blockers=[root])])
    statement = "UPDATE job SET status = '{}', leased_by = {}, completed_at = {}, chain_completed_at = {} WHERE id = '{}'"
    of.run(
        statement.format("running", f"'{WORKER}'", "NULL", "NULL", root.id),
        statement.format("dead", "NULL", "now()", "now()", root.id),
        "INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts) "
        f"VALUES (gen_random_uuid(), '{root.id}', '{root.id}', 'default', 'test', 1, 'exhausted', 1)",
        "UPDATE job SET has_waiters = false",
    )
    with Session(of.engine) as session, session.begin():
        dismiss_dead_letters(session, by="somebody who forgot the two that wait")


def chains_to_unblock(of: UnhealthyQueue) -> None:
    of.jobs.add(COMPLETED)
    of.change(has_waiters=True, chain_completed_at=func.now() - timedelta(minutes=2))


def quarantined(of: UnhealthyQueue) -> None:
    of.run(
        "INSERT INTO quarantine (subject, statement, sqlstate, error, retry_at) "
        "VALUES ('a-job', 'complete', '23514', 'CheckViolation: no', now() + interval '1 minute')"
    )


def staged(of: UnhealthyQueue, write_id: str, sequence: int, *, age: str) -> None:
    of.run(
        "INSERT INTO job_bulk_staging (write_id, sequence, task_id, row, staged_at) "
        f"SELECT '{write_id}', {sequence}, 7, n, now() - interval '{age}' FROM generate_series(1, 3) AS n"
    )


def committed(of: UnhealthyQueue, write_id: str, *, rejected: int, age: str = "1 minute") -> None:
    of.run(
        "INSERT INTO job_bulk_write (write_id, sequence, staged, enqueued, duplicates, rejected, written_at) "
        f"VALUES ('{write_id}', 0, 3, {3 - rejected}, 0, {rejected}, now() - interval '{age}')",
        "INSERT INTO job_bulk_reject (write_id, sequence, task_id, row, field, reason) "
        f"SELECT '{write_id}', 0, 7, n, 'input', 'is not JSON' FROM generate_series(1, {rejected}) AS n",
    )


def bulk_unfinished(of: UnhealthyQueue) -> None:
    staged(of, "nightly", 0, age="3 hours")
    staged(of, "stream", 7, age="1 second")


def bulk_rejected(of: UnhealthyQueue) -> None:
    committed(of, "nightly", rejected=2)


def bulk_fine(of: UnhealthyQueue) -> None:
    committed(of, "nightly", rejected=0)
    staged(of, "nightly", 0, age="3 hours")  # of a task that ended after the commit
    staged(of, "stream", 7, age="1 second")
    committed(of, "old", rejected=2, age="2 days")


def dead_tuples(of: UnhealthyQueue) -> None:
    of.run("ALTER TABLE job SET (autovacuum_vacuum_threshold = 1)")
    job = of.jobs.add(COMPLETED)
    of.run(*["UPDATE job SET output = 'null'"] * 20, "SELECT pg_stat_force_next_flush()")
    assert of.jobs.status(job) is COMPLETED


def autovacuum_off(of: UnhealthyQueue) -> None:
    of.run("ALTER TABLE job SET (autovacuum_enabled = off)")


def bloat(of: UnhealthyQueue) -> None:
    of.run(
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, scheduled_at) SELECT id, id, 't', 't', now() + '1 day' "
        "FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 5000)) AS made",
        "DELETE FROM job WHERE id > '10000000-0000-0000-0000-000000000000'",
        "SELECT pg_stat_force_next_flush()",  # rows reported after ANALYZE would count twice
        "VACUUM ANALYZE job",
    )


def invalid_index(of: UnhealthyQueue) -> None:
    of.run("CREATE INDEX ix_of_the_application ON job (type_name)")
    of.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_of_the_application'::regclass")


def fine(of: UnhealthyQueue) -> None:
    of.jobs.add(COMPLETED)
    of.jobs.add(due_in=3600)


QUICK = Thresholds(bloat_bytes=100_000)
PROBLEMS: list[tuple[Callable[[UnhealthyQueue], None], set[tuple[Code, Severity]]]] = [
    (fine, set()),
    (no_worker, {(Code.NO_WORKER, CRITICAL)}),
    (queue_unserved, {(Code.QUEUE_UNSERVED, CRITICAL)}),
    (workers_silent, {(Code.WORKERS_SILENT, WARNING)}),
    (paused_queue, {(Code.PAUSED, WARNING)}),
    (paused_key, {(Code.PAUSED, WARNING)}),
    (paused_type, {(Code.PAUSED, WARNING)}),
    (schedule_late, {(Code.SCHEDULE_LATE, WARNING)}),
    (schedule_broken, {(Code.SCHEDULE_BROKEN, WARNING)}),
    (claim_age, {(Code.CLAIM_AGE, WARNING)}),
    (claim_age_critical, {(Code.CLAIM_AGE, CRITICAL)}),
    (falling_behind, {(Code.FALLING_BEHIND, WARNING)}),
    (retries, {(Code.RETRIES, WARNING)}),
    (orphaned, {(Code.ORPHANED, WARNING)}),
    (overdue, {(Code.OVERDUE, WARNING)}),
    (long_running, {(Code.LONG_RUNNING, WARNING)}),
    (dead_letters, {(Code.DEAD_LETTERS, WARNING)}),
    (blocked_by_dead, {(Code.BLOCKED_BY_DEAD, WARNING)}),
    (chains_to_unblock, {(Code.CHAINS_TO_UNBLOCK, WARNING)}),
    (quarantined, {(Code.QUARANTINED, WARNING)}),
    (bulk_unfinished, {(Code.BULK_UNFINISHED, WARNING)}),
    (bulk_rejected, {(Code.BULK_REJECTED, WARNING)}),
    (bulk_fine, set()),
    (dead_tuples, {(Code.DEAD_TUPLES, WARNING)}),
    (autovacuum_off, {(Code.AUTOVACUUM_OFF, CRITICAL)}),
    (bloat, {(Code.BLOAT, WARNING)}),
    (invalid_index, {(Code.INVALID_INDEX, WARNING)}),
]


@own_database
@both_servers
@pytest.mark.parametrize(("problem", "named"), PROBLEMS, ids=lambda given: getattr(given, "__name__", ""))
def test_the_report_finds_exactly_the_injected_problem(
    problem: Callable[[UnhealthyQueue], None],
    named: set[tuple[Code, Severity]],
    engine: Engine,
    jobs: Jobs,
    request: pytest.FixtureRequest,
) -> None:
    jobs.add_worker(WORKER)
    problem(UnhealthyQueue(engine, jobs))
    report = health(engine, thresholds=QUICK)
    assert {(finding.code, finding.severity) for finding in report.findings} == named, report.findings
    assert report.severity == max((severity for _, severity in named), default=Severity.OK)
    for finding in report.findings:
        assert finding.summary.endswith(".")
        assert finding.advice.endswith(".")
    tally(request.config, "unhealthy queues each had their problem found by sa-jobqueue health", len(named))


@both_servers
def test_bulk_writes_are_counted_with_their_age_and_rejected_rows(engine: Engine, jobs: Jobs) -> None:
    unhealthy = UnhealthyQueue(engine, jobs)
    assert health(engine).bulk_writes == BulkWrites()
    for sequence in range(5):
        staged(unhealthy, "stream", sequence, age=f"{sequence} hours")
    committed(unhealthy, "new", rejected=2)
    committed(unhealthy, "old", rejected=3, age="2 days")
    found = health(engine).bulk_writes
    assert (found.unfinished, found.oldest_write_id, found.rejected, found.rejected_last_day) == (5, "stream", 5, 2)
    assert found.oldest_for is not None
    assert timedelta(hours=4) <= found.oldest_for < timedelta(hours=4, minutes=1)
    samples = {sample.name: sample.values for sample in of_report(health(engine))}
    assert samples["unfinished_bulk_writes"] == {(): 5}
    assert samples["unfinished_bulk_write_age_seconds"][()] >= 4 * 3600
    assert samples["rejected_bulk_rows"] == {(): 5}


SERVERS: list[tuple[Callable[[Health], Health], set[tuple[Code, Severity]]]] = [
    (lambda of: replace(of, server=replace(of.server, frozen_age=600_000_000)), {(Code.WRAPAROUND, WARNING)}),
    (lambda of: replace(of, server=replace(of.server, frozen_age=1_700_000_000)), {(Code.WRAPAROUND, CRITICAL)}),
    (lambda of: replace(of, server=replace(of.server, connections=95, max_connections=100)), {(Code.CONNECTIONS, WARNING)}),
    (lambda of: replace(of, server=replace(of.server, sees_all=False)), {(Code.CANNOT_SEE, Severity.OK)}),
    (lambda of: replace(of, tables=[replace(of.tables[0], bytes=2**40)]), {(Code.OUTGROWN, WARNING)}),
]


def test_server_wide_problems_are_found_from_measurements(engine: Engine, jobs: Jobs) -> None:
    healthy = health(engine)
    assert healthy.findings == []
    for change, named in SERVERS:
        report = judge(change(healthy), Thresholds())
        assert {(finding.code, finding.severity) for finding in report.findings} == named


def test_thresholds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="claim_age_warning"):
        Thresholds(claim_age_warning=timedelta(hours=1))
    with pytest.raises(InvalidOptionError, match="saturation"):
        Thresholds(saturation=0)
