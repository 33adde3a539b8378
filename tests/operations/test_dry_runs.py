"""A dry run returns the result of the call, in a transaction that cannot write, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule, operations
from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.settings import QueueSettings, TypeSettings

HOURLY = Schedule(name="open", type_name="report", cron="0 * * * *")
PERIOD: dict[str, Any] = {"since": datetime(2026, 3, 1, tzinfo=UTC), "until": datetime(2026, 3, 1, 4, tzinfo=UTC)}
CALLS: dict[str, Callable[..., Any]] = {
    "pause queues": lambda session, **more: operations.pause_queues(session, ["open", "paused"], **more),
    "pause a key": lambda session, **more: operations.pause_queues(session, ["open"], fairness_key="7", **more),
    "resume queues": lambda session, **more: operations.resume_queues(session, ["open", "paused", "new"], **more),
    "delete queues": lambda session, **more: operations.delete_queues(session, ["open", "paused", "new"], **more),
    "delete no queue": lambda session, **more: operations.delete_queues(session, [], **more),
    "set a queue": lambda session, **more: operations.upsert_queue(session, QueueSettings(name="open", weight=3), **more),
    "set it as it is": lambda session, **more: operations.upsert_queue(
        session, QueueSettings(name="open", weight=2), **more
    ),
    "set a new queue": lambda session, **more: operations.upsert_queue(session, QueueSettings(name="new"), **more),
    "pause types": lambda session, **more: operations.pause_job_types(session, ["open", "paused"], **more),
    "resume types": lambda session, **more: operations.resume_job_types(session, ["open", "paused", "new"], **more),
    "delete types": lambda session, **more: operations.delete_job_types(session, ["open", "paused", "new"], **more),
    "set a type": lambda session, **more: operations.upsert_job_type(session, TypeSettings(type_name="open"), **more),
    "pause schedules": lambda session, **more: operations.pause_schedules(session, ["open", "paused"], **more),
    "resume schedules": lambda session, **more: operations.resume_schedules(session, ["open", "paused"], **more),
    "delete schedules": lambda session, **more: operations.delete_schedules(session, ["open", "paused"], **more),
    "run a period": lambda session, **more: operations.run_schedule(session, "open", **PERIOD, **more),
    "set a schedule as it is": lambda session, **more: operations.upsert_schedule(session, HOURLY, **more),
}


@pytest.fixture
def filled(session: Session) -> Session:
    """Give a session of a queue with a row of each kind that is open, and one that is paused."""
    operations.upsert_queue(session, QueueSettings(name="open", weight=2))
    operations.upsert_job_type(session, TypeSettings(type_name="open", global_concurrency=1))
    operations.upsert_schedule(session, HOURLY)
    operations.upsert_schedule(session, Schedule(name="paused", type_name="report", cron="0 * * * *"))
    operations.upsert_queue(session, QueueSettings(name="paused"))
    operations.upsert_job_type(session, TypeSettings(type_name="paused"))
    for pause in (operations.pause_queues, operations.pause_job_types, operations.pause_schedules):
        pause(session, ["paused"])
    operations.run_schedule(session, "open", since=PERIOD["since"], until=PERIOD["since"] + timedelta(hours=1))
    session.commit()
    return session


def test_a_dry_run_returns_the_result_of_the_call(filled: Session, engine: Engine) -> None:
    for name, call in CALLS.items():
        with Session(engine) as reader:
            reader.execute(text("SET TRANSACTION READ ONLY"))
            expected = call(reader, by="ann", dry_run=True)
        assert operations.list_audit(filled).items == [], name
        result = call(filled, by="ann")
        if isinstance(result, operations.BulkResult):
            assert (sorted(expected.ids), expected.matched) == (sorted(result.ids), result.matched), name
        else:
            assert expected == result, name
        filled.rollback()


def test_a_dry_run_raises_the_errors_of_the_call(filled: Session) -> None:
    with pytest.raises(NotFoundError):
        operations.delete_schedules(filled, ["open", "none"], dry_run=True)
    with pytest.raises(InvalidOptionError):
        operations.pause_queues(filled, ["a b"], dry_run=True)
    with pytest.raises(NotFoundError):
        operations.pause_queues(filled, ["none"], dry_run=True)
    filled.execute(text("UPDATE schedule SET source = 'code'"))
    with pytest.raises(InvalidOptionError, match="declared in code"):
        operations.upsert_schedule(filled, HOURLY, dry_run=True)
    assert operations.run_schedule(filled, "open", dry_run=True) == [None]
