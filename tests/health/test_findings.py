"""Each problem in turn: a queue with one problem, and a report that names that and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text, update

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.health import Code, Finding, Health, Severity, Thresholds, health
from sa_jobqueue.observe.health.figures import BulkWrites, Waiting
from sa_jobqueue.observe.health.findings import _FINDINGS, FOUND_ELSEWHERE, MEASURED, judge
from sa_jobqueue.observe.metrics.samples import of_report
from sa_jobqueue.operations import Cause, dismiss_dead_letters, upsert_queue
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.types import DeadReason
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.tallies import tally
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import wait_until
from tests.health.problems import CRITICAL, PROBLEMS, WARNING, UnhealthyQueue, committed, failed_and_retried_later, staged

QUICK = Thresholds(bloat_bytes=100_000)


def reads_only_declared_measurements(report: Health) -> None:
    """Check that each finding reads no other measurements than those without which it is left out."""

    class Recorded:
        def __init__(self) -> None:
            self.read: set[str] = set()

        def __getattr__(self, name: str) -> Any:
            self.read.add({"due": "queues", "claim_age": "queues"}.get(name, name))
            return getattr(report, name)

    for find, needs in _FINDINGS:
        recorder: Any = Recorded()
        list(find(recorder, QUICK))
        assert recorder.read - {"server", "measured_at"} <= needs, find
    assert set(MEASURED) <= {field.name for field in fields(Health)}


@pytest.mark.slow
@own_database
@both_servers
@pytest.mark.parametrize(("problem", "expected"), PROBLEMS, ids=lambda parameter: getattr(parameter, "__name__", ""))
def test_the_report_finds_exactly_the_injected_problem(
    problem: Callable[[UnhealthyQueue], None],
    expected: set[tuple[Code, Severity]],
    engine: Engine,
    jobs: Jobs,
    request: pytest.FixtureRequest,
) -> None:
    jobs.add_worker(WORKER)
    problem(UnhealthyQueue(engine, jobs))
    report = health(engine, thresholds=QUICK)
    assert {(finding.code, finding.severity) for finding in report.findings} == expected, report.findings
    assert report.severity == max((severity for _, severity in expected), default=Severity.OK)
    for finding in report.findings:
        assert finding.summary.endswith(".")
        assert finding.advice.endswith(".")
    reads_only_declared_measurements(report)
    tally(request.config, "unhealthy queues each had their problem found by sa-jobqueue health", len(expected))


@both_servers
def test_bulk_writes_are_counted_with_their_age_and_rejected_rows(engine: Engine, jobs: Jobs) -> None:
    unhealthy = UnhealthyQueue(engine, jobs)
    assert health(engine).bulk_writes == BulkWrites()
    for sequence in range(5):
        staged(unhealthy, "stream", sequence, age=f"{sequence} hours")
    committed(unhealthy, "new", rejected=2)
    committed(unhealthy, "old", rejected=3, age="2 days")
    writes = health(engine).bulk_writes
    assert (writes.unfinished, writes.oldest_write_id, writes.rejected, writes.rejected_last_day) == (5, "stream", 5, 2)
    assert writes.oldest_for is not None
    assert timedelta(hours=4) <= writes.oldest_for < timedelta(hours=4, minutes=1)
    samples = {sample.name: sample.values for sample in of_report(health(engine))}
    assert samples["unfinished_bulk_writes"] == {(): 5}
    assert samples["unfinished_bulk_write_age_seconds"][()] >= 4 * 3600
    assert samples["rejected_bulk_rows"] == {(): 5}


SERVERS: list[tuple[Callable[[Health], Health], set[tuple[Code, Severity]]]] = [
    (lambda report: replace(report, server=replace(report.server, frozen_age=600_000_000)), {(Code.WRAPAROUND, WARNING)}),
    (lambda report: replace(report, server=replace(report.server, frozen_age=1_700_000_000)), {(Code.WRAPAROUND, CRITICAL)}),
    (lambda report: replace(report, server=replace(report.server, notifying=3)), {(Code.NOTIFY_CONTENDED, WARNING)}),
    (
        lambda report: replace(report, server=replace(report.server, connections=95, max_connections=100)),
        {(Code.CONNECTIONS, WARNING)},
    ),
    (lambda report: replace(report, server=replace(report.server, read_only_by="database")), {(Code.READ_ONLY, CRITICAL)}),
    (lambda report: replace(report, server=replace(report.server, sees_all=False)), {(Code.CANNOT_SEE, Severity.OK)}),
    (lambda report: replace(report, tables=[replace(report.tables[0], bytes=2**40)]), {(Code.OUTGROWN, WARNING)}),
]


def test_server_wide_problems_are_found_from_measurements(engine: Engine) -> None:
    healthy = health(engine)
    assert healthy.findings == []
    for change, expected in SERVERS:
        report = judge(change(healthy), Thresholds())
        assert {(finding.code, finding.severity) for finding in report.findings} == expected


def test_thresholds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="claim_age_warning"):
        Thresholds(claim_age_warning=timedelta(hours=1))
    with pytest.raises(InvalidOptionError, match="saturation"):
        Thresholds(saturation=0)


def test_waiting_jobs_are_found_by_the_cause_of_each_group(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four queues with four causes; in one of them only one job type has no worker."""
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
    queues = ["billing", "mail", "imports", "texts"]
    jobs.add_worker(WORKER, queues=queues, concurrency=9, job_types=["test", "send_mail"])
    call(engine, upsert_queue, QueueSettings(name="billing", global_concurrency=1))
    running = jobs.add(JobStatus.RUNNING, queue="billing")
    jobs.add_many(37, queue="billing", scheduled_at=func.now() - timedelta(minutes=2))
    jobs.add_many(15, queue="mail", type_name="send_fax", scheduled_at=func.now() - timedelta(minutes=3))
    jobs.add_many(4, queue="mail", type_name="send_mail", scheduled_at=func.now())
    jobs.add_many(89, queue="imports", fairness_key="stark", scheduled_at=func.now() - timedelta(minutes=4))
    jobs.add_many(11, queue="imports", fairness_key="wayne", scheduled_at=func.now() - timedelta(minutes=4))
    locked = jobs.add(queue="texts", due_in=-90)
    with engine.connect() as holder:
        holder.execute(select(Job.id).where(Job.id == locked).with_for_update())
        findings = {
            str(finding.evidence["queue"]): finding for finding in health(engine).findings if finding.code is Code.CLAIM_AGE
        }
    assert {name: finding.evidence["cause"] for name, finding in findings.items()} == {
        "billing": "limited",
        "mail": "type_unknown",
        "imports": "ready",
        "texts": "locked",
    }
    limited = findings["billing"]
    assert limited.cause.startswith(f"Queue 'billing' runs 1 job, its limit is 1; the longest running is job {running}")
    assert re.fullmatch(r"Queue 'billing': 37 jobs wait\. The oldest has been due for 2 min( \d+ s)?\.", limited.details)
    assert "15 jobs wait" in findings["mail"].summary
    assert findings["mail"].cause.startswith("The only worker of 'mail' has no handler for 'send_fax'")
    assert "100 jobs wait, 89 of them of fairness key 'stark'" in findings["imports"].summary
    assert findings["texts"].evidence["job_id"] == locked
    assert all(str(finding.evidence["job_id"]) in finding.advice for finding in findings.values())


