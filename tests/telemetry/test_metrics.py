"""Figures through OpenTelemetry's API: names and units of the conventions, and the same numbers as Prometheus is served."""

from __future__ import annotations

import asyncio
import sys

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, Worker, enqueue_many
from sa_jobqueue.observe import telemetry as observed
from sa_jobqueue.observe.metrics.workers import subscribe
from tests.fixtures.database import one_server_swept
from tests.fixtures.workers import quick
from tests.telemetry.spans import Telemetry

ENQUEUE = {"messaging.system": "sa_jobqueue", "messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
PROCESS = {"messaging.system": "sa_jobqueue", "messaging.operation.name": "process", "messaging.operation.type": "process"}
TYPE, OUTCOME = "messaging.sa_jobqueue.job.type", "messaging.sa_jobqueue.job.outcome"


@one_server_swept
async def test_what_was_sent_delivered_and_processed_is_counted_once_each(
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
    subscribe(worker.events, registry, types=jobs.registry.names, running=lambda: 0, slots=7)
    await asyncio.wait_for(worker.run_until_idle(), 20)

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


@one_server_swept
def test_types_in_figures_have_an_end(sessions: sessionmaker[Session], telemetry: Telemetry) -> None:
    with sessions.begin() as session:
        enqueue_many(session, [Job(f"type_{number}") for number in range(300)])
    sent = {dict(key)[TYPE]: point.value for (name, key), point in telemetry.points().items() if name.endswith(".messages")}
    assert len(sent) == 201
    assert sent["other"] == 100


@one_server_swept
def test_instrumenting_again_takes_the_place_of_the_first(sessions: sessionmaker[Session], telemetry: Telemetry) -> None:
    again = Telemetry()
    with sessions.begin() as session:
        session.add(Job("test"))
    again.close()
    with sessions.begin() as session:
        session.add(Job("test"))
    assert (len(again.spans()), len(telemetry.spans())) == (1, 0)


def test_without_the_api_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(observed.MissingOpenTelemetryExtraError, match=r"sa-jobqueue\[otel\]"):
        observed.instrument()
