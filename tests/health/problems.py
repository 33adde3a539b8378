"""Queues with one problem each, and the finding that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, func, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.observe.health import Code, Severity
from sa_jobqueue.operations import cancel_jobs, dismiss_dead_letters
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call, write

DEAD, PENDING, RUNNING, COMPLETED = JobStatus.DEAD, JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED


WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


@dataclass
class UnhealthyQueue:
    """A queue that is to be made ill."""

    engine: Engine
    jobs: Jobs

    def change(self, **values: Any) -> None:
        """Change every job by hand."""
        write(self.engine, update(Job).values(values))

    def run(self, *statements: str) -> None:
        """Run SQL, each statement a transaction of its own."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.execute(text(statement))


def no_worker(queue: UnhealthyQueue) -> None:
    queue.run("DELETE FROM worker")
    queue.jobs.add()


def queue_unserved(queue: UnhealthyQueue) -> None:
    queue.jobs.add(queue="mail")


def stuck_threads(queue: UnhealthyQueue) -> None:
    queue.jobs.add_worker("busy:1", concurrency=3, stuck_threads=2)


def workers_silent(queue: UnhealthyQueue) -> None:
    queue.jobs.add_worker("quiet:1", silent_for=60)


def paused_queue(queue: UnhealthyQueue) -> None:
    queue.jobs.add(due_in=-1200)
    queue.run("INSERT INTO queue (name, paused_at, paused_by) VALUES ('default', now() - interval '1 h', 'ann')")


def paused_key(queue: UnhealthyQueue) -> None:
    queue.jobs.add(queue="default", fairness_key="13", due_in=-1200)
    queue.jobs.add(queue="default", fairness_key="14")
    queue.run("INSERT INTO queue (name, fairness_key, paused_at) VALUES ('default', '13', now() - interval '1 h')")


def paused_type(queue: UnhealthyQueue) -> None:
    queue.run("INSERT INTO job_type (type_name, paused_at) VALUES ('test', now())")


def schedule_late(queue: UnhealthyQueue) -> None:
    late = "now() - interval '2 min'"
    queue.run(f"INSERT INTO schedule (name, type_name, cron, next_fire_at) VALUES ('n', 't', '@daily', {late})")


def schedule_broken(queue: UnhealthyQueue) -> None:
    queue.run("INSERT INTO schedule (name, type_name, cron, error) VALUES ('n', 't', 'never', 'cron: is none')")


def schedule_missed(queue: UnhealthyQueue) -> None:
    queue.run(
        "INSERT INTO schedule (name, type_name, cron, next_fire_at, missed_from, missed_until) "
        "VALUES ('n', 't', '@hourly', now() + '1 hour', now() - '3 hours'::interval, now() - '1 hour'::interval)"
    )


def claim_age(queue: UnhealthyQueue) -> None:
    queue.jobs.add(due_in=-120)


def claim_age_critical(queue: UnhealthyQueue) -> None:
    queue.jobs.add(due_in=-1200)


def falling_behind(queue: UnhealthyQueue) -> None:
    queue.jobs.add(RUNNING)
    queue.jobs.add_many(5)


def retries(queue: UnhealthyQueue) -> None:
    for status in (COMPLETED,) * 15:
        queue.jobs.add(status)
    ended = (
        "INSERT INTO job_attempt (job_id, attempt, outcome) SELECT gen_random_uuid(), 1, '{}' FROM generate_series(1, {})"
    )
    queue.run(ended.format("failed", 5), ended.format("snoozed", 50))


def worker_failing(queue: UnhealthyQueue) -> None:
    queue.run(f"UPDATE worker SET failure = 'claimer: InsufficientPrivilege: no' WHERE id = '{WORKER}'")


def worker_failing_while_jobs_wait(queue: UnhealthyQueue) -> None:
    worker_failing(queue)
    queue.jobs.add(due_in=-90)


def failed_and_retried_later(queue: UnhealthyQueue) -> None:
    for number in range(20):
        queue.jobs.add(due_in=3600 + number, type_name="call_api", attempt=1, last_error={"type": "ConnectionError"})


def failed_and_retried_soon(queue: UnhealthyQueue) -> None:
    for _ in range(20):
        queue.jobs.add(due_in=60, type_name="call_api", attempt=1, last_error={"type": "ConnectionError"})
    queue.jobs.add_many(20, scheduled_at=func.now() + timedelta(hours=1))