def test_many_queues_with_one_kind_of_cause_have_one_finding(engine: Engine, jobs: Jobs) -> None:
    queues = [f"queue{number}" for number in range(8)]
    jobs.add_worker(WORKER, queues=queues, concurrency=9)
    for number, queue in enumerate(queues):
        jobs.add(queue=queue, due_in=-120 - number)
    jobs.add(queue=queues[0], type_name="send_fax", due_in=-120)
    unhandled, ready = sorted(health(engine).findings, key=lambda finding: len(finding.evidence["queues"]))
    assert unhandled.evidence["cause"] == "type_unknown"
    assert (ready.code, ready.evidence["cause"], set(ready.evidence["queues"])) == (Code.CLAIM_AGE, "ready", set(queues))
    assert "and 3 more: 8 jobs wait. In 'queue7', the oldest has been due for 2 min" in ready.summary


def test_jobs_that_are_retried_later_are_a_finding_once_their_type_no_longer_fails(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    failed_and_retried_later(UnhealthyQueue(engine, jobs))
    failed = jobs.add(JobStatus.COMPLETED, type_name="call_api")
    attempts: Any = Job.Attempt.__table__
    with engine.begin() as connection:
        attempt = {"attempt": 1, "outcome": "failed", "worker_id": WORKER, "error": {"type": "ConnectionError"}}
        connection.execute(insert(attempts).values(job_id=failed, ended_at=func.now() - timedelta(minutes=9), **attempt))
    assert health(engine).findings == []
    write(engine, update(attempts).values(ended_at=func.now() - timedelta(minutes=11)))
    assert [finding.code for finding in health(engine).findings] == [Code.RETRY_LATER]


def test_what_follows_from_a_dead_worker_is_part_of_its_finding(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    jobs.add_worker("gone:1", silent_for=60, queues=["mail"])
    jobs.add(JobStatus.RUNNING, worker_id="gone:1", queue="mail")
    jobs.add(queue="mail")
    (finding,) = health(engine).findings
    assert (finding.code, finding.severity) == (Code.WORKERS_SILENT, CRITICAL)
    assert finding.summary.startswith("Worker gone:1 on here has had no heartbeat for 1 min")
    assert "1 running job is to be rescued. No other worker serves 'mail', where jobs are due." in finding.summary
    jobs.add(queue="elsewhere")
    findings = {finding.code: finding for finding in health(engine).findings}
    assert findings.keys() == {Code.WORKERS_SILENT, Code.QUEUE_UNSERVED}
    assert findings[Code.QUEUE_UNSERVED].evidence["queues"] == ["elsewhere"]


def test_a_worker_that_was_started_again_is_no_finding_once_its_jobs_are_rescued(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("web:1", name="web", silent_for=60)
    job_id = jobs.add(JobStatus.RUNNING, worker_id="web:1")
    jobs.add_worker("web:2", name="web", concurrency=9)
    (finding,) = health(engine).findings
    assert (finding.code, finding.severity) == (Code.WORKERS_SILENT, WARNING)
    write(engine, update(Job).where(Job.id == job_id).values(leased_by="web:2"))
    assert health(engine).findings == []


@pytest.mark.slow
def test_dead_letters_are_found_by_type_and_error_and_explain_the_failed_attempts(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, concurrency=90)
    for number in range(30):
        job_id = jobs.add(
            JobStatus.DEAD,
            type_name="refund",
            error={"type": "ValueError", "message": "expired"},
            fingerprint="f",
        )
        with engine.begin() as connection:
            row = {"job_id": job_id, "attempt": 1, "outcome": "failed", "error": {"type": "ValueError"}}
            connection.execute(insert(Job.Attempt).values(row | {"worker_id": WORKER}))
        if number < 2:
            jobs.add(JobStatus.DEAD, type_name="charge", error={"type": "KeyError", "message": "no"}, fingerprint="g")
    first, second = health(engine).findings
    assert (first.code, first.severity) == (Code.DEAD_LETTERS, CRITICAL)  # as severe as that all attempts fail
    assert first.summary.startswith("Jobs of refund died: ValueError. 30 dead letters (exhausted); 30 from the last hour")
    assert (first.evidence["error_type"], first.evidence["message"]) == ("ValueError", "expired")
    assert (second.code, second.severity) == (Code.DEAD_LETTERS, WARNING)
    assert second.summary.startswith("Jobs of charge died: KeyError. 2 dead letters")
    call(engine, dismiss_dead_letters, by="ann")
    (finding,) = health(engine).findings
    assert finding.code is Code.RETRIES
    assert finding.headline == "Attempts of refund fail: ValueError"
    assert finding.details == "100% of 30 attempts failed in 1 min, most of them of this type."


def test_queues_that_wait_for_the_same_slots_or_session_are_one_finding(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
    queues = ["a", "b", "c", "d"]
    jobs.add_worker(WORKER, queues=queues, concurrency=1)
    jobs.add(JobStatus.RUNNING, queue="a")
    for queue in queues:
        jobs.add_many(5, queue=queue, scheduled_at=func.now() - timedelta(minutes=2))
    (finding,) = health(engine).findings
    assert finding.code is Code.CLAIM_AGE
    assert finding.details.startswith("Queues 'a', 'b', 'c', 'd': 20 jobs wait. The oldest has been due for 2 min")
    assert finding.cause.startswith("The only slot of tester:1")
    write(engine, update(Job.Worker).values(concurrency=90))
    with engine.connect() as holder:
        holder.execute(select(Job.id).with_for_update())
        (finding,) = health(engine).findings
    assert finding.evidence["cause"] == "locked"
    assert finding.evidence["due"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["LOCK TABLE job IN EXCLUSIVE MODE", "SELECT 1 FROM job WHERE id = '{job}' FOR UPDATE"])
def test_a_session_that_workers_wait_for_is_one_finding_with_its_statement(
    engine: Engine, database_url: str, jobs: Jobs, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row that a worker writes, or of a whole table: it holds back the horizon too, and jobs wait for it."""
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
    jobs.add_worker(WORKER, concurrency=9)
    job = jobs.add(JobStatus.RUNNING)
    jobs.add(due_in=-90)
    worker = create_engine(database_url, connect_args={"application_name": "sa_jobqueue tester"})
    # A tenth of the threshold, in which no statement waits that is not blocked.
    soon = Thresholds(claim_age_warning=timedelta(milliseconds=100), horizon_warning=timedelta(milliseconds=1))
    with engine.connect() as holder, ThreadPoolExecutor() as threads:
        pid = holder.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        holder.exec_driver_sql(lock.format(job=job))

        def complete() -> None:
            with worker.begin() as connection:
                connection.execute(select(Job.id).where(Job.id == job).with_for_update())

        completion = threads.submit(complete)

        def locked() -> list[Finding]:
            assert not completion.done()
            return [finding for finding in health(engine, thresholds=soon).findings if finding.code is Code.LOCKED]

        wait_until(lambda: locked() != [], description="the finding")
        findings = health(engine, thresholds=soon).findings
        holder.rollback()
        completion.result()
    worker.dispose()
    (finding,) = [finding for finding in findings if finding.code is Code.LOCKED]
    assert finding.details.startswith("1 statement of workers waits for it, the longest for ")
    assert finding.cause.startswith(f"Session {pid} of postgres, idle in transaction")
    assert "(its last statement: " in finding.summary
    assert finding.advice.endswith(f"SELECT pg_terminate_backend({pid}).")
    assert Code.HORIZON not in {finding.code for finding in findings}


def test_a_replica_that_is_behind_is_the_finding_in_place_of_workers_that_look_silent(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("a:1", silent_for=100)
    jobs.add()
    report = health(engine)
    assert (report.server.is_replica, report.server.replayed_for) == (False, None)
    assert {finding.code for finding in report.findings} == {Code.NO_WORKER}
    server = replace(report.server, is_replica=True, replayed_for=timedelta(minutes=2))
    behind = judge(replace(report, server=server), Thresholds())
    (finding,) = behind.findings
    assert (finding.code, finding.severity) == (Code.REPLICA, Severity.WARNING)
    assert "the last one 2 min ago. It is behind" in finding.summary
    assert "worker" not in finding.summary  # of the primary nothing is known
    level = judge(replace(report, server=replace(server, replayed_for=timedelta(seconds=1))), Thresholds())
    assert {(finding.code, finding.severity) for finding in level.findings} == {(Code.REPLICA, Severity.OK)}


@pytest.mark.slow
@own_database
def test_a_database_that_is_read_only_for_all_is_the_finding_in_place_of_its_silent_workers(
    engine: Engine, jobs: Jobs
) -> None:
    jobs.add_worker("a:1", silent_for=100)
    jobs.add()

    def findings(setting: str) -> list[Finding]:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET TRANSACTION READ WRITE")
            database = connection.exec_driver_sql("SELECT current_database()").scalar_one()
            connection.exec_driver_sql(setting.format(database))
        engine.dispose()
        return list(health(engine).findings)

    of_the_role = findings("ALTER ROLE CURRENT_USER IN DATABASE {} SET default_transaction_read_only = on")
    assert {finding.code for finding in of_the_role} == {Code.NO_WORKER}
    findings("ALTER ROLE CURRENT_USER IN DATABASE {} RESET default_transaction_read_only")
    (finding,) = findings("ALTER DATABASE {} SET default_transaction_read_only = on")
    assert (finding.code, finding.severity) == (Code.READ_ONLY, CRITICAL)
    assert "default_transaction_read_only is on (database). No job can start." in finding.summary
    assert "By its own data: No worker has a recent heartbeat. 1 job is due." in finding.summary


def test_late_schedules_have_the_cause_of_explain_and_one_finding_without_workers(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))

    def late() -> list[str]:
        return [finding.summary for finding in health(engine).findings if "been due" in finding.summary]

    columns = "(name, type_name, cron, next_fire_at)"
    rows = ", ".join(f"('{name}', 't', '@daily', now() - interval '2 min')" for name in ("a", "b", "c"))
    write(engine, f"INSERT INTO schedule {columns} VALUES {rows}")
    (summary,) = late()
    assert summary.startswith("No worker has a recent heartbeat: start one (sa-jobqueue worker). 3 schedules, such as '")
    jobs.add()
    (summary,) = [finding.summary for finding in health(engine).findings]
    assert summary.startswith("No worker is registered. 1 job is due. No worker has a recent heartbeat: start one")
    jobs.add_worker(WORKER)
    with engine.begin() as holder:
        holder.execute(text("SELECT name FROM schedule WHERE name = 'b' FOR UPDATE"))
        summary, locked, _ = sorted(late())
    assert summary.startswith("Schedule 'a' has been due for 2 min")
    assert locked.startswith("Schedule 'b' has been due for 2 min")
    assert "has locked its row; to end it: SELECT pg_terminate_backend(" in locked


@pytest.mark.slow
def test_failures_of_one_tenant_name_its_fairness_key(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, concurrency=90)
    for key in ("acme", "acme", "wayne"):
        columns: dict[str, Any] = {"type_name": "sync" if key == "acme" else "send", "fairness_key": key}
        jobs.add(JobStatus.DEAD, error={"type": "ValueError"}, fingerprint=key, **columns)
    jobs.add(JobStatus.DEAD, type_name="send", fairness_key="stark", error={"type": "ValueError"}, fingerprint="wayne")
    with engine.begin() as connection:
        for _ in range(30):
            row = {"job_id": jobs.add(JobStatus.RUNNING, type_name="sync", fairness_key="acme"), "attempt": 1}
            row |= {"outcome": "failed", "error": {"type": "ValueError"}, "worker_id": WORKER}
            connection.execute(insert(Job.Attempt).values(row))
    summaries = [finding.summary for finding in health(engine).findings]
    assert any(
        finding.startswith("Jobs of sync and fairness key 'acme' died: ValueError. 2 dead") for finding in summaries
    ), summaries
    assert any(finding.startswith("Jobs of send died: ValueError. 2 dead") for finding in summaries)
    of_rates = [finding for finding in health(engine).findings if finding.code is Code.RETRIES]
    assert [finding.summary for finding in of_rates] == []  # part of the dead letters of the type
    call(engine, dismiss_dead_letters, by="ann")
    (retries,) = [finding for finding in health(engine).findings if finding.code is Code.RETRIES]
    assert retries.headline == "Attempts of sync and fairness key 'acme' fail: ValueError"


def test_jobs_that_may_have_killed_their_workers_are_said_to(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    jobs.add(JobStatus.DEAD, reason=DeadReason.LOST, error={"type": "Lost"})
    (finding,) = health(engine).findings
    assert finding.summary.startswith("Jobs of test died: Lost. 1 dead letter (lost)")
    assert finding.advice.startswith("Their workers died in each attempt, perhaps because of them (out of memory?). See")


ELSEWHERE = {
    Cause.COMPLETED: "it is done",
    Cause.CANCELLED: Code.EXPIRED,  # otherwise an operator's or the application's decision
    Cause.DEAD: Code.DEAD_LETTERS,
    Cause.RUNNING: Code.LONG_RUNNING,
    Cause.WORKER_SILENT: Code.WORKERS_SILENT,
    Cause.BLOCKED: Code.BLOCKED_BY_DEAD,  # the other causes of the job at its root
    Cause.UNBLOCKING: Code.CHAINS_TO_UNBLOCK,
    Cause.STATUS_UNKNOWN: "the programs of the release that wrote it know it",
    Cause.QUARANTINED: Code.QUARANTINED,
    Cause.SCHEDULED: "it is due later, as its application asked",
    Cause.RETRYING: Code.RETRY_LATER,
    Cause.SLEEPING: "its handler asked for it",
    Cause.WAITING_FOR_EVENT: Code.AWAITING_EVENT,
    Cause.QUEUE_PAUSED: Code.PAUSED,
    Cause.TYPE_PAUSED: Code.PAUSED,
    Cause.NO_WORKER: Code.NO_WORKER,
    Cause.QUEUE_UNSERVED: Code.QUEUE_UNSERVED,
    Cause.WORKER_FAILING: Code.WORKER_FAILING,
}
"""The causes of `explain` that are no finding of jobs that wait: by which other finding they are seen, or why by none."""


def test_each_cause_of_explain_has_a_finding_or_a_reason_to_have_none(engine: Engine) -> None:
    report = health(engine)
    for cause in Cause:
        waiting = Waiting(
            queue="mail",
            cause=cause,
            due=7,
            job_id=1,
            waiting_for=timedelta(hours=1),
            reason="it waits",
            type_name="send",
        )
        codes = [finding.code for finding in judge(replace(report, waiting=[waiting]), Thresholds()).findings]
        # A due job can have the causes of the other findings as well; those of other jobs never are a cause of waiting.
        assert codes == ([] if cause in FOUND_ELSEWHERE else [Code.CLAIM_AGE]), cause
        assert cause in ELSEWHERE or codes, cause
    assert set(Cause) >= ELSEWHERE.keys() >= set(map(Cause, FOUND_ELSEWHERE))
