"""What gets worse for hours: growth, long chains, restarts, deployments that disagree, clocks; and silenced findings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.observe.health import Code, Finding, Severity, Thresholds, health, silence_finding
from sa_jobqueue.observe.health.figures import Growth, Health
from sa_jobqueue.observe.health.findings import judge
from sa_jobqueue.operations import list_audit, list_workers
from tests.fixtures.commands import Run, document
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick, until, working


def findings_of(report: Health, code: Code) -> list[Finding]:
    """Return the findings with a code."""
    return [finding for finding in report.findings if finding.code is code]


@both_servers
def test_a_type_of_which_many_more_jobs_come_than_end_is_named(engine: Engine, jobs: Jobs) -> None:
    minute = (
        "INSERT INTO job_minute (minute, queue, type_name, enqueued, completed, failed, died, cancelled, due, running, "
        "wait, run) VALUES (date_trunc('minute', now()) - :age * interval '1 min', :queue, :type_name, :enqueued, "
        ":completed, 0, 0, 0, :due, 0, array_fill(0, ARRAY[:buckets]), array_fill(0, ARRAY[:buckets]))"
    )
    jobs.add_worker()
    with engine.begin() as connection:
        buckets = len(BOUNDS) + 1
        for age in (1, 2, 3):
            for queue, type_name in (("", ""), ("search", "crawl"), ("mail", "send")):
                is_crawl = type_name == "crawl"
                counts = {"enqueued": 900 if is_crawl else 500, "completed": 100 if is_crawl else 495}
                counts |= {"due": (3 - age + 1) * 800 if is_crawl else 5, "buckets": buckets}
                connection.execute(text(minute), {"age": age, "queue": queue, "type_name": type_name, **counts})
    (finding,) = findings_of(health(engine), Code.GROWING)
    assert finding.severity is Severity.WARNING
    assert finding.cause == "More jobs of crawl are enqueued than end"
    assert (
        finding.details == "2,700 were enqueued and 300 ended within the last 10 min that workers recorded; 2,400 are due."
    )
    assert "sa-jobqueue types pause crawl" in finding.advice


@pytest.mark.parametrize(
    ("enqueued", "ended", "due"), [(5000, 4500, 900), (900, 0, 900), (5000, 100, 100_000), (1000, 5000, 3000)]
)
def test_a_backlog_that_is_not_new_is_not_called_growth(enqueued: int, ended: int, due: int, engine: Engine) -> None:
    growth = Growth(type_name="crawl", enqueued=enqueued, ended=ended, due=due)
    assert findings_of(judge(replace(health(engine), growth=[growth]), Thresholds()), Code.GROWING) == []


def test_growth_of_a_type_whose_jobs_wait_is_part_of_that_finding(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(job_types=["other"])
    jobs.add(type_name="crawl", due_in=-90)
    growth = [Growth(type_name=name, enqueued=5000, ended=10, due=4990) for name in ("crawl", "send")]
    report = judge(replace(health(engine), growth=growth), Thresholds())
    (waiting,) = findings_of(report, Code.CLAIM_AGE)
    assert waiting.summary.endswith("within the last 10 min that workers recorded; 4,990 are due.")
    assert [finding.evidence["type_name"] for finding in findings_of(report, Code.GROWING)] == ["send"]


@both_servers
def test_an_open_chain_with_a_thousand_jobs_is_named_and_an_ended_one_is_not(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    root, ended = jobs.add(JobStatus.RUNNING, type_name="poll_forever"), jobs.add(JobStatus.COMPLETED)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job DISABLE TRIGGER USER"))
        for chain_id, index in ((root, 17_438), (ended, 2_000)):
            later = {"type_name": "poll_forever", "chain_type_name": "poll_forever", "chain_index": index}
            later |= {"queue": "default", "priority": 0, "max_attempts": 20, "input_version": 1, "input": None}
            connection.execute(insert(Job.__table__).values(id=uuid7(), chain_id=chain_id, **later))  # type: ignore[arg-type]
        connection.execute(text("ALTER TABLE job ENABLE TRIGGER USER"))
    (finding,) = findings_of(health(engine), Code.LONG_CHAIN)
    assert finding.summary == f"Chain {root} of poll_forever is open and has 17,439 jobs."


@both_servers
def test_a_worker_that_is_started_again_and_again_is_named_with_its_type_and_memory(engine: Engine, jobs: Jobs) -> None:
    for number in range(8):
        jobs.add(JobStatus.COMPLETED, completed_by=f"web-1:{number:06x}")
    jobs.add_worker("web-1:00000a", name="web-1", report={"resident_bytes": 812 * 2**20})
    jobs.add(JobStatus.RUNNING, worker_id="web-1:00000a", type_name="leaky")
    for number in range(4):  # of a fleet whose workers share a name, each was started once
        jobs.add(JobStatus.COMPLETED, completed_by=f"fleet:{number:06x}")
        jobs.add_worker(f"fleet:{number:06x}", name="fleet")
    with engine.begin() as connection:
        workers = connection.scalars(text("SELECT completed_by FROM job WHERE status = 'completed'"))
        assert len(set(workers)) == 12
    (finding,) = findings_of(health(engine), Code.WORKERS_RESTARTING)
    assert finding.cause == "Worker 'web-1' was started 8 times or more within the last 10 min"
    assert finding.details == (
        "This is by the ids of the workers that ended attempts; 1 is live. "
        "The largest live one uses 812 MB of memory, and runs leaky."
    )


def test_a_type_whose_attempts_are_lost_with_their_workers_is_named(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    for number in range(3):
        job = jobs.add(type_name="leaky", due_in=3600, attempt=1)
        with engine.begin() as connection:
            lost = {"job_id": job, "attempt": 1, "outcome": "lost", "worker_id": f"web-1:{number}"}
            connection.execute(insert(Job.Attempt), lost)
    (finding,) = findings_of(health(engine), Code.WORKERS_RESTARTING)
    assert finding.summary == "3 attempts of leaky were lost with their workers within the last 10 min."


@own_database
async def test_a_worker_reports_its_memory_and_what_its_code_declares(engine: Engine) -> None:
    def application(attempts: int, cron: str) -> JobQueue[Any]:
        queue: JobQueue[Any] = JobQueue()

        @queue.handler("charge", max_attempts=attempts)
        def charge(payload: None) -> None: ...

        @queue.handler("cleanup")
        def cleanup(payload: None) -> None: ...

        queue.queue("texts", rate_limit=attempts, rate_period=timedelta(seconds=1))
        queue.schedule("nightly", cron=cron, handler=cleanup, payload=None)
        return queue

    def live() -> list[str]:
        return sorted(worker.name for worker in call(engine, list_workers))

    old, new = (application(*options) for options in ((3, "@daily"), (10, "@hourly")))
    async with working(Worker(old, engine, options=quick(name="old"))):
        await until(lambda: live() == ["old"], description="the first worker")
        assert findings_of(health(engine), Code.DECLARED_DIFFERENTLY) == []
        async with working(Worker(old, engine, options=quick(name="same"))):
            await until(lambda: live() == ["old", "same"], description="another of the same code")
            assert findings_of(health(engine), Code.DECLARED_DIFFERENTLY) == []
        async with working(Worker(new, engine, options=quick(name="new"))):
            await until(lambda: live() == ["new", "old"], description="one of other code")
            report = health(engine)
            workers = call(engine, list_workers).items
    assert all((worker.resident_bytes or 0) > 2**20 for worker in workers)
    (finding,) = findings_of(report, Code.DECLARED_DIFFERENTLY)
    assert "declare differently: queue 'texts', schedule 'nightly', type 'charge'. The later one started" in finding.summary
    assert finding.summary.startswith("Workers old:")
    assert " and new:" in finding.summary
    late = judge(replace(report, measured_at=report.measured_at + timedelta(hours=1)), Thresholds())
    assert [finding.severity for finding in findings_of(late, Code.DECLARED_DIFFERENTLY)] == [Severity.WARNING]


def test_a_clock_that_was_set_is_named_and_ages_are_said_to_be_by_it(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    jobs.add(JobStatus.RUNNING)
    report = health(engine)
    assert abs(report.server.clock_ahead) < timedelta(seconds=10)
    ahead = replace(report.server, clock_ahead=timedelta(hours=2))
    long = [replace(group, running_for=timedelta(hours=2)) for group in report.running.groups]
    judged = judge(replace(report, server=ahead, running=replace(report.running, groups=long)), Thresholds())
    (finding,) = judged.findings
    assert finding.summary.startswith(
        "The database's clock is 2 h ahead of that of the machine that made this report. By the database's clock: test "
    )
    behind = judge(replace(report, server=replace(ahead, clock_ahead=timedelta(hours=-2))), Thresholds())
    assert "clock is 2 h behind that of" in findings_of(behind, Code.CLOCK)[0].summary


def test_connections_are_counted_by_application_name(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    gunicorn = create_engine(engine.url, connect_args={"application_name": "gunicorn shop"})
    with gunicorn.connect() as first, gunicorn.connect() as second:
        first.execute(text("SELECT 1"))
        second.execute(text("SELECT 1"))
        report = health(engine)
    gunicorn.dispose()
    assert report.connected["gunicorn shop"] == 2
    server = replace(report.server, connections=117, max_connections=120)
    (finding,) = findings_of(judge(replace(report, server=server), Thresholds()), Code.CONNECTIONS)
    assert finding.summary.startswith("117 of 120 connections are in use: ")
    assert "2 of 'gunicorn shop'" in finding.summary


def test_a_silenced_finding_is_ok_until_its_time_with_who_and_why(engine: Engine, jobs: Jobs, run: Run) -> None:
    jobs.add_worker(WORKER, queues=["default", "reports"])
    jobs.add(due_in=-1200)
    jobs.add(JobStatus.RUNNING, queue="reports")
    jobs.add(queue="reports", due_in=-1200, fairness_key="")
    options = ["--for", "4h", "--reason", "nightly import", "--by", "ann"]
    run("thresholds", "silence", "no_such_code", *options, status=2)
    severities = {finding.code: finding.severity for finding in health(engine).findings}
    silenced = document(run("thresholds", "silence", "claim_age", "--subject", "reports", *options, "--json"))
    assert silenced["subject"] == "reports"
    report = health(engine)
    assert severities[Code.CLAIM_AGE] is Severity.CRITICAL
    silenced_findings = [finding for finding in findings_of(report, Code.CLAIM_AGE) if "Silenced until" in finding.summary]
    assert [finding.severity for finding in silenced_findings] == [Severity.OK]
    assert silenced_findings[0].summary.endswith(" UTC by ann: nightly import.")
    with Session(engine) as session, session.begin():
        assert [record.operation for record in list_audit(session)] == ["silence_finding"]
        with pytest.raises(InvalidOptionError, match="reason"):
            silence_finding(session, "claim_age", by="ann", reason="", duration=timedelta(hours=1))
        silence_finding(session, "claim_age", by="ann", reason="over", duration=timedelta(0), subject="reports")
    assert "Silenced" not in str(health(engine).findings)
    assert health(engine).severity is Severity.CRITICAL
