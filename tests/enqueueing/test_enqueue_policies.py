"""Debounce, replace, throttle, follow up: exact whatever claims and others do at the same time, one by one and in bulk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Deduplicate, Enqueued, Job, JobStatus, enqueue, enqueue_many
from sa_jobqueue.errors import ConflictError, InvalidJobError
from tests.fixtures.database import both_servers
from tests.fixtures.holders import lock_waiters, until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import PATIENCE, wait_until

pytestmark = both_servers
Sessions = sessionmaker[Session]
HOUR = timedelta(hours=1)
CREATED, UPDATED, EXISTING = Enqueued
Put = Callable[[Session, Job, Deduplicate], tuple[Any, Enqueued]]


def singly(session: Session, job: Job, policy: Deduplicate) -> tuple[Any, Enqueued]:
    existing, outcome = enqueue(session, job, deduplicate=policy)
    return existing.id, outcome


def in_bulk(session: Session, job: Job, policy: Deduplicate) -> tuple[Any, Enqueued]:
    ((job_id, outcome),) = enqueue_many(session, [job], deduplicate_by=lambda _: policy)
    return job_id, outcome


def unique(session: Session, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Enqueued]]:
    """Enqueue jobs, each with its policy."""
    policies = iter([policy for _, policy in pairs])
    return enqueue_many(session, [job for job, _ in pairs], deduplicate_by=lambda _: next(policies))


each_way = pytest.mark.parametrize("put", [singly, in_bulk])


def _due_in(engine: Engine, job_id: Any) -> float:
    with engine.connect() as connection:
        chosen = text("SELECT extract(epoch FROM scheduled_at - created_at)::float FROM job WHERE id = :id")
        return float(connection.execute(chosen, {"id": job_id}).scalar_one())


@each_way
def test_a_debounce_postpones_the_job_by_at_most_max_wait(engine: Engine, sessions: Sessions, jobs: Jobs, put: Put) -> None:
    policy = Deduplicate("k", replace=["schedule"], max_wait=timedelta(minutes=90))
    ids, outcomes = [], []
    for number in range(3):
        job_id, outcome = call(sessions, put, Job("test", {"n": number}, delay=HOUR, priority=number), policy)
        ids.append(job_id)
        outcomes.append(outcome)
        with engine.begin() as connection:  # half an hour and a minute pass
            connection.execute(text("UPDATE job SET created_at = created_at - interval '31 min'"))
    assert outcomes == [CREATED, UPDATED, UPDATED]
    assert len(set(ids)) == jobs.count() == 1
    row = jobs.get(ids[0])
    assert (row["input"], row["priority"]) == ({"n": 0}, 0)  # no more than the schedule
    # The third is 62 minutes after the first: an hour from there were too long.
    assert abs(_due_in(engine, ids[0]) - 31 * 60 - 90 * 60) < 1


@each_way
@pytest.mark.parametrize("state", [JobStatus.PENDING, JobStatus.BLOCKED])
def test_a_later_enqueue_replaces_the_given_fields_of_a_pending_job(
    sessions: Sessions, jobs: Jobs, put: Put, state: JobStatus
) -> None:
    old = jobs.add(state, deduplication_key="k", input={"n": 1})
    policy = Deduplicate("k", replace=["input", "priority"])
    with sessions.begin() as session:
        loaded = session.get(Job, old)
        assert put(session, Job("test", {"n": 2}, input_version=2, priority=5), policy) == (old, UPDATED)
        session.refresh(loaded)
        assert loaded is not None
        assert (loaded.input, loaded.input_version, loaded.priority) == ({"n": 2}, 2, 5)
    assert jobs.count() == 1


@each_way
@pytest.mark.parametrize("scope", ["open", "waiting"])
def test_a_replacement_waits_for_a_concurrent_claim_and_sees_its_outcome(
    engine: Engine, sessions: Sessions, jobs: Jobs, manual_worker: Any, put: Put, scope: Any
) -> None:
    old = jobs.add(deduplication_key="k", input={"n": 1})
    answers: list[tuple[Any, Enqueued]] = []

    def replaces() -> None:
        answers.append(call(sessions, put, Job("test", {"n": 2}), Deduplicate("k", scope=scope, replace=["input"])))

    with manual_worker("worker:1").connection as claiming:
        claiming.execute(text("UPDATE job SET status = 'running', attempt = 1, leased_by = 'worker:1'"))
        replacing = threading.Thread(target=replaces)
        replacing.start()
        until_locks_are_waited_for(engine)
        claiming.commit()
        replacing.join(PATIENCE)
    # Without the condition on its status, which is read again under the lock, a running job's input would be changed.
    assert jobs.get(old)["input"] == {"n": 1}
    ((holder, outcome),) = answers
    if scope == "open":
        assert (holder, outcome, jobs.count()) == (old, EXISTING, 1)
    else:  # what was said while it runs is not lost: another run follows
        assert (outcome, jobs.count(), jobs.get(holder)["input"]) == (CREATED, 2, {"n": 2})
        assert jobs.get(old)["deduplication_key"] is None


@each_way
def test_a_job_locked_by_a_replacement_is_claimed_after_it_commits(
    sessions: Sessions, jobs: Jobs, manual_worker: Any, put: Put
) -> None:
    old = jobs.add(deduplication_key="k", due_in=-5)
    worker = manual_worker("worker:1")
    with sessions() as session:
        assert put(session, Job("test", {"n": 2}), Deduplicate("k", replace=["input"])) == (old, UPDATED)
        later = jobs.add(due_in=-1)
        assert [job.id for job in worker.claim()] == [later]  # its cursor has passed the one that is held
        session.commit()
    # Without the stamp it is found when the floors are dropped: seconds later.
    assert [job.id for job in worker.claim()] == [old]


@each_way
def test_a_job_found_as_existing_is_not_claimed_before_the_finder_commits(
    sessions: Sessions, jobs: Jobs, manual_worker: Any, put: Put
) -> None:
    old = jobs.add(deduplication_key="k", due_in=-5)
    worker = manual_worker("worker:1")
    with sessions() as session:
        assert put(session, Job("test"), Deduplicate("k", scope="waiting")) == (old, EXISTING)
        # A job of this transaction would not be visible to it, and no notification would be sent that it has begun.
        later = jobs.add(due_in=-1)
        assert [job.id for job in worker.claim()] == [later]
        session.commit()
    assert [job.id for job in worker.claim()] == [old]
    assert jobs.count() == 2


@pytest.mark.slow
@each_way
def test_of_concurrent_replacements_one_creates_the_job_and_the_last_wins(sessions: Sessions, jobs: Jobs, put: Put) -> None:
    together = threading.Barrier(6)
    order: list[int] = []

    def one(number: int, key: int) -> tuple[Any, Enqueued]:
        together.wait(PATIENCE)
        with sessions.begin() as session:
            answer = put(session, Job("test", {"n": number}), Deduplicate(f"k{key}", replace=["input"]))
            order.append(number)  # under the lock of the row or the key
            return answer

    with ThreadPoolExecutor(6) as threads:
        for key in range(10):
            order.clear()
            results = list(threads.map(one, range(6), [key] * 6))
            assert sorted(outcome for _, outcome in results) == [CREATED] + [UPDATED] * 5
            (job_id,) = {job_id for job_id, _ in results}
            assert jobs.get(job_id)["input"] == {"n": order[-1]}


@each_way
def test_a_throttle_admits_one_of_two_concurrent_enqueues(engine: Engine, sessions: Sessions, put: Put) -> None:
    policy = Deduplicate("k", scope="any", window=HOUR)
    answers: list[tuple[Any, Enqueued]] = []

    def second() -> None:
        answers.append(call(sessions, put, Job("test"), policy))

    with sessions() as first:
        creation = put(first, Job("test"), policy)
        # It ends before the other one looks: no unique index knows it any more, the lock of the key alone.
        first.execute(text("UPDATE job SET status = 'completed', completed_at = now(), chain_completed_at = now()"))
        waiting = threading.Thread(target=second)
        waiting.start()
        until_locks_are_waited_for(engine)
        first.commit()
        waiting.join(PATIENCE)
    assert answers == [(creation[0], EXISTING)]
    write(engine, "UPDATE job SET created_at = created_at - interval '61 min'")
    with sessions.begin() as session:
        assert put(session, Job("test"), Deduplicate("k", scope="any"))[1] is EXISTING  # without a window: no limit
        assert put(session, Job("test"), policy)[1] is CREATED


@each_way
def test_a_chain_that_ends_while_it_is_looked_for_counts(engine: Engine, sessions: Sessions, jobs: Jobs, put: Put) -> None:
    old = jobs.add(JobStatus.RUNNING, deduplication_key="k")

    def second() -> tuple[Any, Enqueued]:
        return call(sessions, put, Job("test"), Deduplicate.throttle("k", HOUR))

    with ThreadPoolExecutor(1) as threads, engine.begin() as ending:
        completion = "status = 'completed', leased_by = NULL, completed_at = now(), chain_completed_at = now()"
        ending.execute(text(f"UPDATE job SET {completion}"))
        answer = threads.submit(second)
        wait_until(lambda: answer.done() or lock_waiters(engine) > 0, description="it waits for the end, or has the answer")
        ending.commit()
        assert answer.result(PATIENCE) == (old, EXISTING)


def test_enqueue_many_by_key_reports_an_outcome_for_each_of_thousands(sessions: Sessions, jobs: Jobs) -> None:
    running = jobs.add(JobStatus.RUNNING, deduplication_key="k3")
    pending = jobs.add(deduplication_key="k1", input="old")
    new = [Job("test", f"{n}") for n in range(5)] + [Job("test", "again"), Job("test", "at last"), Job("other", "o")]
    keys = ["k0", "k1", "k2", "k3", "k4", "k0", "k0", "k0"]
    with sessions.begin() as session:
        pairs = [(job, Deduplicate(key, replace=["input"])) for job, key in zip(new, keys, strict=True)]
        answers = unique(session, pairs)
    first = new[0].id
    assert answers == [
        (first, CREATED),
        (pending, UPDATED),
        (new[2].id, CREATED),
        (running, EXISTING),
        (new[4].id, CREATED),
        (first, UPDATED),
        (first, UPDATED),
        (new[7].id, CREATED),
    ]
    assert (jobs.get(first)["input"], jobs.get(pending)["input"]) == ("at last", "1")
    with sessions.begin() as session:
        many = [(Job("test"), Deduplicate(f"k{n % 1500}")) for n in range(3000)]
        outcomes = [outcome for _, outcome in unique(session, many)]
        assert (outcomes.count(CREATED), outcomes.count(EXISTING)) == (1495, 1505)
        assert unique(session, []) == []


@pytest.mark.slow
def test_concurrent_bulk_enqueues_in_opposite_orders_never_deadlock(sessions: Sessions, jobs: Jobs) -> None:
    together = threading.Barrier(2)

    def put(order: list[int]) -> list[Enqueued]:
        together.wait(PATIENCE)
        with sessions.begin() as session:
            pairs = [(Job("test", n), Deduplicate(f"k{n}", replace=["input"])) for n in order]
            return [outcome for _, outcome in unique(session, pairs)]

    with ThreadPoolExecutor(2) as threads:
        for part in range(5):
            # Without the order of keys these end in a deadlock.
            numbers = range(part * 200, part * 200 + 200)
            up, down = threads.map(put, [[*numbers], [*reversed(numbers)]])
            assert (up + down).count(CREATED) == 200
    assert jobs.count() == 1000


def test_a_bulk_enqueue_releases_later_keys_before_retrying_one(engine: Engine, sessions: Sessions, jobs: Jobs) -> None:
    holders: list[Any] = []
    futures: list[Future[list[tuple[Any, Enqueued]]]] = []

    def put(session: Session) -> list[tuple[Any, Enqueued]]:
        return unique(session, [(Job("test"), Deduplicate(key)) for key in "ab"])

    def enqueue_concurrently() -> list[tuple[Any, Enqueued]]:
        return call(sessions, put)

    def take_a_key(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and not holders:
            holders.append(None)  # this is an insert, too
            holders[0] = jobs.add(JobStatus.RUNNING, deduplication_key="a")

    def enqueue_between(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "CONFLICT" in statement and not futures:
            # It has b, and a was taken. Now that is free, and another one takes it and waits for b.
            with engine.connect() as ending:
                completion = "status = 'completed', leased_by = NULL, completed_at = now(), chain_completed_at = now()"
                ending.execute(text(f"UPDATE job SET {completion} WHERE id = :id"), {"id": holders[0]})
                ending.commit()
            futures.append(threads.submit(enqueue_concurrently))
            until_locks_are_waited_for(engine)

    with ThreadPoolExecutor(1) as threads, sessions() as session:
        session.execute(text("SET LOCAL deadlock_timeout = '1min'"))  # so that a deadlock is the other one's to find
        event.listen(engine, "before_cursor_execute", take_a_key)
        event.listen(engine, "after_cursor_execute", enqueue_between)
        try:
            answers = put(session)
        finally:
            event.remove(engine, "before_cursor_execute", take_a_key)
            event.remove(engine, "after_cursor_execute", enqueue_between)
        session.commit()
        first = futures[0].result(PATIENCE)
    assert [outcome for _, outcome in first] == [CREATED, CREATED]
    assert answers == [(job_id, EXISTING) for job_id, _ in first]


@pytest.mark.parametrize("other_key", ["enqueue_many", "add"])
def test_releasing_keys_before_taking_others_prevents_deadlocks(
    engine: Engine, sessions: Sessions, jobs: Jobs, other_key: str
) -> None:
    jobs.add(JobStatus.RUNNING, deduplication_key="b")
    futures: list[Future[list[Enqueued]]] = []
    awaited: list[str] = []

    def put() -> list[Enqueued]:
        with sessions.begin() as session:
            session.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
            return [answer for _, answer in unique(session, [(Job("test"), Deduplicate(k, scope="waiting")) for k in "ab"])]

    def add() -> list[Enqueued]:
        with sessions() as session:
            session.execute(text("SET LOCAL deadlock_timeout = '1min'"))  # so that a deadlock is the other one's to find
            session.add(Job("test", deduplication_key="a"))
            session.flush()
            session.add(Job("test", deduplication_key="b"))
            with pytest.raises(IntegrityError):
                session.flush()
        return []

    def enqueue_between(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and not futures:  # it has given up b, and not taken a yet
            futures.append(threads.submit(put if other_key == "enqueue_many" else add))
            until_locks_are_waited_for(engine)
            awaited.extend(connection.exec_driver_sql("SELECT locktype FROM pg_locks WHERE NOT granted").scalars())

    with ThreadPoolExecutor(1) as threads:
        event.listen(engine, "after_cursor_execute", enqueue_between)
        try:
            answers = put()
            after = futures[0].result(PATIENCE)
        finally:
            event.remove(engine, "after_cursor_execute", enqueue_between)
    # Two of the same kind take the keys' locks first; plain inserts do not, so a deadlock is tried again.
    assert awaited == ["advisory" if other_key == "enqueue_many" else "transactionid"]
    assert {*answers} | {*after} <= {CREATED, EXISTING}
    assert sum(answer is CREATED for answer in answers + after) == 2
    assert jobs.count() == 3


@pytest.mark.parametrize("more", [{"rate_cost": 2}, {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}], ids=str)
def test_concurrent_bulk_enqueues_with_different_columns_never_deadlock(
    engine: Engine, sessions: Sessions, jobs: Jobs, more: dict[str, Any]
) -> None:
    futures: list[Future[list[tuple[Any, Enqueued]]]] = []

    def put(new: dict[str, dict[str, Any]]) -> list[tuple[Any, Enqueued]]:
        return call(sessions, unique, [(Job("test", **columns), Deduplicate(key)) for key, columns in new.items()])

    def enqueue_between(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and not futures:
            futures.append(threads.submit(put, {"b": {}, "c": {}}))
            wait_until(lambda: futures[0].done() or lock_waiters(engine) > 0, description="the other one has all, or waits")

    with ThreadPoolExecutor(1) as threads:
        event.listen(engine, "after_cursor_execute", enqueue_between)
        try:
            # Set by set it would take a and c, and then want b of the other one, which wants c.
            mine = put({"a": more, "b": {}, "c": more})
        finally:
            event.remove(engine, "after_cursor_execute", enqueue_between)
        theirs = futures[0].result(PATIENCE)
    assert sorted(outcome for _, outcome in [*mine, *theirs]).count(CREATED) == jobs.count() == 3


def test_jobs_that_differ_in_nullable_columns_share_one_statement(engine: Engine, sessions: Sessions, jobs: Jobs) -> None:
    sent: list[str] = []
    event.listen(engine, "after_cursor_execute", lambda *arguments: sent.append(arguments[2].split()[0]))
    new = [Job("test", rate_cost=n) if n % 2 else Job("test") for n in range(6)]
    call(sessions, unique, [(job, Deduplicate(str(n))) for n, job in enumerate(new)])
    assert sent.count("INSERT") == 1
    assert [jobs.get(job.id)["rate_cost"] for job in new] == [None, 1, None, 3, None, 5]


def test_bulk_enqueue_refuses_unsupported_options_before_writing(sessions: Sessions, jobs: Jobs) -> None:
    policy = Deduplicate("a")
    blocked = Job("test", blockers=[Job("test")])
    with sessions.begin() as session:
        refusals: list[tuple[list[Any], str]] = [
            (
                [(Job("test"), policy), (Job("test"), Deduplicate("b", scope="any"))],
                "other deduplication options than the first",
            ),
            ([(Job("test"), Deduplicate("a", exclude=[Job("test").id]))], "excludes chains"),
            ([(blocked, policy)], "has blockers"),
            ([("test", policy)], "must be a job"),
            ([(Job("test"), ["a"])], "must be deduplicated by a Deduplicate"),
            ([(Job("test"), Deduplicate(f"{n}", scope="any")) for n in range(1001)], "at most 1,000"),
        ]
        for new, why in refusals:
            with pytest.raises(InvalidJobError, match=why):
                unique(session, new)
        for job, policies in (("test", policy), (Job("test"), ["a"])):
            with pytest.raises(InvalidJobError, match=r"^job: must be"):
                enqueue(session, job, deduplicate=policies)  # type: ignore[type-var, arg-type]
    assert jobs.count() == 0
    with sessions() as session:
        existing_id = jobs.add()
        with pytest.raises(ConflictError, match="pk_job"):
            unique(session, [(Job("test", id=existing_id), policy)])
