"""Whoever lets an ordering key go, and however late: workers that passed its next job over find it, without being told."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.operations import cancel_jobs
from sa_jobqueue.policies.fairness import part_of
from sa_jobqueue.worker.claim.claims import Claims
from sa_jobqueue.worker.claim.floors import Lane
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.scout import Scout
from sa_jobqueue.worker.claim.turns import turn_of
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

HOUR = 3600
END = "UPDATE job SET status = :status, leased_by = NULL, leased_until = NULL, completed_at = now() WHERE id = :id"
PUT = """INSERT INTO job
    (id, type_name, chain_id, chain_type_name, ordering_key, skip_while_retrying, scheduled_at, created_at)
  SELECT id, 'test', id, 'test', :key, :aside, now() - :due * interval '1 s', now() - :age * interval '1 s'
  FROM (SELECT gen_random_uuid() AS id) AS made"""
TAKE_OUT = """DELETE FROM job WHERE id = (SELECT id FROM job WHERE status IN ('pending', 'running')
  ORDER BY id OFFSET :place LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"""


def execute(engine: Engine, statement: str, **given: Any) -> list[Any]:
    with engine.begin() as connection:
        result = connection.execute(text(statement), given)
        return list(result.scalars()) if result.returns_rows else []


@both_servers
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 40))])
def test_whatever_ends_is_put_back_or_taken_out_the_next_of_its_key_is_found(
    engine: Engine, jobs: Jobs, hands: Any, seed: int
) -> None:
    """Nothing here ever drops the floors for safety's sake: what they pass over stays where it is."""
    chance = random.Random(seed)
    workers = [hands("one:1"), hands("other:1")]
    running: dict[UUID, tuple[Any, Any]] = {}
    late = [engine.connect() for _ in range(3)]

    def put(connection: Connection) -> None:
        given = {"key": chance.choice("abcd"), "aside": chance.choice((True, None)), "due": chance.randrange(100)}
        connection.execute(text(PUT), given | {"age": chance.randrange(100)})

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
                # It sees what was there at its end, and is seen only at its commit: others look meanwhile.
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
            for gone in execute(engine, TAKE_OUT, place=chance.randrange(8)):
                running.pop(gone, None)
        elif step < 0.75 or not running:
            worker = chance.choice(workers)
            taken = worker.claim(chance.randrange(1, 5), behind=worker.floors.is_cold or chance.random() < 0.6)
            running |= {job.id: (worker, job) for job in taken}
        else:
            end(chance.choice(list(running)))
    for writer in late:
        writer.commit()
        writer.close()
    for worker, job in running.values():
        worker.complete(job)
    execute(engine, "UPDATE job SET scheduled_at = now() WHERE status = 'pending' AND scheduled_at > now()")
    last = workers[seed % 2]  # alone: whatever it was that passed a job over finds it
    while taken := last.claim(3):
        last.complete(*taken)
    assert JobStatus.PENDING not in jobs.statuses().values()


@both_servers
def test_an_end_that_did_not_see_the_next_job_lets_it_be_found_all_the_same(engine: Engine, jobs: Jobs, hands: Any) -> None:
    """A trigger that wrote to the next job would have had none to write to."""
    other, worker = hands("other:1"), hands("worker:1")
    first = jobs.add(ordering_key="k", due_in=-9)
    (mine,) = other.claim()
    other.complete(mine, commit=False)
    second = jobs.add(ordering_key="k", due_in=-9)
    assert worker.claim() == []  # it passes the second over, for the first still runs
    other.connection.commit()
    assert [job.id for job in worker.claim()] == [second]
    assert jobs.status(first) is JobStatus.COMPLETED


@both_servers
def test_a_job_that_is_put_back_lets_an_earlier_one_go_first(jobs: Jobs, hands: Any) -> None:
    other, worker = hands("other:1"), hands("worker:1")
    jobs.add(ordering_key="k", due_in=-9)
    (mine,) = other.claim()
    earlier = jobs.add(ordering_key="k", due_in=-9, created_at=mine.created_at - timedelta(seconds=1))
    assert worker.claim() == []
    other.finish(mine, delay=HOUR)
    assert [job.id for job in worker.claim()] == [earlier]


@both_servers
def test_the_next_of_a_key_is_found_without_being_written(engine: Engine, jobs: Jobs, hands: Any) -> None:
    """A version of it for every end was a quarter of what such a job cost."""
    ids = [jobs.add(ordering_key="k", due_in=-9) for _ in range(4)]
    other, worker = hands("other:1"), hands("worker:1")
    before = {job_id: jobs.get(job_id)["changed_xid"] for job_id in ids}
    other.complete(*other.claim())
    with Session(engine) as session, session.begin():
        cancel_jobs(session, [ids[1]])
    assert [jobs.get(job_id)["changed_xid"] for job_id in ids[2:]] == [before[job_id] for job_id in ids[2:]]
    assert [job.id for job in worker.claim()] == [ids[2]]


@both_servers
def test_one_that_is_pruned_as_soon_as_it_has_ended_has_let_its_key_go(engine: Engine, jobs: Jobs, hands: Any) -> None:
    first, second = (jobs.add(ordering_key="k", due_in=-9) for _ in range(2))
    other, worker = hands("other:1"), hands("worker:1")
    (mine,) = other.claim()
    assert mine.id == first
    assert worker.claim() == []  # it passes the second over
    other.complete(mine)
    assert execute(engine, "DELETE FROM job WHERE id = :id RETURNING id", id=first) == [first]
    assert [job.id for job in worker.claim()] == [second]


def group(queue: str, *types: str) -> Group:
    return Group([queue], types, UUID(int=0), room=None, limits=None, fair=True)


async def test_each_of_several_groups_finds_it_from_the_oldest_of_their_snapshots(
    jobs: Jobs, hands: Any, connection: AsyncConnection
) -> None:
    groups = [group("default", "send"), group("default", "count")]
    claims = Claims(Job, worker_id="worker:1", grace=timedelta(seconds=15), clock=lambda: 0.0)

    async def claim(*looks: bool) -> list[Any]:
        turns = [turn_of(one, 5, looks=looks) for one, looks in zip(groups, looks, strict=True)]
        return [job.id for _, taken in await claims.take(connection, turns, 10) for job in taken]

    other = hands("other:1")
    of_send = [jobs.add(type_name="send", ordering_key="s", due_in=-9) for _ in range(2)]
    of_count = [jobs.add(type_name="count", ordering_key="c", due_in=-9) for _ in range(2)]
    mine = other.claim(types=("send", "count"))
    assert {job.id for job in mine} == {of_send[0], of_count[0]}
    assert await claim(True, True) == []  # the floors of both have passed the others
    other.complete(*mine)
    assert await claim(True, False) == [of_send[1]]  # its snapshot is newer now than that of the other group
    assert await claim(True, True) == [of_count[1]]


async def test_of_a_part_that_was_read_to_its_end_a_look_tells_that_a_key_was_let_go(
    engine: Engine, jobs: Jobs, hands: Any, connection: AsyncConnection
) -> None:
    part = part_of("mail", "1")
    other, mail = hands("other:1", queues=(part,)), group("mail", "test")
    first, second = (jobs.add(queue="mail", fairness_key="1", ordering_key="k", due_in=-9) for _ in range(2))
    (mine,) = other.claim()
    assert mine.id == first
    scout = Scout(Job, ["test"])
    with engine.connect() as now:
        xmax = now.execute(text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")).scalar_one()
    scout._seen, scout._after, scout._survey_at = (xmax, []), None, 1e9  # so that it is not found otherwise
    await scout.look(connection, [mail], 0.0, lambda: 0.0)
    assert not mail.parts.is_ready
    assert mail.parts.next_at is None
    other.complete(mine)
    await scout.look(connection, [mail], 1.0, lambda: 1.0)
    mail.parts.wake(1.0)
    assert mail.parts.names() == [part]
    assert mail.floors.floor_of(Lane(part, 0))[0] <= jobs.get(second)["scheduled_at"]
