"""However an ordering key is released, and however late: workers whose cursors passed its next job find it."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.operations import cancel_jobs
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call

HOUR = 3600
END = "UPDATE job SET status = :status, leased_by = NULL, leased_until = NULL, completed_at = now() WHERE id = :id"
PUT = """INSERT INTO job
    (id, type_name, chain_id, chain_type_name, ordering_key, scheduled_at, created_at)
  SELECT id, 'test', id, 'test', :key, now() - :due * interval '1 s', now() - :age * interval '1 s'
  FROM (SELECT gen_random_uuid() AS id) AS made"""
TAKE_OUT = """DELETE FROM job WHERE id = (SELECT id FROM job WHERE status IN ('pending', 'running')
  ORDER BY id OFFSET :place LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"""


def execute(engine: Engine, statement: str, **given: Any) -> list[Any]:
    with engine.begin() as connection:
        result = connection.execute(text(statement), given)
        return list(result.scalars()) if result.returns_rows else []


@pytest.mark.slow
@both_servers
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 40))])
def test_the_next_job_of_an_ordering_key_is_found_after_any_random_change(
    engine: Engine, jobs: Jobs, manual_worker: Any, seed: int
) -> None:
    """There is no full scan here: jobs behind the cursors are found by catch-up alone."""
    chance = random.Random(seed)
    workers = [manual_worker("one:1"), manual_worker("other:1")]
    running: dict[UUID, tuple[Any, Any]] = {}
    late = [engine.connect() for _ in range(3)]

    def put(connection: Connection) -> None:
        parameters = {"key": chance.choice("abcd"), "due": chance.randrange(100)}
        connection.execute(text(PUT), parameters | {"age": chance.randrange(100)})

    def end(job_id: UUID) -> None:
        worker, job = running.pop(job_id)
        match chance.randrange(5):
            case 0:
                worker.complete(job)
            case 1:
                worker.finish(job, delay=chance.choice((0, HOUR)))
            case 2:
                worker.finish(job, status="dead", outcome="failed")
            case 3:
                execute(engine, END, id=job_id, status="cancelled")
            case _:
                # It sees what was there at its end, and is seen only at its commit: others claim meanwhile.
                chance.choice(late).execute(text(END), {"id": job_id, "status": "completed"})

    for _ in range(70):
        step = chance.random()
        if step < 0.2:
            with engine.begin() as connection:
                put(connection)
        elif step < 0.3:
            put(chance.choice(late))
        elif step < 0.4:
            chance.choice(late).commit()
        elif step < 0.45:
            for removed in execute(engine, TAKE_OUT, place=chance.randrange(8)):
                running.pop(removed, None)
        elif step < 0.75 or not running:
            worker = chance.choice(workers)
            claimed = worker.claim(chance.randrange(1, 5), catch_up=chance.random() < 0.6)
            running |= {job.id: (worker, job) for job in claimed}
        else:
            end(chance.choice(list(running)))
    for writer in late:
        writer.commit()
        writer.close()
    for worker, job in running.values():
        worker.complete(job)
    execute(engine, "UPDATE job SET scheduled_at = now() WHERE status = 'pending' AND scheduled_at > now()")
    last = workers[seed % 2]  # alone: whatever it was that passed a job over finds it
    while claimed := last.claim(3):
        last.complete(*claimed)
    assert JobStatus.PENDING not in jobs.statuses().values()


@both_servers
def test_the_next_job_of_an_ordering_key_is_found_without_an_update(engine: Engine, jobs: Jobs, manual_worker: Any) -> None:
    """A version of it for every end was a quarter of what such a job cost."""
    ids = [jobs.add(ordering_key="k", due_in=-9) for _ in range(4)]
    other, worker = manual_worker("other:1"), manual_worker("worker:1")
    before = {job_id: jobs.get(job_id)["changed_xid"] for job_id in ids}
    other.complete(*other.claim())
    call(engine, cancel_jobs, [ids[1]])
    assert [jobs.get(job_id)["changed_xid"] for job_id in ids[2:]] == [before[job_id] for job_id in ids[2:]]
    assert [job.id for job in worker.claim()] == [ids[2]]


@both_servers
def test_a_job_deleted_right_after_its_completion_releases_its_ordering_key(
    engine: Engine, jobs: Jobs, manual_worker: Any
) -> None:
    first, second = (jobs.add(ordering_key="k", due_in=-9) for _ in range(2))
    other, worker = manual_worker("other:1"), manual_worker("worker:1")
    (mine,) = other.claim()
    assert mine.id == first
    assert worker.claim() == []  # it passes the second over
    other.complete(mine)
    assert execute(engine, "DELETE FROM job WHERE id = :id RETURNING id", id=first) == [first]
    assert [job.id for job in worker.claim()] == [second]


def test_the_next_job_of_a_released_key_is_found_in_its_fairness_key(jobs: Jobs, manual_worker: Any) -> None:
    first, second = (jobs.add(queue="mail", fairness_key="1", ordering_key="k", due_in=-9) for _ in range(2))
    other, worker = manual_worker("other:1", queues=("mail",)), manual_worker("worker:1", queues=("mail",))
    (mine,) = other.claim()
    assert mine.id == first
    assert worker.claim() == []  # its cursor has passed the second
    other.complete(mine)
    assert [job.id for job in worker.claim()] == [second]
