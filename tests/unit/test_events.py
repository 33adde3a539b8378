"""The event bus: subscribers, events that are not created without one, and errors of a subscriber."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import events
from sa_jobqueue.observe.metrics.tally import ATTEMPTS, Tally
from sa_jobqueue.worker import logs

DONE = [events.JobCompleted(str(number), "mail", 1, timedelta(seconds=number)) for number in range(3)]
STARTED = events.JobStarted("7", "mail", 1)
CANCELLED = events.JobCancelled("7", "mail", 1)


def test_batch_subscribers_get_one_call_and_others_one_per_event_in_order() -> None:
    bus, alone, together = events.EventBus(), list[events.Event](), list[Sequence[events.Event]]()
    bus.subscribe(alone.append)
    bus.subscribe(alone.append, kinds=[events.JobCompleted], many=together.append)
    bus.emit_many(DONE)
    bus.emit_many([])
    assert (alone, together) == (DONE, [DONE])
    bus.emit(DONE[0])
    assert alone == [*DONE, DONE[0], DONE[0]]


def test_the_bus_has_no_subscribers_for_events_neither_counted_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    bus = events.EventBus()
    assert not bus.has_subscribers(events.JobStarted)
    logs.subscribe(bus)
    tally = Tally(["mail"])
    tally.subscribe_to(bus)
    caplog.set_level(logging.INFO, logs.LOGGER_NAME)
    assert not bus.has_subscribers(events.JobStarted)  # not counted by a metric, and not logged at this level
    assert bus.has_subscribers(events.JobCompleted)
    caplog.set_level(logging.DEBUG, logs.LOGGER_NAME)  # changed while it runs
    assert bus.has_subscribers(events.JobStarted)
    end = bus.subscribe(lambda event: None, kinds=[events.JobStarted])
    caplog.set_level(logging.INFO, logs.LOGGER_NAME)
    assert bus.has_subscribers(events.JobStarted)
    end()
    assert not bus.has_subscribers(events.JobStarted)


def test_a_tally_counts_batched_and_single_events_alike() -> None:
    tallies = [Tally(["mail"]), Tally(["mail"])]
    for tally, alone in zip(tallies, (True, False), strict=True):
        bus = events.EventBus()
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


def test_a_failing_subscriber_is_logged_and_the_next_one_still_called(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        raise ZeroDivisionError

    bus, received = events.EventBus(), list[events.Event]()
    bus.subscribe(fail)
    bus.subscribe(fail, many=fail)
    bus.subscribe(received.append)
    bus.emit_many(DONE[:2])
    bus.emit(CANCELLED)
    assert received == [*DONE[:2], CANCELLED]
    words = [record.getMessage() for record in caplog.records]
    assert words == ["subscriber failed on JobCompleted"] * 3 + ["subscriber failed on JobCancelled"] * 2


def test_unsubscribing_twice_removes_no_other_subscription() -> None:
    bus, received = events.EventBus(), list[Any]()
    ends = [bus.subscribe(received.append), bus.subscribe(received.append), bus.on_attempt_start(received.append)]
    bus.on_attempt_start(received.append)
    for end in ends[::2]:
        end()
        end()
    bus.emit(STARTED)
    bus.begin("attempt")
    assert received == [STARTED, "attempt"]
