"""Worker events become log records: the level, the words and the fields of each, and no payload in any."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from sqlalchemy.exc import OperationalError

from sa_jobqueue import events as told
from sa_jobqueue.types import AttemptOutcome, DeadReason, RefusedWrite
from sa_jobqueue.worker import logs

SECOND = timedelta(seconds=1)
ERROR = {"type": "app.CardDeclined", "message": "declined\ncard 4111 1111", "traceback": "card 4111 1111"}
JOB = ("7", "charge", 2)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CASES: dict[type, tuple[told.Event, str, str]] = {
    told.JobStarted: (told.JobStarted(*JOB), "DEBUG", "job 7 (charge) attempt 2 started"),
    told.JobCompleted: (told.JobCompleted(*JOB, SECOND), "INFO", "job 7 (charge) attempt 2 completed in 1.000 s"),
    told.JobRescheduled: (
        told.JobRescheduled(*JOB, AttemptOutcome.TIMED_OUT, SECOND, ERROR),
        "WARNING",
        "job 7 (charge) attempt 2 timed out, due again in 1.0 s: app.CardDeclined: declined",
    ),
    told.JobDied: (
        told.JobDied(*JOB, DeadReason.EXHAUSTED, ERROR),
        "ERROR",
        "job 7 (charge) attempt 2 died (exhausted): app.CardDeclined: declined",
    ),
    told.JobUnblocked: (told.JobUnblocked(*JOB), "DEBUG", "job 7 (charge) attempt 2 was unblocked"),
    told.MiddlewareFailed: (
        told.MiddlewareFailed(*JOB, ValueError("no route\nto the collector")),
        "ERROR",
        "job 7 (charge) attempt 2 completed, but its middleware failed afterwards: ValueError: no route",
    ),
    told.JobCancelled: (told.JobCancelled(*JOB), "INFO", "job 7 (charge) attempt 2 was cancelled by its handler"),
    told.AttemptLost: (
        told.AttemptLost(*JOB),
        "WARNING",
        "job 7 (charge) attempt 2 lost its lease; no result was written",
    ),
    told.JobRescued: (
        told.JobRescued(*JOB, "w:1", died=False),
        "WARNING",
        "job 7 (charge) attempt 2 was rescued from worker w:1, which died or exceeded its lease",
    ),
    told.UnknownTypesPending: (
        told.UnknownTypesPending(("a", "b")),
        "WARNING",
        "due jobs stay pending, as no worker has a handler for their types: a, b",
    ),
    told.UnservedQueues: (
        told.UnservedQueues(("mail", "reports")),
        "WARNING",
        "due jobs stay pending, as no worker serves their queues: mail, reports",
    ),
    told.SettingsChanged: (
        told.SettingsChanged("w:1", ("mail",), (), 4),
        "INFO",
        "settings changed worker=w:1 concurrency=4 paused_queues=mail paused_types=none",
    ),
    told.SettingsDiffer: (
        told.SettingsDiffer("w:1", {"mail": {"weight": (2, 1), "rate_period": (None, SECOND)}}),
        "WARNING",
        "settings of queues differ from those declared in the code, and the database's apply until"
        " `sa-jobqueue queues sync MODULE:ATTRIBUTE` writes the declared ones:"
        " mail weight=2 (declared: 1); mail rate_period=None (declared: 0:00:01)",
    ),
    told.ChainsPruned: (
        told.ChainsPruned(3, 7),
        "INFO",
        "pruned 3 chains with 7 jobs after their retention",
    ),
    told.DeadLettersPruned: (told.DeadLettersPruned(3), "INFO", "pruned 3 resolved dead letters after their retention"),
    told.ScheduleFired: (
        told.ScheduleFired("nightly", (NOON,), ("7",), None),
        "INFO",
        "schedule nightly fired for 2026-01-01T12:00:00+00:00",
    ),
    told.ScheduleBroken: (
        told.ScheduleBroken("nightly", "cron: bad"),
        "ERROR",
        "schedule nightly cannot fire until its row is corrected: cron: bad",
    ),
    told.SchedulesUndeclared: (
        told.SchedulesUndeclared(("a", "b")),
        "WARNING",
        "schedules are not declared in this code but still fire; delete them if they are obsolete: a, b",
    ),
    told.SchemaAhead: (
        told.SchemaAhead("w:1", 4, 3),
        "WARNING",
        "worker w:1 found schema version 4, newer than its own (3); upgrade the worker",
    ),
    told.PoolerFound: (
        told.PoolerFound("w:1", False, SECOND),
        "INFO",
        "worker w:1 is connected through a connection pooler; it polls every 1 s",
    ),
    told.MemoryExceeded: (
        told.MemoryExceeded("w:1", 3 * 2**20, 2 * 2**20),
        "WARNING",
        "worker w:1 uses 3 MiB, more than its limit of 2 MiB; it drains and stops",
    ),
    told.WorkerStarted: (
        told.WorkerStarted("w:1", ("mail", "default"), 10, ("charge",), "postgresql://app:***@db/shop", 1),
        "INFO",
        "worker w:1 started queues=mail, default concurrency=10 handlers=charge "
        "database=postgresql://app:***@db/shop schema_version=1",
    ),
    told.DrainRequested: (
        told.DrainRequested("w:1"),
        "INFO",
        "worker w:1 is draining: running jobs may finish",
    ),
    told.ProviderFailed: (
        told.ProviderFailed(ValueError("no")),
        "ERROR",
        "dependency could not be closed: ValueError: no",
    ),
    told.SelectorFailed: (
        told.SelectorFailed("w:1", "mail", "app:choose", ValueError("no")),
        "ERROR",
        "selector app:choose failed; jobs of queue mail start in the default order until it succeeds: ValueError: no",
    ),
    told.WorkerStopped: (told.WorkerStopped("w:1", 3), "INFO", "worker w:1 stopped, 3 jobs released"),
    told.WriteQuarantined: (
        told.WriteQuarantined(RefusedWrite.COMPLETE, "a-job", "w:1", ValueError("boom"), "23514", 2, SECOND),
        "ERROR",
        "write quarantined statement=complete subject=a-job failures=2 retry_in=1s: ValueError: boom",
    ),
    told.ComponentFailed: (
        told.ComponentFailed("claimer", ValueError("boom"), SECOND),
        "ERROR",
        "claimer failed, restarting in 1.0 s: ValueError: boom",
    ),
    told.HeartbeatFailing: (
        told.HeartbeatFailing("w:1", SECOND),
        "ERROR",
        "worker w:1 had no successful heartbeat for 1.0 s; it stops its jobs before other workers rescue them",
    ),
}


@pytest.fixture
def bus(caplog: pytest.LogCaptureFixture) -> told.EventBus:
    caplog.set_level(logging.DEBUG, logger=logs.LOGGER_NAME)
    events = told.EventBus()
    logs.subscribe(events)
    return events


def test_every_event_has_its_words() -> None:
    assert set(CASES) == set(get_args(told.Event))


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_an_event_is_logged_at_its_level_in_its_words(
    kind: type, bus: told.EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    event, level, words = CASES[kind]
    bus.emit(event)
    (record,) = caplog.records
    name = "sa_jobqueue.worker.attempts" if isinstance(event, told.AttemptEvent) else "sa_jobqueue.worker"
    assert (record.name, record.levelname, record.getMessage()) == (name, level, words)
    assert record.__dict__["event"] == kind.__name__
    fields = {key: value for key, value in record.__dict__.items() if key != "exc_text"}  # the traceback
    assert "4111 1111" not in str(fields)  # the message's first line alone


def test_records_of_attempts_name_job_type_attempt_and_outcome(bus: told.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    bus.emit(told.JobRescheduled(*JOB, AttemptOutcome.FAILED, SECOND, ERROR))
    fields = caplog.records[0].__dict__
    assert {name: fields[name] for name in ("job_id", "job_type", "job_attempt", "job_outcome", "delay_seconds")} == {
        "job_id": "7",
        "job_type": "charge",
        "job_attempt": 2,
        "job_outcome": "failed",
        "delay_seconds": 1.0,
    }


@pytest.mark.parametrize("outcome", [AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED])
def test_what_a_handler_or_a_shutdown_asked_for_is_no_warning(outcome: AttemptOutcome) -> None:
    assert logs.describe(told.JobRescheduled(*JOB, outcome, SECOND, None)).level == logging.INFO


@pytest.mark.parametrize("error", [None, ERROR])
def test_a_job_put_back_until_an_instant_names_it(error: Any) -> None:
    at = datetime(2099, 1, 1, tzinfo=UTC)
    record = logs.describe(told.JobRescheduled(*JOB, AttemptOutcome.SNOOZED, timedelta(0), error, at))
    assert "snoozed, due again at 2099-01-01T00:00:00+00:00" in record.message % record.arguments
    assert record.fields["due_at"] == "2099-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("released", "words"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_what_a_worker_gave_back_is_counted_in_words(
    released: int, words: str, bus: told.EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.emit(told.WorkerStopped("w:1", released))
    assert caplog.messages == [f"worker w:1 stopped, {words} released"]


def test_a_death_by_rescue_is_an_error() -> None:
    assert logs.describe(told.JobRescued(*JOB, "w:1", died=True)).level == logging.ERROR


def test_a_drivers_error_is_told_without_its_statement(bus: told.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    error = OperationalError("UPDATE job SET output = %s", {"output": "secret"}, Exception("server closed the connection"))
    bus.emit(told.ComponentFailed("completer", error, SECOND))
    assert "server closed the connection" in caplog.text
    assert "secret" not in caplog.text
    assert "UPDATE" not in caplog.text


def test_a_level_that_is_off_costs_no_record(bus: told.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=logs.LOGGER_NAME)
    bus.emit(told.JobCompleted(*JOB, SECOND))
    assert not caplog.records


FAILED = {
    "type": "sqlalchemy.exc.IntegrityError",
    "message": "duplicate key",
    "traceback": 'Traceback (most recent call last):\n  File "shop.py", line 3, in charge\nDuplicate: duplicate key\n'
    "DETAIL:  Key (card)=(4111) already exists.\n[SQL: INSERT INTO card]\n[parameters: {'card': '4111'}]\n",
}


@pytest.mark.parametrize(
    "event",
    [told.JobRescheduled(*JOB, AttemptOutcome.FAILED, SECOND, FAILED), told.JobDied(*JOB, DeadReason.EXHAUSTED, FAILED)],
    ids=lambda event: type(event).__name__,
)
def test_a_failed_attempt_is_logged_with_its_traceback_and_without_quoted_values(
    event: told.Event, bus: told.EventBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
    bus: told.EventBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = logging.getLogger(f"{logs.LOGGER_NAME}.attempts")
    monkeypatch.setattr(off, "isEnabledFor", lambda level: level >= logging.WARNING)
    bus.emit(told.JobCompleted(*JOB, SECOND))
    bus.emit(told.WorkerStarted("w:1"))
    assert [record.name for record in caplog.records] == [logs.LOGGER_NAME]


def test_events_that_are_logged_twice_are_written_once(bus: told.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    logs.subscribe(bus)
    bus.emit(told.WorkerStarted("w:1"))
    assert len(caplog.records) == 1
