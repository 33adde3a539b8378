"""Metrics over HTTP, as Prometheus reads them: of a worker process, of the exporter, and what their labels may be."""

from __future__ import annotations

import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, func
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, events
from sa_jobqueue.errors import InvalidOptionError, MissingExtraError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.observe.health import health
from sa_jobqueue.observe.health.figures import QueueDepth
from sa_jobqueue.observe.metrics import serve_metrics
from sa_jobqueue.observe.metrics.database import DatabaseCollector
from sa_jobqueue.observe.metrics.serving import new_registry
from sa_jobqueue.observe.metrics.tally import MOST_QUEUES
from sa_jobqueue.observe.metrics.workers import subscribe
from sa_jobqueue.operations import pause_job_types, pause_queues, upsert_job_type, upsert_queue
from sa_jobqueue.settings import QueueSettings, TypeSettings
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.minutes import record
from tests.fixtures.ports import free_port
from tests.fixtures.programs import Process, Programs
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, wait_until
from tests.health.application import APPLICATION

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> Samples:
    """Read a page of metrics; names and units must be those that Prometheus' conventions ask for."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
        body = page.read().decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(body):
        assert re.fullmatch(r"sa_jobqueue_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            samples[sample.name, frozenset(sample.labels.items())] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"sa_jobqueue_{name}", frozenset(labels.items())]


@pytest.fixture
def start(database_url: str, programs: Programs, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Give a function that starts a command of ours; whatever still runs at the end is killed, by its pid."""
    running: list[Process] = []
    (tmp_path / "app.py").write_text(APPLICATION)

    def run(*arguments: str) -> Process:
        process = programs.start("-m", "sa_jobqueue.cli", *arguments, cwd=tmp_path, env={"SA_JOBQUEUE_URL": database_url})
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_exporter_serves_the_values_of_the_health_report(
    start: Callable[..., Process], engine: Engine, jobs: Jobs
) -> None:
    jobs.add_worker(WORKER, concurrency=4)
    jobs.add_many(3, queue="mail")
    jobs.add(due_in=3600)
    jobs.add(JobStatus.RUNNING)
    jobs.add(JobStatus.DEAD)
    process = start("exporter", "--port", "0", "--heartbeat-timeout", "600s")
    assert process.stdout is not None
    first_line = process.stdout.readline()
    port = int(first_line.rpartition(":")[2].partition("/")[0])
    samples, report = scrape(port), health(engine, heartbeat_timeout=timedelta(minutes=10))
    assert value(samples, "up") == 1
    assert value(samples, "due_jobs", queue="mail") == 3 == report.due
    assert value(samples, "scheduled_jobs", queue="default") == 1
    assert 3 <= value(samples, "claim_age_seconds", queue="mail") <= report.claim_age.total_seconds()
    assert value(samples, "running_jobs", queue="default") == 1
    assert value(samples, "longest_running_seconds", queue="default") >= 0
    assert (value(samples, "slots"), value(samples, "saturation_ratio"), value(samples, "silent_workers")) == (4, 0.25, 0)
    assert value(samples, "unresolved_dead_letters") == 1
    assert value(samples, "health_severity", code="dead_letters", queue="") == 1
    assert value(samples, "health_severity", code="queue_unserved", queue="") == 2
    assert value(samples, "health_severity", code="horizon", queue="") == 0
    (table,) = (table for table in report.tables if table.name == "job")
    assert value(samples, "table_bytes", table="job") == table.bytes
    assert value(samples, "horizon_holders", kind="handler") == 0
    assert ("sa_jobqueue_table_changes_total", frozenset({("table", "job"), ("kind", "insert")})) in samples
    jobs.add(queue="mail")
    assert value(scrape(port), "due_jobs", queue="mail") == 3  # of the same report: see test_evidence.py
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_the_exporter_names_what_is_paused_and_what_due_jobs_wait_for(engine: Engine, session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail", "pay", "imports"], job_types=["send", "charge"])
    jobs.add_many(3, queue="mail", type_name="send_fax")
    earlier = "now() - interval '5 min'"
    write(engine, f"UPDATE job SET created_at = {earlier}, scheduled_at = {earlier}")
    pause_queues(session, ["pay"])
    pause_queues(session, ["imports"], fairness_key="stark")
    pause_job_types(session, ["charge"])
    session.commit()
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: health(engine)))
    with serve_metrics(registry, port=0) as port:
        samples = scrape(port)
    assert value(samples, "waiting_jobs", queue="mail", cause="type_unknown") == 3
    paused = {
        (labels_of["kind"], labels_of["name"])
        for name, labels in samples
        if name == "sa_jobqueue_paused"
        for labels_of in [dict(labels)]
    }
    assert paused == {("queue", "pay"), ("queue", "imports stark"), ("type", "charge")}


