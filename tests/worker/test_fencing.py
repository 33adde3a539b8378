"""An attempt is owned by one worker: what a worker writes of a job it lost changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Row, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, cancel_jobs
from sa_jobqueue.statements import completions
from tests.fixtures.database import both_servers_swept
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import PATIENCE, Hands, wait_until

pytestmark = both_servers_swept
MakeHands = Callable[..., Hands]


Write = Callable[[Hands, Row[Any]], set[Any]]


def _complete_one(worker: Hands, job: Row[Any]) -> set[Any]:
    given = {"job_id": job.id, "job_attempt": job.attempt, "job_output": "1", "worker_id": worker.worker_id}
    done = set(worker.connection.execute(completions.complete_one(worker.model), given).scalars())
    worker.connection.commit()
    return done


WRITES: dict[str, Write] = {
    "complete": lambda worker, job: worker.complete(job),
    "complete in a session": _complete_one,
    "fail": lambda worker, job: worker.finish(job),
    "die": lambda worker, job: worker.finish(job, status="dead"),
    "snooze": lambda worker, job: worker.finish(job, outcome="snoozed", uncounted=1),
    "release": lambda worker, job: worker.finish(job, outcome="released", uncounted=1),
    "extend": lambda worker, job: worker.extend(job, timedelta(hours=1)),
}


def _claim_again(worker: Hands) -> Row[Any]:
    found: list[Row[Any]] = []

    def claimed() -> bool:
        found.extend(worker.claim())
        return bool(found)

    wait_until(claimed, what="the job is due again")
    return found[0]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_of_an_attempt_rescued_changes_nothing(jobs: Jobs, hands: MakeHands, write: Write) -> None:
    jobs.add_worker("old:1", silent_for=60)
    jobs.add_worker("new:1")
    job_id = jobs.add()
    old, new = hands("old:1"), hands("new:1")
    (first,) = old.claim()
    assert len(new.rescue()) == 1
    assert write(old, first) == set()  # while it is pending
    second = _claim_again(new)
    before = jobs.get(job_id)
    assert write(old, first) == set()  # while it is another's
    assert jobs.get(job_id) == before
    assert len(jobs.attempts(job_id)) == 1  # the take-back's own
    assert write(new, second) == {job_id}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_worker_that_claimed_its_lost_job_again_cannot_end_the_old_attempt(
    jobs: Jobs, hands: MakeHands, write: Write
) -> None:
    jobs.add_worker("same:1", silent_for=60)
    job_id = jobs.add()
    same = hands("same:1")
    (first,) = same.claim()
    same.rescue()
    second = _claim_again(same)
    assert (first.attempt, second.attempt) == (1, 2)
    assert write(same, first) == set()  # same id, same worker, running: only the attempt differs
    assert jobs.get(job_id)["attempt"] == 2
    assert write(same, second) == {job_id}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_attempt_handed_to_another_worker_by_hand_is_that_workers(
    engine: Engine, jobs: Jobs, hands: MakeHands, write: Write
) -> None:
    job_id = jobs.add()
    mine, other = hands("mine:1"), hands("other:1")
    (job,) = mine.claim()
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET leased_by = 'other:1'"))
    assert write(mine, job) == set()  # same job, same attempt, running: only the owner differs
    assert write(other, job) == {job_id}


def test_a_completion_under_way_makes_the_sweeper_pass(jobs: Jobs, hands: MakeHands) -> None:
    jobs.add_worker("slow:1", silent_for=60)
    job_id = jobs.add()
    slow, rescuer = hands("slow:1"), hands("rescuer:1")
    (job,) = slow.claim()
    slow.complete(job, commit=False)
    assert rescuer.rescue() == []
    slow.connection.commit()
    assert jobs.status(job_id) is JobStatus.COMPLETED


def test_a_completion_in_a_session_waits_for_the_sweeper_and_then_finds_itself_fenced(jobs: Jobs, hands: MakeHands) -> None:
    jobs.add_worker("slow:1", silent_for=60)
    job_id = jobs.add()
    slow, rescuer = hands("slow:1"), hands("rescuer:1")
    (job,) = slow.claim()
    assert len(rescuer.rescue(commit=False)) == 1
    done: list[set[Any]] = []
    waiting = threading.Thread(target=lambda: done.append(_complete_one(slow, job)))
    waiting.start()
    wait_until(lambda: _is_waiting(rescuer), what="the completion waits for the row")
    rescuer.connection.commit()
    waiting.join(timeout=PATIENCE)
    assert done == [set()]
    assert jobs.status(job_id) is JobStatus.PENDING


def _is_waiting(observer: Hands) -> bool:
    return bool(observer.connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def test_completions_of_many_pass_a_row_that_somebody_holds(engine: Engine, jobs: Jobs, hands: MakeHands) -> None:
    ids = jobs.add_many(4)
    worker = hands()
    taken = worker.claim()
    with Session(engine) as session:
        cancel_jobs(session, ids[:1])  # and then this transaction takes its time
        assert worker.complete(*taken) == set(ids[1:])
        assert worker.finish(next(job for job in taken if job.id == ids[0])) == set()
        session.rollback()
    assert worker.complete(*taken) == {ids[0]}


def test_a_cancellation_fences_the_attempt(engine: Engine, jobs: Jobs, hands: MakeHands) -> None:
    job_id = jobs.add()
    worker = hands()
    (job,) = worker.claim()
    with Session(engine) as session, session.begin():
        assert cancel_jobs(session, [job_id]).ids == [job_id]
    assert worker.complete(job) == set()
    assert worker.finish(job) == set()
    assert jobs.status(job_id) is JobStatus.CANCELLED
    assert [row["outcome"] for row in jobs.attempts(job_id)] == ["cancelled"]


def test_some_lost_among_many_spoil_nothing_for_the_others(jobs: Jobs, hands: MakeHands, engine: Engine) -> None:
    ids = jobs.add_many(6)
    worker = hands()
    taken = worker.claim()
    with Session(engine) as session, session.begin():
        cancel_jobs(session, ids[:2])
    assert worker.complete(*taken, output='{"n": 1}') == set(ids[2:])
    assert {jobs.get(job_id)["output"]["n"] for job_id in ids[2:]} == {1}


def test_the_last_lost_attempt_is_a_dead_letter_that_names_the_worker(jobs: Jobs, hands: MakeHands) -> None:
    jobs.add_worker("gone:1", silent_for=60)
    job_id = jobs.add(max_attempts=1)
    hands("gone:1").claim()
    (taken,) = hands("rescuer:1").rescue()
    assert (taken.id, taken.status, taken.worker_id) == (job_id, "dead", "gone:1")
    (letter,) = jobs.letters(job_id)
    assert (letter["reason"], letter["error"]["worker"], letter["attempts"]) == ("lost", "gone:1", 1)
    (attempt,) = jobs.attempts(job_id)
    assert (attempt["outcome"], attempt["worker_id"]) == ("lost", "gone:1")


def test_jobs_of_a_living_worker_are_left_unless_their_own_lease_ran_out(
    jobs: Jobs, hands: MakeHands, engine: Engine
) -> None:
    jobs.add_worker("alive:1")
    calm, overdue = jobs.add(), jobs.add(timeout=timedelta(seconds=1))
    hands("alive:1").claim()
    rescuer = hands("rescuer:1")
    assert rescuer.rescue() == []
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET leased_until = now() - interval '1s' WHERE id = :id"), {"id": overdue})
    assert [row.id for row in rescuer.rescue()] == [overdue]
    assert jobs.status(calm) is JobStatus.RUNNING


def test_jobs_whose_worker_has_no_row_are_taken_by_the_rarer_sweep(jobs: Jobs, hands: MakeHands) -> None:
    job_id = jobs.add()
    hands("nobody:1").claim()
    rescuer = hands("rescuer:1")
    assert rescuer.rescue() == []
    assert [row.id for row in rescuer.rescue(orphans=True)] == [job_id]
