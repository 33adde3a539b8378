"""Findings state their evidence: whose slots, which error, how long a backlog takes, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.dashboard import Source
from sa_jobqueue.display.redaction import error_line, error_name
from sa_jobqueue.observe.health import Code, Finding, Severity, Thresholds, health
from sa_jobqueue.observe.health.figures import Health, QueueRates
from sa_jobqueue.observe.health.findings import judge
from sa_jobqueue.observe.metrics.samples import KEPT, kept, of_report
from sa_jobqueue.operations import explain_job
from tests.fixtures.commands import Run
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write


def findings_of(report: Health, code: Code) -> list[Finding]:
    """Return the findings with a code."""
    return [finding for finding in report.findings if finding.code is code]


def test_queues_that_wait_for_other_workers_have_separate_findings(engine: Engine, jobs: Jobs) -> None:
    for name, queue in (("alpha:1", "qa"), ("beta:1", "qb")):
        jobs.add_worker(name, queues=[queue], concurrency=1)
        jobs.add(JobStatus.RUNNING, worker_id=name, queue=queue)
        jobs.add(queue=queue, due_in=-90)
    summaries = {finding.summary for finding in findings_of(health(engine), Code.CLAIM_AGE)}
    assert len(summaries) == 2
    for name, queue in (("alpha:1", "qa"), ("beta:1", "qb")):
        (summary,) = [summary for summary in summaries if f" Queue '{queue}': 1 job waits." in summary]
        assert summary.startswith(f"The only slot of {name} is in use")


def test_many_queues_that_wait_for_other_workers_are_not_given_one_cause(engine: Engine, jobs: Jobs) -> None:
    for number in range(6):
        jobs.add_worker(f"w{number}:1", queues=[f"q{number}"], concurrency=1)
        jobs.add(JobStatus.RUNNING, worker_id=f"w{number}:1", queue=f"q{number}")
        jobs.add(queue=f"q{number}", due_in=-90 - number)
    (finding,) = findings_of(health(engine), Code.CLAIM_AGE)
    assert "6 jobs wait. In 'q5', the oldest has been due for" in finding.summary
    assert "The only slot of w5:1 is in use" in finding.summary


@pytest.mark.parametrize(
    ("arrived", "words"),
    [(60, "At 5 per second, 300 take 1 min."), (600, "at these rates they are never all started.")],
)
def test_a_rate_limit_is_said_to_end_or_never_to_catch_up(arrived: int, words: str, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(queues=["texts"])
    jobs.add_many(300, queue="texts")
    report = health(engine)
    (waiting,) = [group for group in report.waiting if group.queue == "texts"]
    limited = replace(waiting, cause="rate_limited", limit_of=("queue", "texts", ""), per_second=5.0, reason="it waits")
    rates = replace(report.rates, queues=[QueueRates(queue="texts", arrived=arrived, completed=0, died=0, cancelled=0)])
    (finding,) = findings_of(judge(replace(report, waiting=[limited], rates=rates), Thresholds()), Code.CLAIM_AGE)
    assert finding.summary.endswith(words)


def test_an_error_of_the_driver_is_named_instead_of_its_wrapper(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SET statement_timeout = 1"))
        with pytest.raises(OperationalError) as raised:
            connection.execute(text("SELECT pg_sleep(1)"))
    error = {"type": "sqlalchemy.exc.OperationalError", "message": str(raised.value)}
    assert error_name(error) == "QueryCanceled"
    assert error_line(error) == "QueryCanceled: canceling statement due to statement timeout"
    asyncpg = "(sqlalchemy.dialects.postgresql.asyncpg.Error) <class 'asyncpg.exceptions.DeadlockDetectedError'>: deadlock"
    assert error_name(error | {"message": asyncpg}) == "DeadlockDetectedError"
    assert error_name({"type": "ValueError", "message": "(a.B) c"}) == "ValueError"
    assert error_name(error | {"message": "(redacted)"}) == "sqlalchemy.exc.OperationalError"


def test_deadlocks_are_named_with_their_handler_and_message(engine: Engine, jobs: Jobs, run: Run) -> None:
    jobs.add_worker()
    error = {"type": "sqlalchemy.exc.OperationalError", "message": "(psycopg.errors.DeadlockDetected) deadlock detected"}
    failed = [jobs.add(due_in=3600, type_name="move_stock", attempt=1) for _ in range(20)]
    with engine.begin() as connection:
        rows = [{"job_id": job_id, "attempt": 1, "outcome": "failed", "error": error} for job_id in failed]
        connection.execute(insert(Job.Attempt), rows)
    (finding,) = findings_of(health(engine), Code.RETRIES)
    assert finding.headline == "Attempts of move_stock fail: DeadlockDetected"
    assert finding.details == "100% of 20 attempts failed in 1 min, most of them of this type."
    assert finding.advice.startswith(
        "Let the handler of move_stock lock its rows in one order, such as by id. See the error:"
    )
    assert "dead-letters" not in finding.advice
    assert "Attempts of move_stock fail: DeadlockDetected: deadlock detected." in run("health", status=2).stdout


def test_many_waits_for_events_are_a_warning(engine: Engine, jobs: Jobs) -> None:
    ids = [jobs.add(due_in=3600, type_name="approve", attempt=1) for _ in range(20)]
    jobs.add_worker()
    with engine.begin() as connection:
        for number, job_id in enumerate(ids):
            snoozed = {"job_id": job_id, "attempt": 1, "outcome": "snoozed"}
            connection.execute(insert(Job.Attempt), snoozed)
            connection.execute(
                text(
                    "INSERT INTO job_step (job_id, name, kind, attempt, started_at, event, deadline) VALUES "
                    "(:id, 'approval', 'wait', 1, now() - interval '2 min', :event, now() + interval '1 h')"
                ),
                {"id": job_id, "event": f"approved:{number}"},
            )
    (finding,) = findings_of(health(engine), Code.AWAITING_EVENT)
    assert (finding.severity, finding.summary[:28]) == (Severity.WARNING, "20 jobs wait for 20 events. ")


def test_a_handler_with_a_similar_name_is_named(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(job_types=["index_item"])
    job = jobs.add(type_name="index_product_item", due_in=-90)
    explained = call(engine, explain_job, job)
    assert (
        "has no handler for 'index_product_item'; a similar name that they have one for is 'index_item'"
        in explained.sentence
    )


def test_scrapes_of_five_seconds_share_a_report() -> None:
    moments, reports = [0.0], iter([object(), object(), object()])
    read: Any = kept(lambda: next(reports), clock=lambda: moments[0])  # type: ignore[arg-type, return-value]
    first = read()
    moments[0] = KEPT - 0.1
    assert read() is first
    moments[0] = KEPT
    assert read() is not first


def test_an_audit_record_of_many_rows_has_three_ids_in_the_table(jobs: Jobs, run: Run) -> None:
    ids = [jobs.add() for _ in range(9)]
    run("jobs", "cancel", *ids, "--by", "ann")
    printed = run("audit", "list").stdout
    assert sum(str(job_id) in printed for job_id in ids) == 3
    assert ", ..." in printed


def test_queues_workers_and_locks_are_measured_again_with_the_rest_of_the_last_report(engine: Engine, jobs: Jobs) -> None:
    jobs.add(JobStatus.DEAD)
    whole = health(engine)
    jobs.add(queue="mail")
    jobs.add(JobStatus.DEAD)
    jobs.add_worker()
    report = health(engine, last=whole)
    assert (report.due, len(report.workers.live), report.unserved) == (1, 1, ["mail"])
    assert (report.failures.unresolved, report.older_at) == (1, whole.measured_at)
    assert {finding.code for finding in report.findings} == {Code.QUEUE_UNSERVED, Code.DEAD_LETTERS}
    assert health(engine, last=report).older_at == whole.measured_at


def test_the_dashboard_measures_a_whole_report_for_a_twentieth_of_the_time_and_queues_in_between(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(name="queue", engine=engine)
    monkeypatch.setattr("sa_jobqueue.dashboard.sources.SHARE", 1000)
    first = source._health()
    jobs.add(queue="mail")
    second = source._health()
    assert (first.older_at, second.older_at, second.due) == (None, first.measured_at, 1)
    monkeypatch.setattr("sa_jobqueue.dashboard.sources.SHARE", 0)
    source._whole = (first, 0.0)
    assert source._health().older_at is None


def test_metrics_name_the_subject_of_a_finding_and_leave_out_what_was_not_measured(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("stuck:1", name="stuck", concurrency=3, stuck_threads=2, report={"resident_bytes": 2**20})
    write(engine, "INSERT INTO schedule (name, type_name, cron, error) VALUES ('nightly', 't', 'never', 'cron: is none')")
    report = health(engine)
    samples = {sample.name: sample.values for sample in of_report(report)}
    assert samples["finding_severity"] == {("schedule_broken", "nightly"): 1, ("stuck_threads", "stuck:1"): 1}
    assert (samples["stuck_threads"], samples["worker_resident_bytes"]) == ({(): 2}, {("stuck",): 2**20})
    partial = {sample.name for sample in of_report(replace(report, missing=("workers", "queues")))}
    assert not partial & {"live_workers", "slots", "stuck_threads", "due_jobs"}
