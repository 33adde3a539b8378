"""Jobs of a key run one at a time, even where two claims cannot see each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.settings import QueueSettings
from tests.fixtures.database import both_servers
from tests.fixtures.holders import lock_waiters, until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import PATIENCE, Start, until


def execute(engine: Engine, statement: str, **given: Any) -> None:
    write(engine, statement, given)


@both_servers
@pytest.mark.parametrize("index", ["with the index", "without it"])
def test_concurrent_claims_start_only_one_job_of_an_ordering_key(
    engine: Engine, jobs: Jobs, manual_worker: Any, index: str
) -> None:
    if index == "without it":
        execute(engine, "DROP INDEX uq_job_ordering")
    one, other = manual_worker("one:1"), manual_worker("other:1")
    with Session(engine) as late, ThreadPoolExecutor(1) as thread:
        first = Job("test", ordering_key="k")
        late.add(first)
        late.flush()
        first_id = first.id
        second_id = jobs.add(ordering_key="k")  # it began later, and is visible earlier
        assert [job.id for job in other.claim(commit=False)] == [second_id]
        late.commit()
        claiming = thread.submit(one.claim)  # it sees the first one, due and next, and none that runs
        if index == "without it":
            assert [job.id for job in claiming.result(PATIENCE)] == [first_id]
            other.connection.commit()
            assert set(jobs.statuses().values()) == {JobStatus.RUNNING}
            return
        until_locks_are_waited_for(engine)
        other.connection.commit()
        with pytest.raises(IntegrityError, match="uq_job_ordering"):
            claiming.result(PATIENCE)
        one.connection.rollback()
        assert one.claim() == []
        (mine,) = other.connection.execute(text("SELECT * FROM job WHERE status = 'running'")).all()
        other.complete(mine)
        assert [job.id for job in one.claim()] == [first_id]


@both_servers
def test_a_retrying_job_holds_its_ordering_key_until_it_dies(engine: Engine, jobs: Jobs, manual_worker: Any) -> None:
    first, second = (jobs.add(ordering_key="k", due_in=-9) for _ in range(2))
    other, worker = manual_worker("other:1"), manual_worker("worker:1")
    (failing,) = other.claim()
    assert failing.id == first
    assert worker.claim() == []  # its cursor has passed the second
    other.finish(failing, delay=3600)
    assert worker.claim() == []
    execute(engine, "UPDATE job SET scheduled_at = now() WHERE id = :id", id=first)
    (again,) = other.claim()
    other.finish(again, status="dead", outcome="failed")
    assert [job.id for job in worker.claim()] == [second]


@pytest.mark.slow
@both_servers
def test_deleting_jobs_stamps_the_next_job_of_every_ordering_key_in_one_update(engine: Engine, jobs: Jobs) -> None:
    """For each of them it would walk past all that was deleted of the key with it."""
    odd = ["a,b", 'quo"te', "back\\slash", "ключ", "[1]", " ", "{} null"]
    firsts = [jobs.add(ordering_key=key) for key in odd * 3]
    seconds = [jobs.add(ordering_key=key) for key in odd]
    restored, _ = (jobs.add(ordering_key="kept") for _ in range(2))
    many = [jobs.add(ordering_key=f"{number:0100}") for number in range(250) for _ in range(2)]
    ended, _ = jobs.add(JobStatus.COMPLETED, ordering_key="ended"), jobs.add(ordering_key="ended")
    execute(engine, "UPDATE job SET completed_at = now() - interval '1 hour' WHERE id = :id", id=ended)
    execute(engine, "CREATE SEQUENCE stamped")
    counting = "BEGIN PERFORM nextval(''stamped''); RETURN NULL; END"
    execute(engine, f"CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS '{counting}'")
    execute(engine, "CREATE TRIGGER counted AFTER UPDATE OF changed_xid ON job EXECUTE FUNCTION counted()")
    with engine.begin() as connection:
        delete = text("DELETE FROM job WHERE id = ANY(:ids)")
        with connection.begin_nested() as savepoint:
            connection.execute(delete, {"ids": [restored]})
            savepoint.rollback()
        connection.execute(delete, {"ids": [*firsts, ended]})
        mine = "SELECT id FROM job WHERE changed_xid = pg_current_xact_id() AND status = 'pending'"
        assert set(connection.execute(text(mine)).scalars()) == set(seconds)
        # Sequences are not rolled back: one for the savepoint, one for all the others.
        assert connection.execute(text("SELECT nextval('stamped')")).scalar_one() == 2 + 1
        connection.execute(delete, {"ids": many[::2]})  # with long keys
        assert set(connection.execute(text(mine)).scalars()) == {*seconds, *many[1::2]}
        assert connection.execute(text("SELECT nextval('stamped')")).scalar_one() == 3 + 1 + 1


@pytest.mark.parametrize(
    "ending",
    [
        "UPDATE job SET status = 'cancelled', leased_by = NULL, completed_at = now() WHERE id = :id",
        "DELETE FROM job WHERE id = :id",
    ],
)
def test_a_transaction_that_ended_ordered_jobs_may_alter_the_table(
    engine: Engine, jobs: Jobs, manual_worker: Any, ending: str
) -> None:
    """The next job of a key was once stamped by deferred triggers, before which PostgreSQL refuses to alter the table."""
    first, second = jobs.add(ordering_key="k", due_in=-9), jobs.add(ordering_key="k", due_in=-9)
    other, worker = manual_worker("other:1"), manual_worker("worker:1")
    assert [job.id for job in other.claim()] == [first]
    assert worker.claim() == []  # its cursor has passed the second
    with engine.begin() as connection:
        connection.execute(text(ending), {"id": first})
        connection.execute(text("ALTER TABLE job ADD COLUMN note text"))
    assert [job.id for job in worker.claim()] == [second]


@pytest.mark.parametrize("limit", [None, 5], ids=["alone", "under a limit"])
async def test_a_worker_recovers_from_a_claim_conflict_on_an_ordering_key(
    engine: Engine, jobs: Jobs, manual_worker: Any, start: Start, limit: int | None
) -> None:
    queue, other = JobQueue(), manual_worker("other:1")
    jobs.add_worker("other:1")

    @queue.handler("test")
    async def work() -> None: ...

    call(engine, upsert_queue, QueueSettings(name="default", global_concurrency=limit))
    with Session(engine) as late:
        first = Job("test", ordering_key="k")
        late.add(first)
        late.flush()
        first_id = first.id
        second_id = jobs.add(ordering_key="k")
        (mine,) = other.claim(commit=False)
        assert mine.id == second_id
        late.commit()
    async with start(queue) as log:
        await until(lambda: lock_waiters(engine) > 0, description="its claim waits at the index")
        other.connection.commit()
        other.complete(mine)
        await until(lambda: jobs.status(first_id) is JobStatus.COMPLETED, description="it runs what is next")
    assert not log.of(ComponentFailed)
