"""Worker events become log records: the level, the words and the fields of each, and no payload in any."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy.exc import OperationalError

from sa_jobqueue import events
from sa_jobqueue.types import AttemptOutcome, DeadReason
from sa_jobqueue.worker import logs
from tests.fixtures.events import CASES, ERROR, JOB, SECOND


@pytest.fixture
def bus(caplog: pytest.LogCaptureFixture) -> events.EventBus:
    caplog.set_level(logging.DEBUG, logger=logs.LOGGER_NAME)
    event_bus = events.EventBus()
    logs.subscribe(event_bus)
    return event_bus


def test_every_event_has_a_log_message() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)}
    assert set(CASES) == kinds - {events.Event, events.AttemptEvent, events.WorkerEvent}


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


def test_a_driver_error_is_logged_without_its_statement(bus: events.EventBus, caplog: pytest.LogCaptureFixture) -> None:
    error = OperationalError("UPDATE job SET output = %s", {"output": "secret"}, Exception("server closed the connection"))
    bus.emit(events.ComponentFailed("completer", error, SECOND))
    assert "server closed the connection" in caplog.text
    assert "secret" not in caplog.text
    assert "UPDATE" not in caplog.text


FAILED = {
    "type": "sqlalchemy.exc.IntegrityError",
    "message": "duplicate key",
    "traceback": 'Traceback (most recent call last):\n  File "shop.py", line 3, in charge\nDuplicate: duplicate key\n'
    "DETAIL:  Key (card)=(4111 1111) already exists.\n[SQL: INSERT INTO card]\n[parameters: {'card': '4111 1111'}]\n",
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
    assert "4111 1111" not in caplog.text
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
