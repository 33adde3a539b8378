"""A report of which the server cancels a statement: the rest is reported, and missing figures are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.cli import main
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.observe.health import Code, Severity, health
from sa_jobqueue.observe.health.measuring import Reading
from tests.dashboard.conftest import Client, everyone
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.workers import wait_until

pytestmark = pytest.mark.slow

SHORT = timedelta(seconds=2)


@contextmanager
def locked(engine: Engine, *tables: str) -> Iterator[None]:
    """Make every statement that reads these tables wait."""
    with engine.connect() as connection:
        connection.execute(text(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"))
        yield
        connection.rollback()


def test_a_partial_report_has_what_could_be_measured_and_names_the_rest(engine: Engine, jobs: Jobs) -> None:
    jobs.add(due_in=-120)
    with locked(engine, "dead_letter"):
        report = health(engine, timeout=SHORT)
        with Session(engine) as session:
            session.execute(text("SET statement_timeout = '100ms'"))
            with pytest.raises(DBAPIError, match="statement timeout"):
                health(session)  # whose transaction has failed
    assert (report.due, report.missing) == (1, ("failures", "tables"))  # whose sizes cannot be read either
    found = {finding.code: finding for finding in report.findings}
    assert found.keys() == {Code.NO_WORKER, Code.NOT_MEASURED}
    assert "dead letters and blocked jobs, tables." in found[Code.NOT_MEASURED].summary
    assert "holds an ACCESS EXCLUSIVE lock on dead_letter." in found[Code.NOT_MEASURED].summary
    assert found[Code.NOT_MEASURED].severity is Severity.CRITICAL  # as its dead letters may be
    assert health(engine, timeout=SHORT).missing == ()


def test_missing_measurements_produce_no_findings(engine: Engine, jobs: Jobs) -> None:
    """Where the jobs cannot be read, there is no queue, and nothing is said to be fine or not."""
    jobs.add(due_in=-120)
    with locked(engine, "job"):
        report = health(engine, timeout=SHORT)
    assert {"queues", "rates", "running", "unserved"} <= set(report.missing)
    assert [(finding.code, finding.severity) for finding in report.findings] == [(Code.NOT_MEASURED, Severity.CRITICAL)]


def test_a_cancelled_statement_shortens_the_timeout_of_the_rest_of_one_report(engine: Engine) -> None:
    timeout = timedelta(seconds=10)
    with locked(engine, "job"):
        seen = health(engine, timeout=SHORT)
    assert {"queues", "rates", "running"} <= set(seen.missing)
    assert health(engine, timeout=SHORT).missing == ()
    asked: list[Any] = []
    with engine.connect() as connection:
        session = Session(connection.execution_options(isolation_level="AUTOCOMMIT"))
        reading = Reading(session, timeout=timeout)
        for name in ("one", "another"):
            with reading.part(name):
                asked.append(session.scalar(text("SHOW statement_timeout")))
                session.execute(text("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(9)"))
        report = reading.report(None)
        assert report.missing == ("one", "another")
        session.close()
    assert asked[1:] == ["1s"]


@pytest.mark.long
def test_the_health_command_names_what_was_not_measured(engine: Engine, database_url: str, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    with locked(engine, "job_attempt"):

        def call(*more: str) -> Any:
            return CliRunner().invoke(main, ["health", "--timeout", "2s", *more], env={"SA_JOBQUEUE_URL": database_url})

        result, document = call(), json.loads(call("--json").output)
    assert result.exit_code == 2, result.output
    missing = "latest failures, rates, tables, restarts of workers."
    sentence = f"not_measured: Not measured, because the server cancelled the statement: {missing}"
    assert sentence in " ".join(result.output.split())
    rows = {line.strip("│ ").split("  ")[0].split(" │")[0].strip(): line for line in result.output.splitlines()}
    assert "not measured" in rows["rates"]
    assert "not measured" in rows["retry rate"]
    assert "0 due" in rows["depth"]
    assert document["missing"] == ["latest", "rates", "tables", "starts"]


def test_the_dashboard_names_what_was_not_measured_instead_of_zero(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    source = Source(name="queue", engine=engine, timeout=SHORT)
    client = Client(dashboard([source], authorize=everyone))
    with locked(engine, "job_attempt"):
        wait_until(lambda: "first report is being" not in client.page("/queue/overview"), description="a report")
        page = client.page("/queue/overview")
    assert "because the server cancelled the statement: latest failures, rates, tables, restarts of workers<" in page
    assert "<dt>Due</dt><dd>0" in page
    assert "<dt>Completed per second</dt><dd>not measured" in page
    assert '<td colspan="6">Not measured.</td>' in page
    assert "No attempt failed lately" not in page
