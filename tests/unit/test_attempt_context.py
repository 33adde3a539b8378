"""How an attempt learns that it should stop, and the callbacks that it then runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sa_jobqueue import AttemptContext
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.ids import uuid7
from sa_jobqueue.types import CancelReason


def attempt_context(attempt: int = 1) -> AttemptContext:
    """Return an attempt of a job that was never enqueued."""
    now, job_id = datetime.now(UTC), uuid7()
    job = ClaimedJob(
        job_id, "test", "default", "", 0, job_id, "test", 0, None, 1, attempt, 20, None, now, now, now, None, None
    )
    return AttemptContext(job, "tester:1", lambda *_: None)


def test_whoever_asked_is_told_once_and_the_first_reason_stays() -> None:
    context = attempt_context()
    told: list[str | None] = []
    context.on_stop(lambda: told.append(context.cancel_reason))
    assert not context.cancelled
    context.stop(CancelReason.TIMED_OUT)
    context.stop(CancelReason.SHUTDOWN)
    assert (told, context.cancel_reason) == ([CancelReason.TIMED_OUT], CancelReason.TIMED_OUT)


def test_who_asks_too_late_is_told_at_once() -> None:
    context = attempt_context()
    context.stop(CancelReason.SHUTDOWN)
    told: list[str] = []
    context.on_stop(lambda: told.append("late"))()  # nothing is left to take back
    assert told == ["late"]


def test_who_no_longer_asks_is_not_told() -> None:
    context = attempt_context()
    told: list[str] = []
    forget = context.on_stop(lambda: told.append("a"))
    context.on_stop(lambda: told.append("b"))
    forget()
    forget()
    context.stop(CancelReason.SHUTDOWN)
    assert told == ["b"]


def test_waiting_for_a_stop_ends_with_it() -> None:
    context = attempt_context()
    assert not context.wait_cancelled(timedelta(0))
    context.stop(CancelReason.SHUTDOWN)
    assert context.wait_cancelled(timedelta(0))