def expired(queue: UnhealthyQueue) -> None:
    soon = func.now() + timedelta(milliseconds=1)
    late = [queue.jobs.add(expires_at=soon) for _ in range(2)]
    queue.jobs.add(expires_at=func.now() + timedelta(hours=1))
    queue.run("UPDATE job SET status = 'cancelled', completed_at = now(), chain_completed_at = now()")
    assert len(late) == 2


def orphaned(queue: UnhealthyQueue) -> None:
    queue.jobs.add(RUNNING, worker_id="nobody:1")


def overdue(queue: UnhealthyQueue) -> None:
    queue.jobs.add(RUNNING)
    queue.change(leased_until=func.now() - timedelta(seconds=1))


def long_running(queue: UnhealthyQueue) -> None:
    queue.jobs.add(RUNNING)
    queue.change(started_at=func.now() - timedelta(hours=2))


def dead_letters(queue: UnhealthyQueue) -> None:
    queue.jobs.add(DEAD)


def blocked_by_cancelled(queue: UnhealthyQueue) -> None:
    with Session(queue.engine) as session, session.begin():
        root = Job("test")
        session.add_all([root, Job("test", blockers=[root])])
        session.flush()
        cancel_jobs(session, [root.id])
    queue.run("UPDATE job SET has_waiters = false")


def awaiting(queue: UnhealthyQueue, event: str, age: str) -> None:
    """Let a job wait for an event."""
    job = queue.jobs.add(due_in=3600, attempt=1)
    queue.run(
        "INSERT INTO job_attempt (job_id, attempt, worker_id, started_at, ended_at, outcome) "
        f"VALUES ('{job}', 1, '{WORKER}', now(), now(), 'snoozed')",
        "INSERT INTO job_step (job_id, name, kind, attempt, started_at, event, deadline) "
        f"VALUES ('{job}', 'approval', 'wait', 1, now() - interval '{age}', '{event}', now() + interval '1 h')",
    )


def awaiting_event(queue: UnhealthyQueue) -> None:
    awaiting(queue, "approved:7", "2 days")


def awaiting_event_for_a_while(queue: UnhealthyQueue) -> None:
    awaiting(queue, "approved:7", "20 min")
    queue.run("SELECT job_send_event('approved:8', 'null', interval '1 day')")


def awaiting_event_that_will_time_out(queue: UnhealthyQueue) -> None:
    awaiting(queue, "approved:7", "70 min")


def awaiting_event_of_another_name(queue: UnhealthyQueue) -> None:
    awaiting(queue, "approved:7", "2 min")
    queue.run("SELECT job_send_event('aproved-7', 'null', interval '1 day')")


def blocked_by_dead(queue: UnhealthyQueue) -> None:
    with Session(queue.engine, expire_on_commit=False) as session, session.begin():
        root = Job("test")
        session.add_all([root, Job("test", blockers=[root]), Job("test", blockers=[root])])
    statement = "UPDATE job SET status = '{}', leased_by = {}, completed_at = {}, chain_completed_at = {} WHERE id = '{}'"
    queue.run(
        statement.format("running", f"'{WORKER}'", "NULL", "NULL", root.id),
        statement.format("dead", "NULL", "now()", "now()", root.id),
        "INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts) "
        f"VALUES (gen_random_uuid(), '{root.id}', '{root.id}', 'default', 'test', 1, 'exhausted', 1)",
        "UPDATE job SET has_waiters = false",
    )
    call(queue.engine, dismiss_dead_letters, by="somebody who forgot the two that wait")


def chains_to_unblock(queue: UnhealthyQueue) -> None:
    queue.jobs.add(COMPLETED)
    queue.change(has_waiters=True, chain_completed_at=func.now() - timedelta(minutes=2))


def quarantined(queue: UnhealthyQueue) -> None:
    queue.run(
        "INSERT INTO quarantine (subject, statement, sqlstate, error, retry_at) "
        "VALUES ('a-job', 'complete', '23514', 'CheckViolation: no', now() + interval '1 minute')"
    )


def staged(queue: UnhealthyQueue, write_id: str, sequence: int, *, age: str) -> None:
    queue.run(
        "INSERT INTO job_bulk_staging (write_id, sequence, task_id, row, staged_at) "
        f"SELECT '{write_id}', {sequence}, 7, n, now() - interval '{age}' FROM generate_series(1, 3) AS n"
    )


def committed(queue: UnhealthyQueue, write_id: str, *, rejected: int, age: str = "1 minute") -> None:
    queue.run(
        "INSERT INTO job_bulk_write (write_id, sequence, staged, enqueued, duplicates, rejected, written_at) "
        f"VALUES ('{write_id}', 0, 3, {3 - rejected}, 0, {rejected}, now() - interval '{age}')",
        "INSERT INTO job_bulk_reject (write_id, sequence, task_id, row, field, reason) "
        f"SELECT '{write_id}', 0, 7, n, 'input', 'is not JSON' FROM generate_series(1, {rejected}) AS n",
    )


