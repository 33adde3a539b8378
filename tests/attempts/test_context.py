"""How an attempt learns that it should stop, and the callbacks that it then runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import Job
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.types import CancelReason
from tests.fixtures.attempts import attempt_context

pytestmark = pytest.mark.every_python


def test_a_stop_callback_registered_after_the_stop_runs_at_once() -> None:
    context = attempt_context()
    context.stop(CancelReason.SHUTDOWN)
    calls: list[str] = []
    context.on_stop(lambda: calls.append("late"))()  # nothing is left to undo
    assert calls == ["late"]


def test_a_removed_stop_callback_does_not_run() -> None:
    context = attempt_context()
    calls: list[str] = []
    forget = context.on_stop(lambda: calls.append("a"))
    context.on_stop(lambda: calls.append("b"))
    forget()
    forget()
    context.stop(CancelReason.SHUTDOWN)
    assert calls == ["b"]


@pytest.mark.parametrize("target", [Job("of_no_handler"), "send", lambda: None])
def test_only_a_handler_can_continue_a_chain(target: Any) -> None:
    expected = rf"handler: must be a handler, got a {type(target).__name__}: ctx\.continue_with\(handler, payload\)"
    with pytest.raises(InvalidOptionError, match=expected):
        attempt_context().continue_with(target, 7)


def test_stop_calls_its_callback_once_and_keeps_the_first_reason() -> None:
    context = attempt_context()
    calls: list[str | None] = []
    context.on_stop(lambda: calls.append(context.cancel_reason))
    assert not context.cancelled
    context.stop(CancelReason.TIMED_OUT)
    context.stop(CancelReason.SHUTDOWN)
    assert (calls, context.cancel_reason) == ([CancelReason.TIMED_OUT], CancelReason.TIMED_OUT)


def test_wait_cancelled_returns_true_after_the_stop() -> None:
    context = attempt_context()
    assert not context.wait_cancelled(timedelta(0))
    context.stop(CancelReason.SHUTDOWN)
    assert context.wait_cancelled(timedelta(0))
