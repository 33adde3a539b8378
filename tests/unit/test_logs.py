"""Worker events become log records: the level, the words and the fields of each, and no payload in any."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from sqlalchemy.exc import OperationalError

from sa_jobqueue import events
from sa_jobqueue.types import AttemptOutcome, DeadReason, RefusedWrite
from sa_jobqueue.worker import logs

SECOND = timedelta(seconds=1)
ERROR = {"type": "app.CardDeclined", "message": "declined\ncard 4111 1111", "traceback": "card 4111 1111"}
JOB = ("7", "charge", 2)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CASES: dict[type, tuple[events.Event, str, str]] = {
    events.JobStarted: (events.JobStarted(*JOB), "DEBUG", "job 7 (charge) attempt 2 started"),
    events.JobCompleted: (events.JobCompleted(*JOB, SECOND), "INFO", "job 7 (charge) attempt 2 completed in 1.000 s"),
    events.JobRescheduled: (
        events.JobRescheduled(*JOB, AttemptOutcome.TIMED_OUT, SECOND, ERROR),
        "WARNING",
        "job 7 (charge) attempt 2 timed out, due again in 1.0 s: app.CardDeclined: declined",
    ),
    events.JobDied: (
        events.JobDied(*JOB, DeadReason.EXHAUSTED, ERROR),
        "ERROR",
        "job 7 (charge) attempt 2 died (exhausted): app.CardDeclined: declined",
    ),
    events.JobUnblocked: (events.JobUnblocked(*JOB), "DEBUG", "job 7 (charge) attempt 2 was unblocked"),
    events.MiddlewareFailed: (
        events.MiddlewareFailed(*JOB, ValueError("no route\nto the collector")),
        "ERROR",
        "job 7 (charge) attempt 2 completed, but its middleware failed afterwards: ValueError: no route",
    ),
    events.JobCancelled: (events.JobCancelled(*JOB), "INFO", "job 7 (charge) attempt 2 was cancelled by its handler"),
    events.AttemptLost: (
        events.AttemptLost(*JOB),
        "WARNING",
        "job 7 (charge) attempt 2 lost its lease; no result was written",
    ),
    events.JobRescued: (
        events.JobRescued(*JOB, "w:1", died=False),
        "WARNING",
        "job 7 (charge) attempt 2 was rescued from worker w:1, which died or exceeded its lease",
    ),
    events.UnknownTypesPending: (
        events.UnknownTypesPending(("a", "b")),
        "WARNING",
        "due jobs stay pending, as no worker has a handler for their types: a, b",
    ),
    events.UnservedQueues: (
        events.UnservedQueues(("mail", "reports")),
        "WARNING",
        "due jobs stay pending, as no worker serves their queues: mail, reports",
    ),
    events.SettingsChanged: (
        events.SettingsChanged("w:1", ("mail",), (), 4),
        "INFO",
        "settings changed worker=w:1 concurrency=4 paused_queues=mail paused_types=none",
    ),
    events.SettingsDiffer: (
        events.SettingsDiffer("w:1", {"mail": {"weight": (2, 1), "rate_period": (None, SECOND)}}),
        "WARNING",
        "settings of queues differ from those declared in the code, and the database's apply until"
        " `sa-jobqueue queues sync MODULE:ATTRIBUTE` writes the declared ones:"
        " mail weight=2 (declared: 1); mail rate_period=None (declared: 0:00:01)",
    ),
    events.ChainsPruned: (
        events.ChainsPruned(3, 7),
        "INFO",
        "pruned 3 chains with 7 jobs after their retention",
    ),
    events.DeadLettersPruned: (events.DeadLettersPruned(3), "INFO", "pruned 3 resolved dead letters after their retention"),
    events.ScheduleFired: (
        events.ScheduleFired("nightly", (NOON,), ("7",), None),
        "INFO",
        "schedule nightly fired for 2026-01-01T12:00:00+00:00",
    ),
    events.ScheduleBroken: (
        events.ScheduleBroken("nightly", "cron: bad"),
        "ERROR",
        "schedule nightly cannot fire until its row is corrected: cron: bad",
    ),
    events.SchedulesUndeclared: (
        events.SchedulesUndeclared(("a", "b")),
        "WARNING",
        "schedules are not declared in this code but still fire; delete them if they are obsolete: a, b",
    ),
    events.SchemaAhead: (
        events.SchemaAhead("w:1", 4, 3),
        "WARNING",
        "worker w:1 found schema version 4, newer than its own (3); upgrade the worker",
    ),
    events.PoolerFound: (
        events.PoolerFound("w:1", False, SECOND),
        "INFO",
        "worker w:1 is connected through a connection pooler; it polls every 1 s",
    ),
    events.MemoryExceeded: (
        events.MemoryExceeded("w:1", 3 * 2**20, 2 * 2**20),
        "WARNING",
        "worker w:1 uses 3 MiB, more than its limit of 2 MiB; it drains and stops",
    ),
    events.WorkerStarted: (
        events.WorkerStarted("w:1", ("mail", "default"), 10, ("charge",), "postgresql://app:***@db/shop", 1),
        "INFO",
        "worker w:1 started queues=mail, default concurrency=10 handlers=charge "
        "database=postgresql://app:***@db/shop schema_version=1",
    ),
    events.DrainRequested: (
        events.DrainRequested("w:1"),
        "INFO",
        "worker w:1 is draining: running jobs may finish",
    ),
    events.ProviderFailed: (
        events.ProviderFailed(ValueError("no")),
        "ERROR",
        "dependency could not be closed: ValueError: no",
    ),
    events.SelectorFailed: (
        events.SelectorFailed("w:1", "mail", "app:choose", ValueError("no")),
        "ERROR",
        "selector app:choose failed; jobs of queue mail start in the default order until it succeeds: ValueError: no",
    ),
    events.WorkerStopped: (events.WorkerStopped("w:1", 3), "INFO", "worker w:1 stopped, 3 jobs released"),
    events.WriteQuarantined: (
        events.WriteQuarantined(RefusedWrite.COMPLETE, "a-job", "w:1", ValueError("boom"), "23514", 2, SECOND),
        "ERROR",
        "write quarantined statement=complete subject=a-job failures=2 retry_in=1s: ValueError: boom",
    ),
    events.ComponentFailed: (
        events.ComponentFailed("claimer", ValueError("boom"), SECOND),
        "ERROR",
        "claimer failed, restarting in 1.0 s: ValueError: boom",
    ),
    events.HeartbeatFailing: (
        events.HeartbeatFailing("w:1", SECOND),
        "ERROR",
        "worker w:1 had no successful heartbeat for 1.0 s; it stops its jobs before other workers rescue them",
    ),
}


@pytest.fixture
def bus(caplog: pytest.LogCaptureFixture) -> events.EventBus:
    caplog.set_level(logging.DEBUG, logger=logs.LOGGER_NAME)
    event_bus = events.EventBus()
    logs.subscribe(event_bus)
    return event_bus


def test_every_event_has_a_log_message() -> None:
    assert set(CASES) == set(get_args(events.Event))


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_an_event_is_logged_with_its_level_message_and_fields(
    kind: type, bus: events.EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    event, level, words = CASES[kind]
    bus.emit(event)
    (record,) = caplog.records
    name = "sa_jobqueue.worker.attempts" if isinstance(event, events.AttemptEvent) else "sa_jobqueue.worker"
    assert (record.name, record.levelname, record.getMessage()) == (name, level, words)
    assert record.__dict__["event"] == kind.__name__
    fields = {key: value for key, value in record.__dict__.items() if key != "exc_text"}  # the traceback
    assert "4111 1111" not in str(fields)  # the message's first line alone


def test_records_of_attempts_name_job_type_attempt_and_outcome(
    bus: events.EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.emit(events.JobRescheduled(*JOB, AttemptOutcome.FAILED, SECOND, ERROR))
    fields = caplog.records[0].__dict__
    assert {name: fields[name] for name in ("job_id", "job_type", "job_attempt", "job_outcome", "delay_seconds")} == {
        "job_id": "7",
        "job_type": "charge",
        "job_attempt": 2,
        "job_outcome": "failed",
        "delay_seconds": 1.0,
    }


@pytest.mark.parametrize("outcome", [AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED])
def test_requested_reschedules_are_logged_at_info_level(outcome: AttemptOutcome) -> None:
    assert logs.describe(events.JobRescheduled(*JOB, outcome, SECOND, None)).level == logging.INFO


@pytest.mark.parametrize("error", [None, ERROR])
def test_a_job_rescheduled_to_an_instant_logs_the_instant(error: Any) -> None:
    at = datetime(2099, 1, 1, tzinfo=UTC)
    record = logs.describe(events.JobRescheduled(*JOB, AttemptOutcome.SNOOZED, timedelta(0), error, at))
    assert "snoozed, due again at 2099-01-01T00:00:00+00:00" in record.message % record.arguments
    assert record.fields["due_at"] == "2099-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("released", "words"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_a_stopped_worker_logs_how_many_jobs_it_released(
    released: int, words: str, bus: events.EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.emit(events.WorkerStopped("w:1", released))
    assert caplog.messages == [f"worker w:1 stopped, {words} released"]


def test_a_death_by_rescue_is_an_error() -> None:
    assert logs.describe(events.JobRescued(*JOB, "w:1", died=True)).level == logging.ERROR


def test_a_driver_error_is_logged_without_its_statement(bus: events.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    error = OperationalError("UPDATE job SET output = %s", {"output": "secret"}, Exception("server closed the connection"))
    bus.emit(events.ComponentFailed("completer", error, SECOND))
    assert "server closed the connection" in caplog.text
    assert "secret" not in caplog.text
    assert "UPDATE" not in caplog.text


def test_a_level_that_is_off_costs_no_record(bus: events.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=logs.LOGGER_NAME)
    bus.emit(events.JobCompleted(*JOB, SECOND))
    assert not caplog.records


FAILED = {
    "type": "sqlalchemy.exc.IntegrityError",
    "message": "duplicate key",
    "traceback": 'Traceback (most recent call last):\n  File "shop.py", line 3, in charge\nDuplicate: duplicate key\n'
    "DETAIL:  Key (card)=(4111) already exists.\n[SQL: INSERT INTO card]\n[parameters: {'card': '4111'}]\n",
}


@pytest.mark.parametrize(
    "event",
    [events.JobRescheduled(*JOB, AttemptOutcome.FAILED, SECOND, FAILED), events.JobDied(*JOB, DeadReason.EXHAUSTED, FAILED)],
    ids=lambda event: type(event).__name__,
)
def test_a_failed_attempt_is_logged_with_its_traceback_and_without_quoted_values(
    event: events.Event, bus: events.EventBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.emit(event)
    assert 'File "shop.py", line 3, in charge\nDuplicate: duplicate key\n[SQL: INSERT INTO card]' in caplog.text
    assert "4111" not in caplog.text
    caplog.clear()
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "charge")
    bus.emit(event)
    assert "IntegrityError: (redacted)" in caplog.text
    assert "shop.py" not in caplog.text


def test_lines_of_attempts_are_turned_off_by_the_level_of_their_logger(
    bus: events.EventBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = logging.getLogger(f"{logs.LOGGER_NAME}.attempts")
    monkeypatch.setattr(off, "isEnabledFor", lambda level: level >= logging.WARNING)
    bus.emit(events.JobCompleted(*JOB, SECOND))
    bus.emit(events.WorkerStarted("w:1"))
    assert [record.name for record in caplog.records] == [logs.LOGGER_NAME]


def test_subscribing_the_log_twice_writes_each_event_once(bus: events.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    logs.subscribe(bus)
    bus.emit(events.WorkerStarted("w:1"))
    assert len(caplog.records) == 1
