"""Thresholds are stored once, for all queues or for one, and used by every program that measures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.health import Code, Severity, Thresholds, get_thresholds, health, set_thresholds
from sa_jobqueue.observe.metrics.samples import of_report
from sa_jobqueue.operations import list_audit
from tests.dashboard.conftest import Client, everyone
from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call, write

HOUR = timedelta(hours=1)


def store(engine: Engine, queue: str = "", **values: object) -> Thresholds:
    return call(engine, set_thresholds, values, queue=queue, by="ann")


@pytest.mark.slow
def test_a_queue_that_may_wait_longer_is_no_finding_anywhere(
    engine: Engine, run: Run, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report, the dashboard, the metrics of the exporter and the command line agree."""
    jobs.add_worker(WORKER, concurrency=1, queues=["reports", "mail"])
    for queue in ("reports", "mail"):
        job = jobs.add(JobStatus.RUNNING, queue=queue, worker_id=WORKER)
        jobs.add(queue=queue, due_in=-1000)
        write(engine, update(Job).where(Job.id == job).values(started_at=text("now() - interval '2 h'")))
    store(engine, claim_age_critical=HOUR)
    store(engine, "reports", claim_age_warning=HOUR, claim_age_critical=2 * HOUR, long_running=9 * HOUR)

    report = health(engine)
    findings = {(finding.code, finding.severity, finding.evidence["queue"]) for finding in report.findings}
    assert findings == {(Code.CLAIM_AGE, Severity.WARNING, "mail"), (Code.LONG_RUNNING, Severity.WARNING, "mail")}
    (severities,) = [sample.values for sample in of_report(report) if sample.name == "health_severity"]
    assert severities["claim_age", "mail"] == 1
    assert ("claim_age", "reports") not in severities

    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 60)
    page = Client(dashboard(engine, authorize=everyone)).page("/queue/overview")
    assert "Queue &#39;mail&#39;: 1 job waits" in page
    assert "of queue &#39;reports&#39;" not in page

    run("health", "--json", status=1)
    run("health", "--json", "--threshold", "claim_age_critical=5m", status=2)


def test_the_command_sets_lists_and_unsets_thresholds(engine: Engine, run: Run) -> None:
    run("thresholds", "set", "retry_minimum=30", "bloat_share=0.75", "--by", "ann")
    run("thresholds", "set", "--queue", "reports", "claim_age_warning=5m", "--by", "ann")
    with Session(engine) as session:
        stored = get_thresholds(session)
        records = list_audit(session).items
    assert replace(stored, queues={}) == Thresholds(retry_minimum=30, bloat_share=0.75)
    assert stored.of("reports").claim_age_warning == timedelta(minutes=5)
    assert [(record.done_by, record.operation) for record in records] == [("ann", "set_thresholds")] * 2
    listed = document(run("thresholds", "list", "--json"))["thresholds"]
    assert {"name": "claim_age_warning", "queue": "reports", "value": 300.0, "default": 60.0} in listed
    run("thresholds", "set", "retry_minimum=", "bloat_share=")
    run("thresholds", "set", "--queue", "reports", "claim_age_warning=")
    assert call(engine, get_thresholds) == Thresholds()


@pytest.mark.parametrize(
    ("queue", "values", "says"),
    [
        ("", {"claim_age": HOUR}, "name: must be among"),
        ("reports", {"bloat_share": 0.1}, "name: must be among claim_age_warning, claim_age_critical, long_running"),
        ("", {"claim_age_warning": 60}, "claim_age_warning: must be a timedelta, got 60"),
        ("", {"retry_minimum": 0}, "retry_minimum: must be greater than 0"),
        ("", {"retry_rate_warning": float("nan")}, "retry_rate_warning: must be greater than 0"),
        ("reports", {"claim_age_warning": HOUR}, "claim_age_warning: must not be greater than claim_age_critical"),
    ],
)
def test_wrong_thresholds_are_refused_before_anything_is_written(
    engine: Engine, queue: str, values: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        store(engine, queue, **values)
    assert call(engine, get_thresholds) == Thresholds()


def test_rows_that_contradict_each_other_or_are_of_a_newer_version_do_not_stop_a_report(engine: Engine) -> None:
    store(engine, claim_age_warning=timedelta(minutes=9))
    with engine.begin() as connection:
        rows = "('claim_age_critical', '', 30), ('of_tomorrow', '', 1), ('retry_minimum', 'q', 0.5)"
        connection.execute(text(f"INSERT INTO threshold VALUES {rows}"))
    stored = call(engine, get_thresholds)
    assert (stored.claim_age_warning, stored.claim_age_critical) == (timedelta(seconds=30), timedelta(seconds=30))
    assert stored.of("q").retry_minimum == 1
    assert health(engine).findings == []
    with engine.begin() as connection, pytest.raises(IntegrityError):
        connection.execute(text("INSERT INTO threshold VALUES ('retry_minimum', '', 'NaN')"))
