"""The effect of an error on a job, and its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import payloads
from sa_jobqueue.errors import (
    AttemptTimeoutError,
    Cancel,
    DeadlinePassedError,
    Discard,
    InvalidOutputError,
    InvalidPayloadError,
    Retry,
    Snooze,
    UnknownJobTypeError,
    UnreadableInputError,
)
from sa_jobqueue.registry.job_types import JobType, describe
from sa_jobqueue.registry.options import HandlerOptions
from sa_jobqueue.types import LONGEST, AttemptOutcome, DeadReason, JobStatus
from sa_jobqueue.worker.finish import outcomes
from sa_jobqueue.worker.finish.outcomes import MAX_TEXT, fingerprint_of, of_error, released
from tests.fixtures.attempts import NOW, job

pytestmark = pytest.mark.every_python

SECOND = timedelta(seconds=1)
TIMEOUT = AttemptTimeoutError(SECOND)

PENDING, DEAD, CANCELLED = JobStatus.PENDING, JobStatus.DEAD, JobStatus.CANCELLED
FAILED, TIMED_OUT = AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT


def job_type(policy: Callable[[int, BaseException], timedelta | None] = lambda attempt, error: attempt * SECOND) -> JobType:
    def handler() -> None: ...

    return describe(handler, HandlerOptions("test", retry=policy))


@pytest.mark.parametrize(
    ("error", "attempt", "status", "outcome", "reason"),
    [
        (ValueError("x"), 1, PENDING, FAILED, None),
        (ValueError("x"), 2, PENDING, FAILED, None),
        (ValueError("x"), 3, DEAD, FAILED, DeadReason.EXHAUSTED),
        (ValueError("x"), 4, DEAD, FAILED, DeadReason.EXHAUSTED),
        (TIMEOUT, 2, PENDING, TIMED_OUT, None),
        (TIMEOUT, 3, DEAD, TIMED_OUT, DeadReason.TIMED_OUT),
        (DeadlinePassedError(NOW), 1, CANCELLED, TIMED_OUT, None),
        (DeadlinePassedError(NOW), 3, CANCELLED, TIMED_OUT, None),
        (TimeoutError("its own"), 3, DEAD, FAILED, DeadReason.EXHAUSTED),
        (InvalidOutputError("x"), 1, PENDING, FAILED, None),
        (UnreadableInputError("input", "x"), 1, DEAD, FAILED, DeadReason.INVALID_INPUT),
        (InvalidPayloadError("input", "of another job"), 1, PENDING, FAILED, None),
        (Discard("no use"), 1, DEAD, FAILED, DeadReason.DISCARDED),
        (Discard("no use"), 3, DEAD, FAILED, DeadReason.DISCARDED),
        (Cancel("not needed"), 1, CANCELLED, AttemptOutcome.CANCELLED, None),
        (Snooze(5 * SECOND), 1, PENDING, AttemptOutcome.SNOOZED, None),
        (Snooze(5 * SECOND), 3, PENDING, AttemptOutcome.SNOOZED, None),
        (Retry(5 * SECOND), 2, PENDING, FAILED, None),
        (Retry(at=NOW), 2, PENDING, FAILED, None),
        (Retry(5 * SECOND), 3, DEAD, FAILED, DeadReason.EXHAUSTED),
        (Retry(at=NOW), 3, DEAD, FAILED, DeadReason.EXHAUSTED),
    ],
)
def test_each_error_maps_to_a_status_outcome_and_death_reason(
    error: BaseException, attempt: int, status: JobStatus, outcome: AttemptOutcome, reason: DeadReason | None
) -> None:
    end = of_error(job(attempt), error, job_type())
    assert (end.status, end.outcome, end.reason) == (status, outcome, reason)
    assert end.uncounted is (outcome is AttemptOutcome.SNOOZED)
    assert (end.error is None) is (outcome is AttemptOutcome.SNOOZED)
    assert (end.error is None) is (end.fingerprint is None)


def test_a_retry_stores_its_reason_or_the_error_it_was_raised_from() -> None:
    def retried(error: Retry, *, suppress: bool = False) -> dict[str, Any]:
        try:
            try:
                raise KeyError("busy")
            except KeyError:
                if suppress:
                    raise error from None
                raise error  # noqa: B904 - as most handlers will
        except Retry as caught:
            end = of_error(job(1), caught, job_type())
        assert end.error is not None
        assert end.fingerprint is not None
        return end.error

    stored = retried(Retry(SECOND))
    assert (stored["type"], stored["message"]) == ("KeyError", "'busy'")
    stored = retried(Retry(SECOND, reason="the bank is closed"))
    assert (stored["type"], stored["message"]) == ("sa_jobqueue.errors.Retry", "the bank is closed")
    assert "KeyError: 'busy'" in stored["traceback"]
    assert retried(Retry(SECOND), suppress=True)["message"] == "postponed for 1 s"
    end = of_error(job(3), raised(Retry(SECOND, reason="still closed")), job_type())
    assert end.error is not None
    assert end.error["message"] == "still closed"


def test_a_failing_retry_policy_falls_back_to_the_default_and_is_reported() -> None:
    def broken(attempt: int, error: BaseException) -> timedelta:
        raise KeyError("policy")

    for policy in (broken, lambda attempt, error: 5):
        end = of_error(job(1), ValueError("x"), job_type(policy))  # type: ignore[arg-type]
        assert end.status is PENDING
        assert timedelta(0) <= end.delay <= SECOND
        assert end.error is not None
        assert "its retry policy failed" in end.error["traceback"]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: BaseException, *, deep: int = 0) -> BaseException:
    try:
        if deep:
            raise raised(error, deep=deep - 1)
        raise error
    except BaseException as caught:
        return caught


def elsewhere(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        ValueError("x" * 50_000),
        ValueError("nul \0 and surrogate \ud800"),
        ValueError("\0" * 20_000),
        UnprintableError(),
        KeyError(b"\xff"),
        ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_stored_error_is_bounded_and_valid_jsonb(error: BaseException) -> None:
    stored = outcomes.describe(raised(error))
    payloads.check_json("error", stored)
    assert set(stored) == {"type", "message", "traceback"}
    assert stored["type"].endswith(type(error).__name__)
    # A NUL is written as four characters.
    assert all(len(part) <= 4 * MAX_TEXT for part in stored.values())
    assert json.loads(json.dumps(stored)) == stored


def test_a_long_traceback_keeps_its_end() -> None:
    def recurse(depth: int) -> None:
        if depth:
            recurse2(depth)
        raise ValueError("at the bottom")

    def recurse2(depth: int) -> None:
        recurse(depth - 1)

    try:
        recurse(200)
    except ValueError as error:
        stored = outcomes.describe(error)
    assert len(stored["traceback"]) == MAX_TEXT
    assert stored["traceback"].endswith("ValueError: at the bottom\n")


def test_a_timeout_error_has_no_traceback() -> None:
    assert outcomes.describe(raised(TIMEOUT)) == {
        "type": "sa_jobqueue.errors.AttemptTimeoutError",
        "message": "ran past its timeout of 1 s",
        "traceback": "",
    }


def test_a_fingerprint_does_not_depend_on_message_or_line() -> None:
    def first(number: int) -> None:
        if number % 2:
            raise ValueError(f"odd {number}")
        raise ValueError(f"even {number}")

    def caught(number: int) -> BaseException:
        try:
            first(number)
        except ValueError as error:
            return error
        raise AssertionError

    assert len({fingerprint_of(caught(number)) for number in range(4)}) == 1


def test_a_fingerprint_depends_on_type_and_function() -> None:
    errors: list[Any] = [
        raised(ValueError("x")),
        raised(TypeError("x")),
        elsewhere(ValueError("x")),
        ValueError("never raised"),
    ]
    assert len({fingerprint_of(error) for error in errors}) == len(errors)


def test_retry_and_snooze_override_the_retry_policy() -> None:
    gives_up = job_type(lambda attempt, error: None)
    for signal in (Snooze, Retry):
        end = of_error(job(1), signal(7 * SECOND), gives_up)
        assert (end.status, end.delay, end.at) == (PENDING, 7 * SECOND, None)
        end = of_error(job(1), signal(at=NOW), gives_up)
        assert (end.status, end.delay, end.at) == (PENDING, timedelta(0), NOW)


def test_a_policy_may_give_up_on_an_error() -> None:
    by_error = job_type(lambda attempt, error: None if isinstance(error, ValueError) else SECOND)
    assert of_error(job(1), KeyError("x"), by_error).status is JobStatus.PENDING
    end = of_error(job(1), ValueError("x"), by_error)
    assert (end.status, end.reason) == (DEAD, DeadReason.DISCARDED)


def test_a_retry_waits_for_the_delay_of_its_policy() -> None:
    assert of_error(job(2), ValueError("x"), job_type()).delay == 2 * SECOND
    assert of_error(job(1), Snooze(7 * SECOND), job_type()).delay == 7 * SECOND
    assert of_error(job(1), ValueError("x"), job_type(lambda attempt, error: -SECOND)).delay == timedelta(0)
    assert of_error(job(1), ValueError("x"), job_type(lambda attempt, error: timedelta.max)).delay == LONGEST


def test_a_job_without_a_handler_is_retried_with_the_default_backoff() -> None:
    end = of_error(job(1), UnknownJobTypeError("test", []), None)
    assert end.status is PENDING
    assert timedelta(0) <= end.delay <= SECOND


def test_a_released_job_is_due_at_once_and_its_attempt_not_counted() -> None:
    end = released(job(3))
    assert (end.status, end.outcome, end.delay) == (PENDING, AttemptOutcome.RELEASED, timedelta(0))
    assert (end.uncounted, end.error, end.reason) == (True, None, None)


def test_timeouts_share_a_fingerprint_wherever_they_were_raised() -> None:
    assert fingerprint_of(raised(TIMEOUT)) == fingerprint_of(elsewhere(AttemptTimeoutError(5 * SECOND)))