def test_the_exporter_shows_limits_in_use_and_blocked_and_due_jobs_by_type(
    engine: Engine, session: Session, jobs: Jobs
) -> None:
    upsert_queue(session, QueueSettings(name="pay", global_concurrency=9, concurrency_per_key=2))
    upsert_queue(session, QueueSettings(name="pay", fairness_key="stark", global_concurrency=3))
    upsert_job_type(session, TypeSettings(type_name="charge", global_concurrency=4))
    upsert_job_type(session, TypeSettings(type_name="text", rate_limit=50, rate_period=timedelta(minutes=1), rate_burst=70))
    session.commit()
    for key in ("stark", "stark", "wayne", ""):
        jobs.add(JobStatus.RUNNING, queue="pay", fairness_key=key, type_name="charge")
    jobs.add(JobStatus.RUNNING, queue="mail", type_name="charge")
    jobs.add(JobStatus.BLOCKED)
    earlier = func.now() - timedelta(minutes=2)
    jobs.add_many(3, type_name="send", created_at=earlier, scheduled_at=earlier)
    assert record(engine) > 0
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: health(engine)))
    with serve_metrics(registry, port=0) as port:
        samples = scrape(port)
    limits = {"queue pay": (4, 9), "key pay": (2, 2), "queue pay stark": (2, 3), "type charge": (5, 4)}
    for subject, values in limits.items():
        kind, _, name = subject.partition(" ")
        names = ("concurrency_in_use", "concurrency_limit")
        labels = frozenset({("kind", kind), ("name", name)})
        assert tuple(samples[f"sa_jobqueue_{name}", labels] for name in names) == values, subject
    rates = {labels: left for (name, labels), left in samples.items() if name == "sa_jobqueue_rate_tokens"}
    assert rates == {frozenset({("kind", "type"), ("name", "text")}): 70}  # a full bucket
    assert value(samples, "blocked_jobs") == 1
    assert value(samples, "due_jobs_by_type", job_type="send") == 3
    assert value(samples, "running_jobs", queue="pay") == 4


def test_a_worker_serves_metrics_of_its_attempts(start: Callable[..., Process], jobs: Jobs) -> None:
    ids = [jobs.add(type_name="good") for _ in range(3)] + [jobs.add(type_name="bad", max_attempts=1)]
    port = free_port()
    process = start("worker", "app:jobs", "--poll-interval", "0.1s", "--metrics-port", str(port), "--concurrency", "3")
    wait_until(lambda: all(jobs.status(job_id) in {JobStatus.COMPLETED, JobStatus.DEAD} for job_id in ids))
    wait_until(lambda: value(scrape(port), "worker_running_jobs", job_type="good") == 0)

    def counted() -> bool:
        return ("sa_jobqueue_dead_letters_total", frozenset({("job_type", "bad"), ("reason", "exhausted")})) in scrape(port)

    wait_until(counted, description="the death among the metrics")
    samples = scrape(port)
    assert value(samples, "attempts_total", job_type="good", outcome="completed") == 3
    assert value(samples, "attempt_duration_seconds_count", job_type="good") == 3
    assert value(samples, "attempt_wait_seconds_count", queue="default") == 3
    assert value(samples, "attempt_wait_seconds_bucket", queue="default", le="1800.0") == 3
    assert 0 < value(samples, "attempt_wait_seconds_sum", queue="default") < PATIENCE
    assert 0 <= time.time() - value(samples, "worker_start_time_seconds") < PATIENCE
    assert value(samples, "attempts_total", job_type="bad", outcome="died") == 1
    assert value(samples, "worker_slots") == 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_metric_labels_are_bounded_however_many_queues_and_types_exist(engine: Engine) -> None:
    queues = [
        QueueDepth(
            queue=f"tenant_{number}",
            fairness_key="",
            due=number,
            later=1,
            oldest_due_at=None,
            claim_age=timedelta(seconds=number),
            next_due_at=None,
            is_capped=False,
        )
        for number in range(500)
    ]
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: replace(health(engine), queues=queues)))
    bus = events.EventBus()
    running = {"known": 2, "strange_1": 3, "strange_2": 4}
    subscribe(bus, registry, types=["known", "idle"], running=lambda: running, slots=1)
    for type_name in ("known", *(f"strange_{number}" for number in range(50))):
        bus.emit(events.JobCompleted(uuid7(), type_name, 1, timedelta(seconds=2), "mail", timedelta(seconds=7)))
    for number in range(500):
        bus.emit(events.JobCompleted(uuid7(), "known", 1, timedelta(0), f"tenant_{number}", timedelta(seconds=-1)))
    with serve_metrics(registry, port=0) as port:
        samples = scrape(port)
        with pytest.raises(InvalidOptionError, match="cannot listen"), serve_metrics(registry, port=port):
            pass
    due = [labels for name, labels in samples if name == "sa_jobqueue_due_jobs"]
    assert len(due) == MOST_QUEUES + 1
    assert value(samples, "due_jobs", queue="tenant_499") == 499
    assert value(samples, "due_jobs", queue="other") == sum(range(400))
    assert value(samples, "claim_age_seconds", queue="other") == 399
    assert value(samples, "attempts_total", job_type="known", outcome="completed") == 501
    assert value(samples, "attempt_wait_seconds_sum", queue="mail") == 7 * 51
    waits = [labels_of for name, labels_of in samples if name == "sa_jobqueue_attempt_wait_seconds_count"]
    assert len(waits) == MOST_QUEUES + 1
    assert value(samples, "attempt_wait_seconds_sum", queue="other") == 0
    assert value(samples, "attempts_total", job_type="other", outcome="completed") == 50
    running_jobs = {labels: count for (name, labels), count in samples.items() if name == "sa_jobqueue_worker_running_jobs"}
    count_by_type = {dict(labels)["job_type"]: count for labels, count in running_jobs.items()}
    assert count_by_type == {"known": 2, "idle": 0, "other": 7}


def test_the_exporter_reports_an_unreachable_database_as_down() -> None:
    def read() -> Any:
        raise OperationalError("SELECT 1", {}, Exception("gone"))

    registry = CollectorRegistry()
    registry.register(DatabaseCollector(read))
    with serve_metrics(registry, port=0) as port:
        assert scrape(port) == {("sa_jobqueue_up", frozenset()): 0}


def test_metrics_without_prometheus_client_name_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"prometheus-client>=0\.22,<1"):
        new_registry()
