"""Enqueueing by COPY with keys: each key once, whatever others do at the same time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Enqueued, Job, JobQueue, enqueue_many
from sa_jobqueue.errors import InvalidJobError
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, wait_until

pytestmark = both_servers

queue = JobQueue()


@queue.handler("send", queue="mail", priority=4)
def send(payload: dict[str, Any]) -> None: ...


def put(session: Session, *keys: str) -> int:
    payloads = ({"key": key, "place": place} for place, key in enumerate(keys))
    return send.enqueue_many(session, payloads, deduplicate_by=lambda payload: str(payload["key"]))


def keys(engine: Engine) -> list[str | None]:
    with Session(engine) as session:
        return sorted(session.scalars(select(Job.deduplication_key)), key=str)


def until_waiting(engine: Engine, count: int) -> None:
    """Wait until so many sessions wait for another's transaction."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        wait_until(lambda: watcher.scalar(waiting) == count, description=f"{count} wait")


def test_handler_enqueue_many_creates_each_deduplication_key_once(
    session: Session, engine: Engine, notifications: Notifications
) -> None:
    odd = "a\tb\\N\n'ä\U0001f600"
    assert put(session, "b", odd, "a", "b", "b") == 3
    assert put(session, "a", "c") == 1  # in the same transaction
    session.commit()
    assert notifications.seen() == [("due", "mail")]
    assert keys(engine) == sorted(["a", "b", "c", odd])
    first = session.scalars(select(Job).where(Job.deduplication_key == "b")).one()
    assert (first.input["place"], first.priority, first.queue, first.chain_id) == (0, 4, "mail", first.id)
    assert put(session, "a", "b", "c") == 0
    session.rollback()
    assert put(session, "d") == 1
    session.rollback()
    (other_id,) = enqueue_many(session, [send.job({"key": "a"})], deduplicate_by=lambda job: job.input["key"])
    assert other_id[1] is Enqueued.EXISTING


def test_the_key_of_an_ended_chain_can_be_used_again(session: Session) -> None:
    put(session, "a")
    session.commit()
    session.execute(text("UPDATE job_queue SET status = 'cancelled'"))
    session.commit()
    assert put(session, "a") == 1


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_of_an_open_transaction_is_waited_for(engine: Engine, commits: bool) -> None:
    with Session(engine) as first, ThreadPoolExecutor() as pool:
        assert put(first, "b", "c") == 2

        def second() -> int:
            return call(engine, put, "a", "b", "c", "d")

        future: Future[int] = pool.submit(second)
        until_waiting(engine, 1)
        first.commit() if commits else first.rollback()
        assert future.result(PATIENCE) == (2 if commits else 4)
    assert keys(engine) == ["a", "b", "c", "d"]


def test_concurrent_handler_enqueue_many_with_the_same_keys_never_deadlock(engine: Engine) -> None:
    with Session(engine) as first, ThreadPoolExecutor() as pool:
        put(first, "m")

        def other(*ordered: str) -> int:
            return call(engine, put, *ordered)

        future: Future[int] = pool.submit(other, "a", "m", "z")
        until_waiting(engine, 1)
        two: Future[int] = pool.submit(other, "z", "m", "a")
        until_waiting(engine, 2)
        first.commit()
        assert sorted([future.result(PATIENCE), two.result(PATIENCE)]) == [0, 2]
    assert keys(engine) == ["a", "m", "z"]


@pytest.mark.parametrize("key", ["", "\x00", 7, None, "x" * 501])
def test_an_invalid_deduplication_key_is_named_by_its_index_and_nothing_is_written(
    session: Session, jobs: Jobs, key: Any
) -> None:
    with pytest.raises(InvalidJobError, match=r"payloads\[1\]\.deduplication_key"):
        send.enqueue_many(session, [{}, {"bad": True}], deduplicate_by=lambda payload: key if payload else "a")
    session.rollback()
    assert jobs.count() == 0
