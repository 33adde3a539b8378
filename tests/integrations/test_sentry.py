"""What Sentry receives of jobs, through its real client with a transport that keeps the envelopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Backoff, Cancel, Discard, JobQueue, Retry, Snooze, Worker
from sa_jobqueue.integrations.sentry import report_jobs
from sa_jobqueue.operations import fire_schedules, sync_schedules
from sa_jobqueue.worker import logs
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


class CapturingTransport(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type or "", item.payload.json) for item in envelope.items]  # type: ignore[misc]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for item_kind, item in self.items if item_kind == kind]


@pytest.fixture
def sentry() -> Iterator[CapturingTransport]:
    transport_made = CapturingTransport()
    options: dict[str, Any] = {"traces_sample_rate": 1.0, "auto_enabling_integrations": False}
    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=transport_made, **options)
    yield transport_made
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def ways_to_end() -> JobQueue[Any]:
    """Return a registry with a handler for each way in which an attempt can end."""
    jobs = JobQueue()
    report_jobs(jobs)
    once: dict[str, Any] = {"max_attempts": 1, "retry": Backoff()}

    @jobs.handler("works")
    def works(payload: Any) -> None: ...

    @jobs.handler("fails", queue="mail", **once)
    def fails(payload: Any) -> None:
        raise LookupError("no such order")

    @jobs.handler("fails_async", **once)
    async def fails_async(payload: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError("no such order")

    @jobs.handler("hangs", timeout=timedelta(milliseconds=100), **once)
    async def hangs(payload: Any) -> None:
        await asyncio.Event().wait()

    @jobs.handler("retries", **once)
    def retries(payload: Any) -> None:
        raise Retry(timedelta(hours=1), reason="rate limited")

    @jobs.handler("discards", **once)
    def discards(payload: Any) -> None:
        raise Discard("no such customer")

    @jobs.handler("snoozes", **once)
    def snoozes(payload: Any) -> None:
        raise Snooze(timedelta(hours=1))

    @jobs.handler("cancels", **once)
    def cancels(payload: Any) -> None:
        raise Cancel("not needed")

    return jobs


@pytest.mark.slow
async def test_an_error_is_reported_once_with_its_job_and_without_its_payload(
    engine: Engine, sentry: CapturingTransport
) -> None:
    jobs = ways_to_end()
    with Session(engine) as session, session.begin():
        job_by_type = {handler.job_type.name: handler.job("secret") for handler in jobs}
        session.add_all(job_by_type.values())
        session.flush()
        ids = {name: str(job.id) for name, job in job_by_type.items()}
    worker = Worker(jobs, engine, options=quick(queues=["default", "mail"]))
    logs.subscribe(worker.events)
    await worker.run_until_idle()
    reported = {event["contexts"]["job"]["type"]: event for event in sentry.of("event")}
    assert reported.keys() == {"fails", "fails_async", "hangs", "retries", "discards"}
    assert len(sentry.of("event")) == 5
    error = reported["fails"]
    assert error["exception"]["values"][-1]["type"] == "LookupError"
    frames = error["exception"]["values"][-1]["stacktrace"]["frames"]
    assert frames[-1]["function"] == "fails"
    job = error["contexts"]["job"]
    assert (job["id"], job["queue"], job["attempt"], job["max_attempts"]) == (ids["fails"], "mail", 1, 1)
    assert {name: error["tags"][name] for name in ("job.type", "job.queue")} == {"job.type": "fails", "job.queue": "mail"}
    assert error["transaction"] == "fails"
    transactions = {transaction["transaction"]: transaction["contexts"]["trace"] for transaction in sentry.of("transaction")}
    assert transactions.keys() == ids.keys()
    assert {trace["op"] for trace in transactions.values()} == {"queue.process"}
    failed = {name for name, trace in transactions.items() if trace["status"] == "internal_error"}
    assert {"fails", "fails_async"} <= failed
    assert not failed & {"works", "snoozes", "cancels"}
    assert sentry.of("check_in") == []
    assert "secret" not in json.dumps([event["contexts"] for event in reported.values()])


async def test_a_scheduled_job_is_a_sentry_check_in_of_its_monitor(engine: Engine, sentry: CapturingTransport) -> None:
    jobs = ways_to_end()
    for name in ("works", "fails", "snoozes"):
        jobs.schedule(f"nightly-{name}", cron="0 3 * * *", time_zone="Europe/Berlin", handler=name)
    with Session(engine) as session, session.begin():
        sync_schedules(session, jobs.schedules)
        session.add(jobs["works"].job(None))  # of the same type, but of no schedule
    call(engine, fire_schedules)
    assert len(call(engine, fire_schedules, at=datetime.now(UTC) + timedelta(days=1))) == 3
    await Worker(jobs, engine, options=quick(queues=["default", "mail"])).run_until_idle()
    check_ins: dict[str, list[dict[str, Any]]] = {}
    for check_in in sentry.of("check_in"):
        check_ins.setdefault(check_in["monitor_slug"], []).append(check_in)
    assert {name: [run["status"] for run in runs] for name, runs in check_ins.items()} == {
        "nightly-works": ["in_progress", "ok"],
        "nightly-fails": ["in_progress", "error"],
        "nightly-snoozes": ["in_progress", "ok"],
    }
    for first, last in check_ins.values():
        assert first["check_in_id"] == last["check_in_id"]
        assert first["monitor_config"]["schedule"] == {"type": "crontab", "value": "0 3 * * *"}
        assert first["monitor_config"]["timezone"] == "Europe/Berlin"
        assert last["duration"] >= 0