def bulk_unfinished(queue: UnhealthyQueue) -> None:
    staged(queue, "nightly", 0, age="3 hours")
    staged(queue, "stream", 7, age="1 second")


def bulk_rejected(queue: UnhealthyQueue) -> None:
    committed(queue, "nightly", rejected=2)


def bulk_fine(queue: UnhealthyQueue) -> None:
    committed(queue, "nightly", rejected=0)
    staged(queue, "nightly", 0, age="3 hours")  # of a task that ended after the commit
    staged(queue, "stream", 7, age="1 second")
    committed(queue, "old", rejected=2, age="2 days")


def dead_tuples(queue: UnhealthyQueue) -> None:
    queue.run("ALTER TABLE rate_state SET (autovacuum_vacuum_threshold = 1)")
    rows = "SELECT false, 'queue' || n, now() FROM generate_series(1, 10500) n"
    queue.run(f"INSERT INTO rate_state (is_type, name, spent_at) {rows}", "DELETE FROM rate_state")
    queue.run("SELECT pg_stat_force_next_flush()")


def autovacuum_off(queue: UnhealthyQueue) -> None:
    queue.run("ALTER TABLE job SET (autovacuum_enabled = off)")


def bloat(queue: UnhealthyQueue) -> None:
    queue.run(
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, scheduled_at) SELECT id, id, 't', 't', now() + '1 day' "
        "FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 5000)) AS made",
        "DELETE FROM job WHERE id > '10000000-0000-0000-0000-000000000000'",
        "SELECT pg_stat_force_next_flush()",  # rows reported after ANALYZE would count twice
        "VACUUM ANALYZE job",
    )


def invalid_index(queue: UnhealthyQueue) -> None:
    queue.run("CREATE INDEX ix_of_the_application ON job (type_name)")
    queue.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_of_the_application'::regclass")


def fine(queue: UnhealthyQueue) -> None:
    queue.jobs.add(COMPLETED)
    queue.jobs.add(due_in=3600)


PROBLEMS: list[tuple[Callable[[UnhealthyQueue], None], set[tuple[Code, Severity]]]] = [
    (fine, set()),
    (no_worker, {(Code.NO_WORKER, CRITICAL)}),
    (queue_unserved, {(Code.QUEUE_UNSERVED, CRITICAL)}),
    (stuck_threads, {(Code.STUCK_THREADS, WARNING)}),
    (workers_silent, {(Code.WORKERS_SILENT, WARNING)}),
    (paused_queue, {(Code.PAUSED, WARNING)}),
    (paused_key, {(Code.PAUSED, WARNING)}),
    (paused_type, {(Code.PAUSED, WARNING)}),
    (schedule_late, {(Code.SCHEDULE_LATE, WARNING)}),
    (schedule_broken, {(Code.SCHEDULE_BROKEN, WARNING)}),
    (schedule_missed, {(Code.SCHEDULE_MISSED, WARNING)}),
    (claim_age, {(Code.CLAIM_AGE, WARNING)}),
    (claim_age_critical, {(Code.CLAIM_AGE, CRITICAL)}),
    (falling_behind, {(Code.FALLING_BEHIND, WARNING)}),
    (retries, {(Code.RETRIES, WARNING)}),
    (worker_failing, {(Code.WORKER_FAILING, WARNING)}),
    (worker_failing_while_jobs_wait, {(Code.WORKER_FAILING, CRITICAL)}),
    (failed_and_retried_later, {(Code.RETRY_LATER, WARNING)}),
    (failed_and_retried_soon, set()),
    (expired, {(Code.EXPIRED, WARNING)}),
    (orphaned, {(Code.ORPHANED, WARNING)}),
    (overdue, {(Code.OVERDUE, WARNING)}),
    (long_running, {(Code.LONG_RUNNING, WARNING)}),
    (dead_letters, {(Code.DEAD_LETTERS, WARNING)}),
    (blocked_by_cancelled, {(Code.BLOCKED_BY_DEAD, WARNING)}),
    (awaiting_event, {(Code.AWAITING_EVENT, WARNING)}),
    (awaiting_event_for_a_while, {(Code.AWAITING_EVENT, Severity.OK)}),
    (awaiting_event_that_will_time_out, {(Code.AWAITING_EVENT, WARNING)}),
    (awaiting_event_of_another_name, {(Code.AWAITING_EVENT, WARNING)}),
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
