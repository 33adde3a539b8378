"""Figures through OpenTelemetry's API: names and units of the conventions, and the same numbers as Prometheus is served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, enqueue_many
from sa_jobqueue.cli import main
from sa_jobqueue.errors import MissingExtraError
from sa_jobqueue.observe import telemetry as observed
from sa_jobqueue.observe.health import Health, health
from sa_jobqueue.observe.metrics.database import DatabaseCollector
from sa_jobqueue.observe.metrics.workers import subscribe
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, quick
from tests.telemetry.spans import Telemetry

ENQUEUE = {"messaging.system": "sa_jobqueue", "messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
PROCESS = {"messaging.system": "sa_jobqueue", "messaging.operation.name": "process", "messaging.operation.type": "process"}
SDK = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from sa_jobqueue import JobQueue
jobs = JobQueue()
exporter = ConsoleMetricExporter(out=open("exported.json", "w"), formatter=lambda data: data.to_json(indent=None) + "\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)]))
"""
TYPE, OUTCOME = "messaging.sa_jobqueue.job.type", "messaging.sa_jobqueue.job.outcome"


async def test_sent_and_processed_messages_are_each_counted_once(
    sessions: sessionmaker[Session], engine: Engine, telemetry: Telemetry
) -> None:
    jobs = JobQueue()

    @jobs.handler("good")
    async def good(payload: None) -> None: ...

    @jobs.handler("bad", max_attempts=1)
    async def bad(payload: None) -> None:
        raise ZeroDivisionError

    with sessions() as session:
        enqueue_many(session, [good.job(None) for _ in range(3)])
        session.add(bad.job(None))
        session.commit()
        session.add(good.job(None))
        session.flush()
        session.rollback()
    worker, registry = Worker(jobs, engine, options=quick()), CollectorRegistry()
    telemetry.watch(worker, jobs)
    subscribe(worker.events, registry, types=jobs.registry.names, running=dict, slots=7)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)

    points = telemetry.points()

    def value(name: str, attributes: dict[str, str]) -> float:
        return float(points[name, frozenset(attributes.items())].value)

    assert value("messaging.client.sent.messages", ENQUEUE | {TYPE: "good"}) == 3  # and not the one rolled back
    assert value("messaging.client.sent.messages", ENQUEUE | {TYPE: "bad"}) == 1
    assert points["messaging.client.operation.duration", frozenset((ENQUEUE | {TYPE: "bad"}).items())].count == 1
    assert value("messaging.client.consumed.messages", PROCESS | {TYPE: "good"}) == 3
    took = points["messaging.process.duration", frozenset((PROCESS | {TYPE: "good"}).items())]
    assert took.count == 3
    assert 0 < took.sum < 60  # seconds
    failed = PROCESS | {TYPE: "bad", "error.type": "ZeroDivisionError"}
    assert points["messaging.process.duration", frozenset(failed.items())].count == 1
    assert value("sa_jobqueue.worker.slots", {}) == 7
    # Two ways out of the worker, one count.
    attempts = {dict(key)[TYPE]: point.value for (name, key), point in points.items() if name == "sa_jobqueue.attempts"}
    assert attempts == {"good": 3, "bad": 1}
    for kind, outcome, count in (("good", "completed", 3), ("bad", "died", 1)):
        assert value("sa_jobqueue.attempts", {TYPE: kind, OUTCOME: outcome}) == count
        labels = {"job_type": kind, "outcome": outcome}
        assert registry.get_sample_value("sa_jobqueue_attempts_total", labels) == count


def test_job_types_in_opentelemetry_metrics_are_bounded(sessions: sessionmaker[Session], telemetry: Telemetry) -> None:
    call(sessions, enqueue_many, [Job(f"type_{number}") for number in range(300)])
    sent = {dict(key)[TYPE]: point.value for (name, key), point in telemetry.points().items() if name.endswith(".messages")}
    assert len(sent) == 201
    assert sent["other"] == 100


def test_opentelemetry_database_metrics_equal_those_of_the_exporter(
    engine: Engine, jobs: Jobs, telemetry: Telemetry
) -> None:
    jobs.add_many(3, queue="mail")
    jobs.add(JobStatus.DEAD)
    report = health(engine)
    calls: list[int] = []

    def read() -> Health:
        if len(calls) > 2:
            raise OperationalError("SELECT 1", {}, Exception("gone"))
        calls.append(1)
        return report

    observed.observe_database(read, meter_provider=telemetry.meters)
    points = telemetry.points()
    assert len(calls) == 2  # one for the names, one for all figures of an export
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: report))
    served = {
        (sample.name.removesuffix("_total"), frozenset(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    renamed = {"table.size": "table_bytes", "table.index_size": "table_index_bytes"}
    values = {}
    for (name, attributes), point in points.items():
        stem = renamed.get(name.removeprefix("sa_jobqueue."), name.removeprefix("sa_jobqueue."))
        labels = frozenset(str(value) for _, value in attributes)
        ends = ("", "_seconds", "_bytes", "_ratio", "_per_second")
        # `horizon_age` is of two: its transactions have no unit to take off.
        key = next((f"sa_jobqueue_{stem}{end}", labels) for end in ends if (f"sa_jobqueue_{stem}{end}", labels) in served)
        values[key] = point.value
    assert values == served
    assert values["sa_jobqueue_due_jobs", frozenset({"mail"})] == 3


@pytest.mark.long
def test_the_exporter_uses_the_opentelemetry_sdk_the_application_configured(
    database_url: str, jobs: Jobs, tmp_path: Path
) -> None:
    jobs.add_many(3, queue="mail")
    (tmp_path / "app.py").write_text(SDK)
    process = subprocess.Popen(
        [sys.executable, "-m", "sa_jobqueue.cli", "exporter", "--opentelemetry", "--app", "app:jobs"],
        cwd=tmp_path,
        env=os.environ | {"SA_JOBQUEUE_URL": database_url, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "exporting metrics through OpenTelemetry\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
    (exported,) = (json.loads(line) for line in (tmp_path / "exported.json").read_text().splitlines())
    (scope,) = exported["resource_metrics"][0]["scope_metrics"]
    metric_by_name = {metric["name"]: metric for metric in scope["metrics"]}
    (depth,) = metric_by_name["sa_jobqueue.due_jobs"]["data"]["data_points"]
    assert (depth["attributes"], depth["value"]) == ({"sa_jobqueue.queue": "mail"}, 3)
    assert metric_by_name["sa_jobqueue.claim_age"]["unit"] == "s"
    without = CliRunner().invoke(main, ["exporter", "--opentelemetry", "--url", database_url])
    assert (without.exit_code, "no OpenTelemetry SDK is configured" in without.output) == (1, True)


def test_instrumenting_again_replaces_the_first_instrumentation(
    sessions: sessionmaker[Session], telemetry: Telemetry
) -> None:
    again = Telemetry()
    with sessions.begin() as session:
        session.add(Job("test"))
    again.close()
    with sessions.begin() as session:
        session.add(Job("test"))
    assert (len(again.spans()), len(telemetry.spans())) == (1, 0)


def test_instrument_without_opentelemetry_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingExtraError, match=r"opentelemetry-api>=1\.30,<2"):
        observed.instrument()
