"""No job is missed: a worker's cursors, backlog and catch-ups against a model of the database; each part left out in turn.

The parts are the worker's own; `tests/fixtures/claim_protocol.py` is the model.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from sa_jobqueue.worker.claim.backlog import LINGER
from tests.fixtures.claim_protocol import FLOOD, MOST, NEW, A, B, Queue, Row, Story

TestNoJobIsMissed = Queue.TestCase


def by_id(story: Story) -> None:
    story.work()
    story.add(A)


def in_progress(story: Story) -> None:
    story.add(A, commits=False)
    story.work()
    story.queue._end(list(story.queue.open))


def since(story: Story) -> None:
    story.work()
    story.add(A)


def released(story: Story) -> None:
    first, _ = story.add(A, A, key="k")
    story.work()
    story.queue._end([story.change(first, status="completed", released_key=True)])


def new_lane(story: Story) -> None:
    story.work()
    story.add(NEW)


def forgotten(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=int(LINGER) + 1)
    story.queue._drain(4)
    assert A not in story.queue.cursors.of_lane
    story.add(A)


def flood(story: Story) -> None:
    story.work()
    story.add(*[A] * FLOOD, *[B] * FLOOD)


def flood_before_a_lane(story: Story) -> None:
    story.work()
    story.add(*[A] * FLOOD, *[B] * (MOST - FLOOD))
    story.add(NEW)


def flood_of_a_lane(story: Story) -> None:
    story.work()
    for row in story.queue.rows:
        row.status = "completed"
    story.add(*[A] * (FLOOD + 1))


def without_capacity(story: Story) -> None:
    story.work()
    story.add(A)
    story.catch_up()
    story.add(B)
    story.catch_up()
    story.claim(B)


def changed(story: Story) -> None:
    story.work()
    (late,) = story.add(A)
    story.catch_up()
    story.queue._end([story.change(late, lane=B)])
    story.claim(A, late=1)


def overlapping(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=1)
    story.add(A, ago=0)
    story.catch_up()
    story.queue.tick(seconds=1)
    story.add(A, ago=1, commits=False)

    def between_statements() -> None:
        story.claim()
        story.queue._end(list(story.queue.open))

    if story.queue.left_out == "claims and catch-ups do not overlap":
        story.queue.between_statements = between_statements
        story.catch_up()
        story.queue.between_statements = lambda: None
    else:
        between_statements()
        story.catch_up()


def clock(story: Story) -> None:
    story.work()
    story.queue.tick(seconds=-10)
    story.add(A, ago=-5)
    story.catch_up()
    story.claim(late=1)
    story.queue.now += timedelta(seconds=10)  # before a tick notices


def next_job(story: Story) -> None:
    story.add(A, ago=-5)
    story.work()
    story.queue.tick(seconds=6)


def for_later(story: Story) -> None:
    story.work()
    story.add(A, ago=-5)
    story.catch_up()
    story.queue.tick(seconds=6)


def skipped(story: Story) -> None:
    (row,) = story.add(A)
    xid = story.change(row)
    story.work()
    story.queue._end([xid], commits=False)
    if story.queue.left_out != "the periodic full scan":
        story.full_scan()


def quarantined(story: Story) -> None:
    (row,) = story.add(A)
    story.queue.excluded.add(row.id)
    story.work()
    story.queue.try_again()


MECHANISMS = {
    "late arrivals by id": by_id,
    "transactions in progress": in_progress,
    "transactions since": since,
    "released ordering keys": released,
    "new lanes": new_lane,
    "a lane that was forgotten": forgotten,
    "the answer to a flood": flood,
    "a full scan after a flood": flood_before_a_lane,
    "the answer to a flood of a lane": flood_of_a_lane,
    "late arrivals without capacity": without_capacity,
    "late arrivals that have changed": changed,
    "claims and catch-ups do not overlap": overlapping,
    "the clock": clock,
    "the next job of a lane": next_job,
    "a job scheduled for later": for_later,
    "the periodic full scan": skipped,
    "a full scan after quarantine": quarantined,
}


def left_after(part: str, left_out: str) -> list[Row]:
    """Return what could be started and was not after a story, and what should not have been."""
    story = Story(left_out)
    MECHANISMS[part](story)
    story.queue._drain(4)
    return story.queue._startable() + story.queue.taken_without_capacity


@pytest.mark.parametrize("part", MECHANISMS)
def test_each_mechanism_of_the_claim_protocol_is_needed(part: str) -> None:
    assert not left_after(part, left_out="")
    assert left_after(part, left_out=part)
