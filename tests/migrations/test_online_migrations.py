"""A queue is migrated while it is used: nothing waits behind a waiting migration, whichever transaction holds the tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text

from sa_jobqueue.errors import InvalidOptionError, SchemaBusyError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import locking, runner
from tests.fixtures.holders import lock_waiters
from tests.fixtures.transactions import scalar
from tests.fixtures.workers import PATIENCE, wait_until

ENQUEUE = text("INSERT INTO job (id, chain_id, type_name, chain_type_name) VALUES (:id, :id, 'a', 'a')")


@pytest.fixture(autouse=True)
def _short_lock_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "WAIT", timedelta(milliseconds=200))
    monkeypatch.setattr(locking, "REST", timedelta(milliseconds=50))


def enqueue(engine: Engine) -> UUID:
    """Enqueue as any release does. Who cannot for a minute fails."""
    job_id = uuid7()
    with engine.begin() as connection:
        connection.execute(text("SET lock_timeout = '60s'"))
        connection.execute(ENQUEUE, {"id": job_id})
    return job_id


@contextmanager
def doing(work: Any) -> Iterator[list[Any]]:
    """Do something in a thread for the length of a block, and wait for its end; give its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    try:
        yield results
    finally:
        thread.join(PATIENCE)
    assert results, "it has not ended, or failed"


def is_lock_awaited(engine: Engine) -> bool:
    return lock_waiters(engine) > 0


def holding(engine: Engine, statement: str) -> Connection:
    connection = engine.connect()
    connection.execute(text("SET application_name = 'the long one'"))
    connection.execute(text(statement))
    return connection


@pytest.mark.slow
@pytest.mark.parametrize("lock_statement", ["SELECT FROM job", "UPDATE job SET priority = 1"], ids=["reader", "writer"])
def test_jobs_are_enqueued_while_a_migration_waits_for_a_long_transaction(
    engine: Engine, lock_statement: str, next_version: int
) -> None:
    def migrate() -> int:
        with engine.begin() as connection:
            return runner.upgrade(connection)

    with engine.begin() as connection:
        runner.upgrade(connection, to_version=1)
    enqueued = [enqueue(engine)]
    with holding(engine, lock_statement) as long_one, doing(migrate) as outcome:
        for _ in range(3):  # it comes back, and is let pass again
            wait_until(lambda: is_lock_awaited(engine), description="the wait of the migration")
            enqueued.append(enqueue(engine))
        assert not outcome
        long_one.rollback()
    assert outcome == [1]
    with engine.connect() as connection:
        assert runner.current_version(connection, Layout()) == next_version
        assert set(connection.scalars(text("SELECT id FROM job"))) == set(enqueued)


def test_a_migration_blocked_by_a_lock_names_the_blocking_session(engine: Engine, next_version: int) -> None:
    with engine.begin() as connection:
        runner.upgrade(connection, to_version=1)
    with holding(engine, "SELECT FROM job") as long_one, engine.begin() as connection:
        pid = long_one.scalar(text("SELECT pg_backend_pid()"))
        before = connection.scalar(text("SHOW lock_timeout"))
        with pytest.raises(SchemaBusyError, match=rf"held by process {pid} \(the long one, open for \d+ s\)") as raised:
            runner.upgrade(connection, patience=timedelta(0))
        assert len(raised.value.holders) == 1
        assert runner.current_version(connection, Layout()) == 1
        assert connection.scalar(text("SHOW lock_timeout")) == before
        long_one.rollback()
        assert runner.upgrade(connection) == 1  # the same transaction, once it may
        assert runner.current_version(connection, Layout()) == next_version
        assert connection.scalar(text("SHOW lock_timeout")) == before


@pytest.mark.slow
@pytest.mark.usefixtures("next_version")
def test_prepare_adds_columns_and_indexes_while_jobs_are_enqueued(engine: Engine) -> None:
    def prepare() -> list[str]:
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            return runner.prepare(connection)

    def node() -> Any:
        return scalar(engine, "SELECT relfilenode FROM pg_class WHERE relname = 'ix_job_remark'")

    with engine.begin() as connection:
        runner.upgrade(connection, to_version=1)
    enqueue(engine)
    with holding(engine, "UPDATE job SET priority = 1") as long_one, doing(prepare) as outcome:
        for _ in range(2):
            wait_until(lambda: is_lock_awaited(engine), description="the wait of the column")
            enqueue(engine)
        long_one.commit()
    assert outcome == [["remark", "ix_job_remark"]]
    assert prepare() == []
    with engine.begin() as connection:
        assert runner.current_version(connection, Layout()) == 1
        # As a build that was interrupted leaves it.
        connection.execute(text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_job_remark'::regclass"))
    assert prepare() == ["ix_job_remark"]
    before = node()
    with engine.begin() as connection:
        assert runner.upgrade(connection) == 1
    assert node() == before  # taken as it was
    with engine.begin() as connection:
        runner.upgrade(connection, Layout("jobs"), to_version=1)
        with pytest.raises(InvalidOptionError, match="AUTOCOMMIT"):
            runner.prepare(connection, Layout("jobs"))
