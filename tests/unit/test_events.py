"""The event bus: subscribers, events that are not created without one, and errors of a subscriber."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import events as told
from sa_jobqueue.observe.metrics.tally import ATTEMPTS, Tally
from sa_jobqueue.worker import logs

DONE = [told.JobCompleted(str(number), "mail", 1, timedelta(seconds=number)) for number in range(3)]
STARTED = told.JobStarted("7", "mail", 1)
CANCELLED = told.JobCancelled("7", "mail", 1)


def test_who_takes_many_is_told_once_and_the_others_one_by_one_in_order() -> None:
    bus, alone, together = told.EventBus(), list[told.Event](), list[Sequence[told.Event]]()
    bus.subscribe(alone.append)
    bus.subscribe(alone.append, kinds=[told.JobCompleted], many=together.append)
    bus.emit_many(DONE)
    bus.emit_many([])
    assert (alone, together) == (DONE, [DONE])
    bus.emit(DONE[0])
    assert alone == [*DONE, DONE[0], DONE[0]]


def test_what_nobody_wants_need_not_be_made(caplog: pytest.LogCaptureFixture) -> None:
    bus = told.EventBus()
    assert not bus.has_subscribers(told.JobStarted)
    logs.subscribe(bus)
    tally = Tally(["mail"])
    tally.subscribe_to(bus)
    caplog.set_level(logging.INFO, logs.LOGGER_NAME)
    assert not bus.has_subscribers(told.JobStarted)  # not counted by a metric, and not logged at this level
    assert bus.has_subscribers(told.JobCompleted)
    caplog.set_level(logging.DEBUG, logs.LOGGER_NAME)  # changed while it runs
    assert bus.has_subscribers(told.JobStarted)
    end = bus.subscribe(lambda event: None, kinds=[told.JobStarted])
    caplog.set_level(logging.INFO, logs.LOGGER_NAME)
    assert bus.has_subscribers(told.JobStarted)
    end()
    assert not bus.has_subscribers(told.JobStarted)


def test_a_tally_counts_the_same_whether_told_together_or_one_by_one() -> None:
    tallies = [Tally(["mail"]), Tally(["mail"])]
    for tally, alone in zip(tallies, (True, False), strict=True):
        bus = told.EventBus()
        tally.subscribe_to(bus)
        for event in DONE if alone else ():
            bus.emit(event)
        bus.emit_many([] if alone else DONE)
        bus.emit(CANCELLED)
        bus.emit(STARTED)
    for tally in tallies:
        assert sorted(tally.of(ATTEMPTS)) == [(("mail", "cancelled"), 1), (("mail", "completed"), 3)]
        assert tally.completed["mail"].seconds == 3
        assert tally.completed["mail"].buckets == tallies[0].completed["mail"].buckets
        assert sum(tally.completed["mail"].buckets) == 3


def test_a_subscriber_that_raises_is_logged_and_the_next_one_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        raise ZeroDivisionError

    bus, heard = told.EventBus(), list[told.Event]()
    bus.subscribe(fail)
    bus.subscribe(fail, many=fail)
    bus.subscribe(heard.append)
    bus.emit_many(DONE[:2])
    bus.emit(CANCELLED)
    assert heard == [*DONE[:2], CANCELLED]
    words = [record.getMessage() for record in caplog.records]
    assert words == ["subscriber failed on JobCompleted"] * 3 + ["subscriber failed on JobCancelled"] * 2


def test_what_ends_a_subscription_may_be_called_again_and_ends_no_other() -> None:
    bus, heard = told.EventBus(), list[Any]()
    ends = [bus.subscribe(heard.append), bus.subscribe(heard.append), bus.on_attempt_start(heard.append)]
    bus.on_attempt_start(heard.append)
    for end in ends[::2]:
        end()
        end()
    bus.emit(STARTED)
    bus.begin("attempt")
    assert heard == [STARTED, "attempt"]
