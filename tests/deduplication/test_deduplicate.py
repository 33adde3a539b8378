"""At most one open chain has a key, whatever the concurrency; finding one poisons nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, Deduplicate, Enqueued, Job, JobQueue, JobStatus, Worker, enqueue, enqueue_many
from sa_jobqueue.errors import ConflictError
from sa_jobqueue.operations import DeadLetterFilter, redrive_dead_letters
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.variants import variants
from tests.fixtures.workers import PATIENCE, quick, wait_until

pytestmark = both_servers
Sessions = sessionmaker[Session]
KEY = Deduplicate("k")


def _waiting(engine: Engine) -> int:
    with engine.connect() as connection:
        count: int = connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one()
        return count


def test_a_duplicate_enqueue_returns_the_existing_job_and_keeps_the_session_usable(sessions: Sessions, jobs: Jobs) -> None:
    with sessions.begin() as session:
        first, outcome = enqueue(session, Job("test", {"n": 1}), deduplicate=KEY)
        again, made_again = enqueue(session, Job("test", {"n": 2}), deduplicate=KEY)
        other_job, other_made = enqueue(session, Job("other"), deduplicate=KEY)  # a key counts within its type
        session.add(Job("test"))
    assert (outcome, made_again, other_made) == (Enqueued.CREATED, Enqueued.EXISTING, Enqueued.CREATED)
    assert again is first
    assert other_job is not first
    assert jobs.count() == 3


def test_adding_a_job_with_a_taken_key_raises_integrity_error(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(Job("test", deduplication_key="k"))
    with pytest.raises(IntegrityError, match="uq_job_deduplication"), sessions.begin() as session:
        session.add(Job("test", deduplication_key="k"))


@pytest.mark.slow
@pytest.mark.parametrize("scope", variants(["open", "any"], default=["open"]))
def test_of_concurrent_enqueues_of_a_key_exactly_one_creates_the_job(sessions: Sessions, jobs: Jobs, scope: Any) -> None:
    together = threading.Barrier(8)

    def one(key: int) -> tuple[Any, Enqueued]:
        together.wait(PATIENCE)
        with sessions.begin() as session:
            existing, outcome = enqueue(session, Job("test"), deduplicate=Deduplicate(f"k{key}", scope=scope))
            return existing.id, outcome

    with ThreadPoolExecutor(8) as threads:
        for key in range(25):
            results = list(threads.map(one, [key] * 8))
            assert sum(outcome is Enqueued.CREATED for _, outcome in results) == 1
            assert len({job_id for job_id, _ in results}) == 1
    assert jobs.count() == 25


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_second_enqueue_of_a_key_waits_for_the_first_transaction(
    engine: Engine, sessions: Sessions, jobs: Jobs, commits: bool
) -> None:
    made_by_second: list[Enqueued] = []

    def second() -> None:
        made_by_second.append(call(sessions, enqueue, Job("test"), deduplicate=KEY)[1])

    with sessions() as first:
        assert enqueue(first, Job("test"), deduplicate=KEY)[1] is Enqueued.CREATED
        waiting = threading.Thread(target=second)
        waiting.start()
        wait_until(lambda: _waiting(engine) == 1, description="the second waits")
        first.commit() if commits else first.rollback()
        waiting.join(PATIENCE)
    assert made_by_second == [Enqueued.EXISTING if commits else Enqueued.CREATED]
    assert jobs.count() == 1


def test_a_job_added_without_the_lock_is_found_as_existing(engine: Engine, sessions: Sessions) -> None:
    results: list[tuple[Any, Enqueued]] = []

    def enqueue_with_the_lock() -> None:
        with sessions.begin() as session:
            job, outcome = enqueue(session, Job("test"), deduplicate=KEY)
            results.append((job.id, outcome))
            session.add(Job("test"))  # the session is not poisoned

    with sessions() as without_lock:
        bypass = Job("test", deduplication_key="k")
        without_lock.add(bypass)
        without_lock.flush()
        waiting = threading.Thread(target=enqueue_with_the_lock)
        waiting.start()
        wait_until(lambda: _waiting(engine) == 1, description="the polite one waits at the index")
        without_lock.commit()
        waiting.join(PATIENCE)
        assert results == [(bypass.id, Enqueued.EXISTING)]


def test_scope_and_window_decide_whether_an_ended_chain_counts(engine: Engine, sessions: Sessions, jobs: Jobs) -> None:
    old = jobs.add(JobStatus.COMPLETED, deduplication_key="k")
    write(engine, "UPDATE job SET created_at = now() - interval '1 hour'")
    with sessions() as session:
        existing, outcome = enqueue(session, Job("test"), deduplicate=Deduplicate("k", scope="any"))
        assert (existing.id, outcome) == (old, Enqueued.EXISTING)
        wide = Deduplicate("k", scope="any", window=timedelta(hours=2))
        assert enqueue(session, Job("test"), deduplicate=wide)[1] is Enqueued.EXISTING
        narrow = Deduplicate("k", scope="any", window=timedelta(minutes=30))
        assert enqueue(session, Job("test"), deduplicate=narrow)[1] is Enqueued.CREATED
        assert enqueue(session, Job("test"), deduplicate=narrow)[1] is Enqueued.EXISTING  # that one is within it
        session.rollback()
        assert enqueue(session, Job("test"), deduplicate=KEY)[1] is Enqueued.CREATED  # open ones only


def test_concurrent_enqueue_many_calls_with_keys_in_opposite_orders_never_deadlock(sessions: Sessions, jobs: Jobs) -> None:
    together = threading.Barrier(2)

    def enqueue_in(order: list[int]) -> list[Enqueued]:
        together.wait(PATIENCE)
        with sessions.begin() as session:
            new = [Job("test", f"k{n}") for n in order]
            return [outcome for _, outcome in enqueue_many(session, new, deduplicate_by=lambda job: job.input)]

    with ThreadPoolExecutor(2) as threads:
        for _ in range(10):
            up, down = threads.map(enqueue_in, [[*range(20), 3], list(reversed(range(20)))])
    assert jobs.count() == 20
    assert len(up) == 21
    assert len(down) == 20


def test_a_redrive_leaves_jobs_dead_whose_key_an_open_chain_has_and_names_them(sessions: Sessions, jobs: Jobs) -> None:
    dead = [jobs.add(JobStatus.DEAD, deduplication_key=key) for key in ("a", None, "k", "b", None, "b")]
    assert call(sessions, enqueue, Job("test"), deduplicate=KEY)[1] is Enqueued.CREATED
    result = call(sessions, redrive_dead_letters, where=DeadLetterFilter(job_ids=dead), by="ann")
    taken_ids = [dead[2], dead[5]]  # the last has the key of one that was redriven with it
    assert result.ids == [job_id for job_id in dead if job_id not in taken_ids]
    assert [*result.conflicts] == taken_ids
    assert all("uq_job_deduplication" in reason for reason in result.conflicts.values())
    assert [job_id for job_id in dead if jobs.status(job_id) is JobStatus.DEAD] == taken_ids


async def test_a_recurring_job_enqueues_its_successor_from_its_own_completion(engine: Engine, jobs: Jobs) -> None:
    queue = JobQueue()
    runs: list[Enqueued] = []

    @queue.handler("recurs")
    def recurs(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
        key = Deduplicate("nightly", exclude=[ctx.job.chain_id])
        runs.append(enqueue(session, recurs.job({}, delay=timedelta(hours=1)), deduplicate=key)[1])
        runs.append(enqueue(session, recurs.job({}), deduplicate=key)[1])

    call(engine, enqueue, recurs.job({}), deduplicate=Deduplicate("nightly"))
    worker = Worker(queue, engine, options=quick())
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    assert runs == [Enqueued.CREATED, Enqueued.EXISTING]
    assert sorted(jobs.statuses().values()) == [JobStatus.COMPLETED, JobStatus.PENDING]
    with Session(engine) as session:
        open_count = select(func.count()).where(Job.deduplication_key == "nightly", Job.chain_completed_at.is_(None))
        assert session.scalar(open_count) == 1


def test_a_deduplication_key_is_handed_over_only_to_a_created_successor(sessions: Sessions, jobs: Jobs) -> None:
    """Where a chain that has ended counts, none is made, and the job that would hand the key over keeps it."""
    jobs.add(JobStatus.COMPLETED, deduplication_key="k", chain_completed_at=func.now())
    mine = jobs.add(JobStatus.RUNNING, deduplication_key="k")
    handing_over = Deduplicate("k", scope="any", window=timedelta(hours=1), exclude=[mine])
    assert call(sessions, enqueue, Job("test"), deduplicate=handing_over)[1] is Enqueued.EXISTING
    assert call(sessions, enqueue, Job("test"), deduplicate=KEY)[0].id == mine
    assert jobs.count() == 2


@pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("many", [False, True])
def test_a_snapshot_older_than_the_key_holder_raises_a_clear_error(
    engine: Engine, sessions: Sessions, jobs: Jobs, isolation_level: Any, many: bool
) -> None:
    def enqueue_one(session: Session) -> object:
        if many:
            return enqueue_many(session, [Job("test")], deduplicate_by=lambda _: KEY)
        return enqueue(session, Job("test"), deduplicate=KEY)

    with Session(engine.execution_options(isolation_level=isolation_level)) as session:
        session.execute(select(func.count()).select_from(Job))
        call(sessions, enqueue, Job("test"), deduplicate=KEY)
        with pytest.raises(ConflictError, match=rf"'k' .* {isolation_level}, .* retry the transaction"):
            enqueue_one(session)
        session.rollback()
        enqueue_one(session)
        session.commit()
    assert jobs.count() == 1


def _claim(engine: Engine) -> None:
    """Start an attempt of each pending job, in a transaction of its own."""
    claim = "UPDATE job SET status = 'running', attempt = attempt + 1, leased_by = 'w', started_at = now()"
    due = "SELECT id FROM job WHERE status = 'pending' FOR NO KEY UPDATE SKIP LOCKED"
    write(engine, f"{claim} WHERE id IN ({due})")


WAITING, DEBOUNCE = Deduplicate("k", scope="waiting"), Deduplicate.debounce("k")
CLAIMS: list[tuple[Deduplicate, int, Enqueued]] = [
    # Keys of jobs that have begun are given up, then those that have not are read, then locked and changed.
    (WAITING, 1, Enqueued.CREATED),
    (WAITING, 2, Enqueued.CREATED),
    (DEBOUNCE, 1, Enqueued.CREATED),
    (DEBOUNCE, 2, Enqueued.CREATED),
    # The jobs with the keys are read, then changed.
    (Deduplicate("k", replace=["input"]), 1, Enqueued.EXISTING),
    (Deduplicate("k", scope="any", replace=["priority"]), 1, Enqueued.EXISTING),
]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "after", "expected"), CLAIMS)
@pytest.mark.parametrize("many", [False, True])
def test_a_claim_between_its_statements_makes_no_enqueue_violate_the_unique_index(
    many: bool, policy: Deduplicate, expected: Enqueued, after: int, engine: Engine, sessions: Sessions, jobs: Jobs
) -> None:
    """The server would log the violation as an error."""
    first = jobs.add(deduplication_key="k", type_name="test")
    statements, errors = list[str](), list[object]()

    def claim(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "deduplication_key" in statement and "pg_advisory" not in statement:
            statements.append(statement)
            if len(statements) == after:
                _claim(engine)

    session_engine = engine.execution_options()
    event.listen(session_engine, "after_cursor_execute", claim)
    event.listen(session_engine, "handle_error", errors.append)
    with Session(session_engine) as session, session.begin():
        new = Job("test", {"n": 2})
        if many:
            ((existing, outcome),) = enqueue_many(session, [new], deduplicate_by=lambda _: policy)
        else:
            job, outcome = enqueue(session, new, deduplicate=policy)
            existing = job.id
    assert errors == []
    assert jobs.get(first)["status"] == "running"
    assert (outcome, existing == first) == (expected, expected is Enqueued.EXISTING)
    assert jobs.count() == (1 if expected is Enqueued.EXISTING else 2)
